"""pass@k of a model on sets of questions: samples, verdicts, a summary with intervals, and paired comparisons.

    DIR/samples.jsonl   completions (see ``sampling``), with samples.meta.json
    DIR/verdicts.jsonl  a verdict on each, in the same order
    DIR/summary.json    everything that tables and comparisons need; written when all is done

A run that was killed goes on where it was: each file is only ever appended to, or replaced in one step. Samples and
verdicts are read line by line, so that a million of them need no more memory than a thousand.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sample_and_verify import Progress, checked_ks, evaluate, evaluate_sampler, rescore
    from .summary import Evaluation, Mean, load_evaluation, mean_of
    from .tables import compare, comparison_table, render_table

__all__ = [
    "Evaluation",
    "Mean",
    "Progress",
    "checked_ks",
    "compare",
    "comparison_table",
    "evaluate",
    "evaluate_sampler",
    "load_evaluation",
    "mean_of",
    "render_table",
    "rescore",
]

# Imported when first asked for: numpy alone would double the time of ``ta-grpo --help``.
_HOMES = {
    **dict.fromkeys(("Progress", "checked_ks", "evaluate", "evaluate_sampler", "rescore"), "sample_and_verify"),
    **dict.fromkeys(("Evaluation", "Mean", "load_evaluation", "mean_of"), "summary"),
    **dict.fromkeys(("compare", "comparison_table", "render_table"), "tables"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
