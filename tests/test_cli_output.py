"""What reaches a terminal, and what is said of a disk: no text steers, and no fault of the machine is a traceback."""

from __future__ import annotations

import errno
import json
import os

import pytest
from rich.table import Table
from rich.text import Text

from ta_grpo.cli import app, main
from ta_grpo.cli.output import print_json, print_pairs, print_table, print_text, safe

HOSTILE = "\x1b[2J \x9b1m \u202eabc \ud800 [red]x[/b] :smile:\r"


def test_no_text_steers_the_terminal_or_is_taken_for_markup(capsys):
    table = Table("name", title=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    print_table(table)
    print_pairs("pairs", [(HOSTILE, HOSTILE)])
    print_text(HOSTILE)
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x9b", "\u202e", "\ud800", "\r"}
    assert shown.count("[red]x[/b] :smile:") == 6


def test_json_holds_the_same_texts(capsys):
    print_json({"text": HOSTILE, "lines": "a\n\tb"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"text": HOSTILE, "lines": "a\n\tb"}
    assert safe(shown) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (errno.ENOSPC, 1, "No space left on device; make room, then run the command again, with --resume"),
        (errno.EROFS, 2, "Read-only file system; choose another place"),
        (errno.EACCES, 2, "Permission denied; choose another place"),
    ],
)
def test_a_full_or_closed_disk_is_told_with_the_fix(monkeypatch, capsys, number, code, told):
    def fails(*args, **kwargs):
        raise OSError(number, os.strerror(number), "runs/a/metrics.jsonl")

    monkeypatch.setattr(type(app), "__call__", fails)
    assert main(["env"]) == code
    assert f"ta-grpo: runs/a/metrics.jsonl: {told}" in capsys.readouterr().err


def test_another_error_of_the_system_is_not_hidden(monkeypatch):
    def fails(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(type(app), "__call__", fails)
    with pytest.raises(OSError, match="Input/output"):
        main(["env"])
