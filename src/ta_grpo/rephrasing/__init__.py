"""Problem-equivalent rephrasings: made by a model or by rules, checked, cached, resumable.

``rephrase`` makes them for a set of questions, ``check_rephrasing`` tells whether one keeps the problem, and
``rule_rephrasings`` makes them without a model. Importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import check_rephrasing
    from .pipeline import rephrase
    from .rules import rule_rephrasings

__all__ = ["check_rephrasing", "rephrase", "rule_rephrasings"]

_HOMES = {"check_rephrasing": "checks", "rephrase": "pipeline", "rule_rephrasings": "rules"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
