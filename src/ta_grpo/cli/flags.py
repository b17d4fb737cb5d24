"""Flags made from a settings dataclass, and settings made from a YAML file and flags.

cyclopts reads the words and writes the help; types are ours to check (``settings.typed_settings``): cyclopts takes 2.5
for a whole number.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from ..settings import check_names, read_settings_file, typed_settings

Settings = TypeVar("Settings")

ConfigFile = Annotated[
    Path | None, Parameter(help="YAML file of settings, one 'name: value' a line; flags come before it.")
]


def flags_of(settings: type, short: Mapping[str, str] | None = None) -> Any:
    """A dataclass with an optional flag for each setting; a flag that is not given is None.

    ``short``: setting -> one-letter flag beside the long one.
    """
    hints = typing.get_type_hints(settings)
    flags = []
    for field in dataclasses.fields(settings):
        hint, default = hints[field.name], _default(field)
        if hint in (bool, bool | None):
            words: Any = bool | None
        elif hint == dict[str, Any] or typing.get_origin(hint) is dict or dict[str, str] in typing.get_args(hint):
            words = dict[str, str] | None
        else:
            words = str | None
        shown = "" if default in (None, {}, Path()) else str(default).lower() if hint is bool else str(default)
        show_default = (lambda _, text=shown: text) if shown else False
        alias = (short or {}).get(field.name)
        parameter = Parameter(help=field.metadata["help"], show_default=show_default, alias=alias)
        flags.append((field.name, Annotated[words, parameter], None))
    made = dataclasses.make_dataclass(f"{settings.__name__}Flags", flags, kw_only=True)
    made.__module__ = __name__  # cyclopts takes a class of the module `types` for a single value
    # None where no flag is given, which pydantic, if something has imported it, must be told.
    return Annotated[made | None, Parameter(name="*")]


def resolve(
    settings: type[Settings], flags: Any, config: Path | None, also: Mapping[str, Iterable[str]] | None = None
) -> Settings:
    """Settings from their defaults, then a YAML file, then flags.

    Args:
        settings: the settings dataclass.
        flags: an instance of ``flags_of(settings)``, or None.
        config: the YAML file.
        also: mapping setting -> names that the YAML file may hold beside the settings, collected under it.

    Raises:
        UserError: an unknown name or a wrong type, in the file or the flags.
    """
    hints, also = typing.get_type_hints(settings), also or {}
    from_flags = {} if flags is None else {k: v for k, v in vars(flags).items() if v is not None}
    values: dict[str, Any] = {}
    if config is not None:
        from_file = read_settings_file(config)
        check_names(from_file, [*hints, *(name for names in also.values() for name in names)], where=str(config))
        for setting, names in also.items():
            elsewhere = {name: from_file.pop(name) for name in list(from_file) if name in names and name not in hints}
            from_file[setting] = {**(from_file.get(setting) or {}), **elsewhere}
        values = typed_settings(from_file, hints, where=str(config))
    for name, value in from_flags.items():
        typed = typed_settings({name: value}, hints, where=f"--{name.replace('_', '-')}")[name]
        if name in also:
            typed = {**values.get(name, {}), **{key.replace("-", "_"): item for key, item in typed.items()}}
        values[name] = typed
    return settings(**values)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
