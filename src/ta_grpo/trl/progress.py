"""Training, as one watches it: step, reward, mixed share on q_0 and jointly, tokens a second, time left."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

# Without a terminal, a line at most this often (seconds).
_LINE_EVERY = 15.0


class TrainingProgress(TrainerCallback):
    """A progress bar on standard error; where that is no terminal, a line now and then."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.title = title
        self._started = self._last_line = 0.0
        self._first_step = 0
        self._tokens_before: float | None = None
        self._time_before = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = self._time_before = time.monotonic()
        self._first_step = state.global_step
        self._task = self.progress.add_task(
            self.title, total=state.max_steps, completed=state.global_step, figures="first generation …"
        )
        if self.console.is_terminal and state.is_world_process_zero:
            self.progress.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "train_runtime" in logs:
            return
        now = time.monotonic()
        parts = [
            f"{label} {logs[name]:.2f}"
            for label, name in (
                ("reward", "reward"),
                ("mixed q_0", "questions/original/mixed"),
                ("joint", "questions/joint/mixed"),
            )
            if name in logs
        ]
        tokens = logs.get("num_tokens")
        if tokens is not None:
            if self._tokens_before is not None and now > self._time_before:
                parts.append(f"{(tokens - self._tokens_before) / (now - self._time_before):,.0f} tok/s")
            self._tokens_before, self._time_before = tokens, now
        if state.is_world_process_zero:
            self._show(state, "  ".join(parts), now)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.update(self._task, completed=state.global_step)

    def _show(self, state: Any, figures: str, now: float) -> None:
        self.progress.update(self._task, completed=state.global_step, figures=figures)
        due = now - self._last_line > _LINE_EVERY or state.global_step == state.max_steps
        if not self.console.is_terminal and due:
            self._last_line = now
            steps_done = max(state.global_step - self._first_step, 1)
            left = int((now - self._started) / steps_done * (state.max_steps - state.global_step))
            step = f"step {state.global_step}/{state.max_steps}"
            text = f"{self.title}: {step}  {figures}  {left // 60}:{left % 60:02d} left"
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was, also after an error."""
        if self.progress.live.is_started:
            self.progress.stop()
