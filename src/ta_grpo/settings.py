"""Settings from a flat YAML file and from flags: known names only, of the right type, with errors that name the fix."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import UserError

_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
    list: "a list",
    type(None): "null",
}


def setting(default: Any, meaning: str) -> Any:
    """A field of a settings dataclass: its default, and what it means in the words of the help text."""
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata={"help": meaning})
    return dataclasses.field(default=default, metadata={"help": meaning})


def help_of(settings: type) -> dict[str, str]:
    """Setting -> help text, of a settings dataclass."""
    return {field.name: field.metadata["help"] for field in dataclasses.fields(settings)}


def read_settings_file(path: str | Path) -> dict[str, Any]:
    """The settings of a YAML file: one mapping from setting to value.

    Raises:
        UserError: no such file, not YAML, or not a mapping with text keys.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's safe types. A name that occurs twice is an error, and not the second value; so is an alias, since a
        few of them can stand for more than any memory holds.
        """

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                alias = self.peek_event()
                raise yaml.YAMLError(f"the alias *{alias.anchor}: write its value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [name for name in names if names.count(name) > 1]:
                raise yaml.YAMLError(f"{twice[0]!r} occurs twice; keep one of them")
            return super().construct_mapping(node, deep)

    path = Path(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 - a safe loader
    except FileNotFoundError:
        raise UserError(f"--config: there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"--config: {path} is a directory; name a YAML file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--config: {path} is not UTF-8 text (byte {error.start})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number or date that cannot be
        raise UserError(f"--config: {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"--config: {path} must hold one 'setting: value' a line; got {_kind(content)}")
    return content


def check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse names that are not known, each with the nearest that is.

    Raises:
        UserError: naming all of them.
    """
    known = sorted(known)
    problems = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            problems.append(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if problems:
        raise UserError(f"{where}: " + "; ".join(problems))


def typed_settings(values: Mapping[str, Any], types_of: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Give each value the type that its setting declares.

    Text stands for a number or truth value where one is declared (``1e-6`` is text to YAML, and all flags are). A
    whole number passes for a float; nothing else is converted: 2.5 or true is no whole number.

    Args:
        values: setting -> value.
        types_of: setting -> type hint, for at least these settings.
        where: the file or flag, for the error.

    Raises:
        UserError: naming every setting of the wrong type, with what it should be.
    """
    typed, problems = {}, []
    for name, value in values.items():
        choices = _choices(types_of[name])
        for choice in choices:
            try:
                typed[name] = _convert(value, choice)
                break
            except (ValueError, OverflowError):
                continue
        else:
            expected = " or ".join(dict.fromkeys(_describe(choice) for choice in choices))
            problems.append(f"{name} must be {expected}; got {reprlib.repr(value)}")
    if problems:
        raise UserError(f"{where}: " + "; ".join(problems))
    return typed


def _choices(hint: Any) -> list[Any]:
    """The members of a union, the ones that a text can be mistaken for last."""
    members = list(typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else [hint]
    order = [type(None), bool, int, float]
    return sorted(members, key=lambda member: order.index(member) if member in order else len(order) + (member is str))


def _convert(value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is typing.Literal:
        if value in args:
            return value
        raise ValueError
    if hint in (dict, list) or origin in (dict, list):
        return _convert_container(value, origin or hint, args)
    if hint is type(None):
        if value is None or value in ("null", "none", "None"):
            return None
    elif hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str):
            return int(value)
    elif hint is float:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number):
                return number
    elif hint is str or (isinstance(hint, type) and issubclass(hint, str)):
        if isinstance(value, str):
            return value
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValueError


def _convert_container(value: Any, container: Any, args: tuple[Any, ...]) -> Any:
    if isinstance(value, str):
        import yaml

        try:
            value = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError):
            raise ValueError from None
    if not isinstance(value, container):
        raise ValueError
    if container is list and args:
        choices = _choices(args[0])
        return [next(_attempts(item, choices)) for item in value]
    return value


def _attempts(value: Any, choices: list[Any]) -> typing.Iterator[Any]:
    for choice in choices:
        try:
            yield _convert(value, choice)
        except (ValueError, OverflowError):
            continue
    raise ValueError


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    return _TYPE_NAMES.get(origin or hint, "text")


def _kind(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)
