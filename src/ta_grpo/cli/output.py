"""Results on standard output: a table for people, JSON for programs.

Texts come from models and from files. None of them reaches the terminal as a command of the terminal's, or as markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, Parameter(negative="", help="Print the result as JSON.")]


# Controls but tab and line feed, marks that turn the direction of writing, line ends of Unicode's, half characters.
_NOT_SHOWN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """A text as a terminal may have it: what would steer it is written as ``\\u001b``, which JSON reads back."""
    return _NOT_SHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(result: Any) -> None:
    """One JSON document."""
    sys.stdout.write(safe(json.dumps(result, indent=2, ensure_ascii=False, default=str)) + "\n")


def print_table(table: Table) -> None:
    """A table, as wide as it needs to be where standard output is no terminal."""
    plain: dict[str, Any] = {"markup": False, "emoji": False}
    table.title = _safe_cell(table.title)
    for column in table.columns:
        column._cells = [_safe_cell(cell) for cell in column._cells]  # rich has no public way
    console = Console(**plain)
    if not console.is_terminal:
        console = Console(width=max(120, Console(width=10_000, **plain).measure(table).maximum), **plain)
    console.print(table)


def _safe_cell(cell: Any) -> Any:
    if isinstance(cell, Text):
        return Text(safe(cell.plain), cell.style)
    return safe(cell) if isinstance(cell, str) else cell


def print_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """Labels and values, a line each."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for label, value in pairs:
        table.add_row(label, str(value))
    print_table(table)


def print_text(text: str) -> None:
    """A sentence or two, as they are."""
    sys.stdout.write(safe(text) + "\n")
