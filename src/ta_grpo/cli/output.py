"""Results on standard output: a table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, Parameter(negative="", help="Print the result as JSON.")]


def print_json(result: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(table: Table) -> None:
    """A table, as wide as it needs to be where standard output is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(120, Console(width=10_000).measure(table).maximum))
    console.print(table)


def print_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """Labels and values, a line each."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for label, value in pairs:
        table.add_row(label, str(value))
    print_table(table)


def print_text(text: str) -> None:
    """A sentence or two, as they are."""
    sys.stdout.write(text + "\n")
