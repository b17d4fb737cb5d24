"""Evaluations side by side: tables, and comparisons paired by question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from ..statistics import Interval, PairedComparison, paired_comparison, pass_at_k
from .summary import Evaluation, Mean

if TYPE_CHECKING:
    from rich.table import Table

# A narrow terminal breaks a cell before an interval, not within it.
_GLUE = "\u00a0"


def render_table(rows: Mapping[str, Evaluation | Mean], ks: Sequence[int]) -> Table:
    """A table of pass@k in per cent with intervals: a row for each evaluation or mean, a column for each k.

    Further columns: the accuracy of the majority vote, and the shares of completions that were cut, are without an
    answer, or repeat an earlier one of their question. "–" stands where a row has no such figure; an interval is left
    out where there is none (one question).
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(caption="in %, with 95 % intervals over questions; maj: the most frequent answer of a question")
    table.add_column("")
    table.add_column("questions × samples", justify="right")
    for k in ks:
        table.add_column(f"pass@{k}", justify="right")
    for name in ("maj", "cut", "no answer", "repeated"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        cells = [_cell(row.pass_at_k.get(k)) for k in ks] + [_cell(row.majority_vote)]
        if isinstance(row, Mean):
            table.add_row(Text(name), "", *cells, "–", "–", "–")
            continue
        shares = (row.truncated_share, row.unanswered_share, row.duplicate_share)
        size = f"{row.num_questions} × {row.num_samples}"
        table.add_row(Text(name), size, *cells, *(f"{100 * share:.1f}" for share in shares))
    return table


def _cell(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    if math.isnan(interval.low):
        return f"{100 * interval.mean:.1f}"
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f},{_GLUE}{100 * interval.high:.1f}]"


def comparison_table(rows: Mapping[str, Mapping[int, PairedComparison]], ks: Sequence[int]) -> Table:
    """A table of paired differences in points, with interval and p-value: a row for each set, a column for each k."""
    from rich.table import Table
    from rich.text import Text

    table = Table(caption="points of difference, paired by question, with 95 % interval and permutation p-value")
    table.add_column("")
    for k in ks:
        table.add_column(f"pass@{k}", justify="right")
    for name, compared in rows.items():
        table.add_row(Text(name), *(_difference(compared.get(k)) for k in ks))
    return table


def _difference(gap: PairedComparison | None) -> str:
    if gap is None:
        return "–"
    points = f"{100 * gap.difference:+.1f}"
    if not math.isnan(gap.low):
        points += f" [{100 * gap.low:+.1f},{_GLUE}{100 * gap.high:+.1f}]"
    return f"{points} p={gap.p_value:.2g}"


def compare(a: Evaluation, b: Evaluation, ks: Sequence[int]) -> dict[int, PairedComparison]:
    """pass@k of a minus that of b, question by question; the two may have different numbers of samples.

    Raises:
        UserError: not the same questions, or a k above the samples of either.
    """
    if a.correct.keys() != b.correct.keys():
        only_a, only_b = sorted(a.correct.keys() - b.correct.keys()), sorted(b.correct.keys() - a.correct.keys())
        sides = ((only_a, "first"), (only_b, "second"))
        told = " and ".join(f"{len(ids)} only in the {side} (such as {ids[0]})" for ids, side in sides if ids)
        raise UserError(
            f"a paired comparison needs the same questions on both sides: {told}; use the same set for both"
        )
    counts_a_Q = np.array([a.correct[question_id] for question_id in a.correct])
    counts_b_Q = np.array([b.correct[question_id] for question_id in a.correct])
    return {
        k: paired_comparison(pass_at_k(a.num_samples, counts_a_Q, k), pass_at_k(b.num_samples, counts_b_Q, k))
        for k in ks
    }
