"""``ta-grpo rephrase``: a question file to the same with rephrasings."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from ..rephrasing.rephrase_settings import RephraseSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from ..rephrasing.job import Outcome, Progress

# Without a terminal, a line at most this often (seconds).
_LINE_EVERY = 15.0


def rephrase(
    questions: Annotated[str, Parameter(help="Question file (.jsonl, .json, .parquet, .csv) or a named set.")],
    /,
    flags: flags_of(RephraseSettings, {"output": "-o", "num_rephrasings": "-n"}) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print calls, tokens and price, and stop.")] = False,
    json: AsJson = False,
) -> int:
    """Add checked rephrasings to a question file.

    A killed run goes on with --resume and pays for nothing twice. What could not be made is missing, and reported.
    """
    settings = resolve(RephraseSettings, flags, config)
    if dry_run:
        _dry_run(questions, settings, json)
        return 0
    from ..rephrasing.chat import CostLimitReached
    from ..rephrasing.pipeline import rephrase as run

    if settings.push_to_hub is not None:
        from ..rephrasing.hub import check_hub

        check_hub()
    try:
        with _Display() as display:
            outcome = run(questions, settings, display)
    except CostLimitReached as limit:
        print(f"ta-grpo: {limit}", file=sys.stderr)  # noqa: T201
        return 1
    from ..rephrasing.hub import push, write_card

    card, address = write_card(outcome, settings, questions), None
    if settings.push_to_hub is not None:
        address = push(outcome, settings, questions)
    _show(outcome, card, address, json)
    return 0


class _Display:
    """Progress on standard error: a line that changes, or where that is no terminal, a line now and then."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._status = self.console.status("rephrase") if self.console.is_terminal else None
        self._started: float | None = None
        self._first = 0
        self._last_line = float("-inf")

    def __enter__(self) -> _Display:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started, self._first = now, progress.done
        elapsed, done = now - self._started, progress.done - self._first
        text = f"rephrase: {progress.done}/{progress.total} questions"
        if done and elapsed > 0:
            left = (progress.total - progress.done) * elapsed / done
            text += f"  {done / elapsed:.1f}/s"
            if progress.done < progress.total:
                text += f"  {int(left) // 60}:{int(left) % 60:02d} left"
        text += f"  accepted {progress.accepted}, rejected {progress.rejected}, missing {progress.missing}"
        if progress.spent.cost:
            text += f"  ${progress.spent.cost:.2f}"
        if self._status is not None:
            self._status.update(text)
        elif now - self._last_line >= _LINE_EVERY or progress.done == progress.total:
            self._last_line = now
            self.console.print(text, highlight=False, markup=False)


def _dry_run(questions: str, settings: RephraseSettings, json: bool) -> None:
    from ..rephrasing.forecast import forecast

    figures = asdict(forecast(questions, settings))
    if json:
        print_json({"settings": settings.record(), "forecast": figures})
        return
    shown = [(name, value) for name, value in settings.record().items() if value not in (None, [], {})]
    print_pairs("Settings", shown)
    labels = {
        "questions": "questions",
        "missing": "rephrasings to make",
        "calls": "calls, if all are accepted at once",
        "calls_at_most": "calls at most",
        "tokens_in": "tokens sent, about",
        "tokens_out": "tokens received, about",
        "tokens_out_at_most": "tokens received at most",
    }
    lines = [(label, f"{figures[name]:,}") for name, label in labels.items()]
    for name, label in (("cost", "price, about"), ("cost_at_most", "price at most")):
        lines.append(
            (label, "not known: give --price-in and --price-out" if figures[name] is None else _dollars(figures[name]))
        )
    print_pairs("\nForecast", lines)


def _show(outcome: Outcome, card: Path, address: str | None, json: bool) -> None:
    figures = outcome.report.figures()
    spent = asdict(outcome.spent) | {"cost": outcome.spent.cost if outcome.priced else None}
    if json:
        extra = {"retries": outcome.retries, "replies_without_usage": outcome.replies_without_usage}
        print_json({"output": str(outcome.output), "quality": figures, "spent": spent | extra, "hub": address})
        return
    print_table(_by_transformation(figures))
    if figures["checks"]:
        print_table(_by_check(figures))
    for name, what in (("similarity", "words in common with the original"), ("length", "length over the original's")):
        if (spread := figures[name]) is not None:
            print_pairs("", [(what, f"{spread['mean']:.2f} ({spread['lowest']:.2f} to {spread['highest']:.2f})")])
    pairs: list[tuple[str, Any]] = [
        ("questions", figures["questions"]),
        ("rephrasings accepted", figures["accepted"]),
        ("rephrasings that were there", figures["given"]),
        ("missing", f"{figures['missing']}, of {figures['short_questions']} questions"),
    ]
    if outcome.spent.calls:
        price = _dollars(outcome.spent.cost) if outcome.priced else "price not known"
        pairs.append(
            (
                "paid for",
                f"{outcome.spent.calls:,} calls, {outcome.spent.tokens_in:,} tokens sent, "
                f"{outcome.spent.tokens_out:,} received, {price}",
            )
        )
    if outcome.replies_without_usage:
        pairs.append(("tokens estimated for", f"{outcome.replies_without_usage} replies that did not tell them"))
    pairs += [("written to", outcome.output), ("how it was made", card)]
    if address:
        pairs.append(("uploaded to", address))
    print_pairs("\nRephrased", pairs)


def _by_transformation(figures: dict[str, Any]) -> Table:
    table = Table(title="By transformation", title_justify="left")
    for name in ("transformation", "attempts", "accepted", "share"):
        table.add_column(name, justify="left" if name == "transformation" else "right")
    for name, row in figures["transformations"].items():
        share = "" if row["acceptance"] is None else f"{row['acceptance']:.1%}"
        table.add_row(name, str(row["attempts"]), str(row["accepted"]), share)
    return table


def _by_check(figures: dict[str, Any]) -> Table:
    table = Table(title="\nRejected by", title_justify="left")
    for name in ("check", "rejected", "of all attempts"):
        table.add_column(name, justify="left" if name == "check" else "right")
    for name, row in figures["checks"].items():
        table.add_row(name, str(row["rejected"]), "" if row["share"] is None else f"{row['share']:.1%}")
    return table


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.4f}"
