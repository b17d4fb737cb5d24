"""Sampling and verifying, as one watches them: how many are done, how fast, and how long it will take."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import TaskID

# Without a terminal, a line at most this often (seconds).
_LINE_EVERY = 15.0


class SamplingProgress:
    """A progress bar on standard error; where that is no terminal, a line now and then. Use as a context manager, and
    as the ``on_progress`` of an evaluation.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.title = title
        self.console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._stage = ""
        self._task: TaskID | None = None
        self._started = self._last_line = 0.0
        self._first = 0

    def __enter__(self) -> SamplingProgress:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Called with the stage, what is done and what there is to do."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._started, self._first = stage, now, done
            self._task = self._bars.add_task(f"{self.title}: {stage}", total=total, rate="")
        assert self._task is not None  # noqa: S101 - made with the stage
        elapsed = now - self._started
        rate = (done - self._first) / elapsed if elapsed > 0 else 0.0
        told = f"  {rate:,.1f}/s" if rate else ""
        self._bars.update(self._task, completed=done, rate=told)
        if self.console.is_terminal or (now - self._last_line < _LINE_EVERY and done < total):
            return
        self._last_line = now
        left = "" if not rate or done == total else f"  {_minutes((total - done) / rate)} left"
        self.console.print(f"{self.title}: {stage} {done}/{total}{told}{left}", highlight=False, markup=False)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
