"""A disk that is full, and a directory that may only be read, in the way of every verb that writes.

As root, the disk is a tmpfs of our own: small at first, larger when the verb goes on, remounted read-only for the
other fault, since root may write whatever modes say. Otherwise no file may grow beyond a limit (RLIMIT_FSIZE, which
the system tells as "file too large"), and the directory has mode 555.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fault_setup import (
    Context,
    Done,
    Fault,
    Verb,
    compare_verb,
    eval_verb,
    fresh,
    rephrase_verb,
    run,
    train_verb,
)

CAMPAIGN = "disk"
ROOT = os.geteuid() == 0
_PLENTY = 512 << 20


def faults(context: Context) -> Iterator[Fault]:
    trained = context.place / "train-unbroken" / "run"
    verbs = [rephrase_verb(context.url, 12), train_verb(), eval_verb(), compare_verb(), _report_verb(trained)]
    for verb in verbs:
        folder = fresh(context.place / f"{verb.name}-unbroken")
        verb.prepare(folder)
        size, before = _size(folder), context.answered()
        done = run(verb.command(folder))
        assert done.code == 0, done.err
        whole, calls = verb.result(folder), context.answered() - before
        for _ in range(context.times(6)):
            room = context.rng.uniform(0.02, 0.95) * (_size(folder) - size)
            yield _full(context, verb, whole, calls, round(room))
        yield _read_only(context, verb)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _report_verb(run_dir: Path) -> Verb:
    def prepare(folder: Path) -> None:
        shutil.copytree(run_dir, folder / "run", ignore=shutil.ignore_patterns("checkpoint-*"))

    return Verb(
        "report",
        lambda folder: ["report", folder / "run"],
        "never",
        lambda folder: (folder / "run/report.html").read_text(),
        prepare,
    )


def _full(context: Context, verb: Verb, whole: Any, calls: int, room: int) -> Fault:
    """A verb meets a disk with this much room, and goes on when there is more."""
    with _disk(context.place / "disk", _PLENTY) as folder:
        verb.prepare(folder)
        room += _size(folder)
        _resize(folder, room)
        before = context.answered()
        first = run(verb.command(folder), file_limit=None if ROOT else max(room // 8, 1))
        _resize(folder, _PLENTY)
        what = f"{'tmpfs' if ROOT else 'files'} of {room / 1e6:.2f} MB"
        if first.code == 0:
            return Fault(CAMPAIGN, verb.name, what, "room enough", True, 0)
        names_it = "no space" in first.err.lower() or "too large" in first.err.lower() or "full" in first.err.lower()
        if not (first.refused and names_it):
            return _fault(verb, what, "TRACEBACK" if first.traceback else "NOT NAMED", False, first)
        then = run(verb.command(folder))
        if then.code != 0:
            return _fault(verb, what, "DOES NOT GO ON", False, then)
        same = verb.result(folder) == whole
        came_to = "named, went on with room, the result of an unbroken run" if same else "ANOTHER RESULT"
        again = context.answered() - before - calls if verb.name == "rephrase" else 0
        return _fault(verb, f"full disk: {what}", came_to, same, first, again)


def _read_only(context: Context, verb: Verb) -> Fault:
    with _disk(context.place / "disk", _PLENTY) as folder:
        verb.prepare(folder)
        _read_only_now(folder)
        done = run(verb.command(folder))
        names_it = "read-only" in done.err.lower() or "permission" in done.err.lower()
        handled = done.refused and names_it
        came_to = "read-only directory named" if handled else "TRACEBACK" if done.traceback else "NOT NAMED"
        return _fault(verb, "read-only mount" if ROOT else "mode 555", came_to, handled, done)


def _fault(verb: Verb, what: str, came_to: str, handled: bool, done: Done, repeated: int = 0) -> Fault:
    return Fault(CAMPAIGN, verb.name, what, came_to, handled, done.code, done.told, repeated)


@contextmanager
def _disk(place: Path, size: int) -> Iterator[Path]:
    place.mkdir(parents=True, exist_ok=True)
    if not ROOT:
        yield fresh(place)
        place.chmod(0o755)
        return
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def _resize(place: Path, size: int) -> None:
    if ROOT:
        _mount("-o", f"remount,size={-(-size // 4096) * 4096}", place)


def _read_only_now(place: Path) -> None:
    if ROOT:
        _mount("-o", "remount,ro", place)
    else:
        place.chmod(0o555)


def _mount(*words: Any) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)
