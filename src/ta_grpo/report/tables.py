"""Budgets, differences, settings and versions as tables of text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..controls.arms import ARMS
from ..controls.results import MATCHED_WITHIN, chain_step
from ..statistics import Interval, SeedComparison
from .findings import signed
from .outcomes import Gap, Outcomes
from .reading import Run, Source


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column holds names, the others are numbers unless ``text_columns`` names them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    text_columns: Sequence[str] = ()


def budget_table(source: Source, outcomes: Outcomes) -> Table | None:
    """What each arm spent on training, and whether that is matched."""
    if not outcomes.budgets:
        return None
    is_experiment = source.experiment is not None
    names = ("questions", "responses", "tokens_generated", "tokens_trained", "updates", "seconds")
    rows = [
        [
            arm,
            *(f"{getattr(spent, name):,.0f}" for name in names),
            "yes" if outcomes.matched[arm] else "no",
            *([ARMS[arm].about] if is_experiment else []),
        ]
        for arm, spent in outcomes.budgets.items()
    ]
    means = "Means over seeds. " if is_experiment else ""
    matched = "as many as the method's" if is_experiment else "as many as those of the run compared with"
    return Table(
        "Spent on training",
        ["arm", *(name.replace("_", " ") for name in names), "matched", *(["what it is"] if is_experiment else [])],
        rows,
        f"{means}Responses are completions sampled in training; matched: {matched}, within {MATCHED_WITHIN:.0%}. "
        "Seconds are those of the training steps, on the machine they ran on.",
        ("matched", "what it is"),
    )


def difference_table(name: str, gaps: Mapping[tuple[str, str], Mapping[int, Gap]]) -> Table:
    """The numbers of the figure of differences."""
    rows = [
        [f"{a} − {b}", chain_step(a, b), f"pass@{k}", *_gap_cells(gap)]
        for (a, b), by_k in gaps.items()
        for k, gap in by_k.items()
    ]
    columns = ["arms", "changes", "at", "difference, points", "95 % interval", "p", "n"]
    return Table(f"{name}: differences", columns, rows, text_columns=("changes", "at"))


def _gap_cells(gap: Gap) -> list[str]:
    interval = "–" if math.isnan(gap.low) else f"{signed(100 * gap.low)} to {signed(100 * gap.high)}"
    n = f"{gap.seeds} seeds × {gap.problems} questions" if isinstance(gap, SeedComparison) else f"{gap.n} questions"
    return [signed(100 * gap.difference), interval, f"{gap.p_value:.2g}", n]


def pass_table(name: str, curves: Mapping[str, Mapping[int, Interval]]) -> Table:
    """The numbers of the figure of pass@k."""
    ks = sorted({k for by_k in curves.values() for k in by_k})
    rows = [[arm, *(_percent(by_k.get(k)) for k in ks)] for arm, by_k in curves.items()]
    return Table(name, ["arm", *(f"pass@{k}" for k in ks)], rows, "In %, with 95 % intervals.")


def _percent(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    mean = f"{100 * interval.mean:.1f}"
    return mean if math.isnan(interval.low) else f"{mean} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


# Settings and versions.


def settings_tables(source: Source) -> list[Table]:
    """The experiment's settings; of the runs, what they share and what they differ in."""
    tables = []
    if source.experiment is not None:
        rows = [[name, _plain(value)] for name, value in source.experiment.record().items()]
        tables.append(Table("Experiment", ["setting", "value"], rows, text_columns=("value",)))
    firsts = {arm.name: arm.runs[0].config for arm in source.arms if arm.runs and arm.runs[0].config}
    if not firsts:
        return tables
    names = [name for name in dict.fromkeys(key for config in firsts.values() for key in config) if name != "seed"]
    told = {name: [_plain(config.get(name)) for config in firsts.values()] for name in names}
    # Arms whose training was asked for alike have one column less to read.
    differing = [[name, *values] for name, values in told.items() if len(set(values)) > 1]
    if differing:
        tables.append(Table("Where the arms differ", ["setting", *firsts], differing, text_columns=tuple(firsts)))
    shared = [[name, values[0]] for name, values in told.items() if len(set(values)) == 1 and values[0] != "–"]
    title = "What all arms share" if len(firsts) > 1 else "Training"
    caption = "Settings that are not named have the defaults of TRL."
    return [*tables, Table(title, ["setting", "value"], shared, caption, ("value",))]


def versions_table(source: Source) -> Table | None:
    """Versions, commit and hardware of the runs; a package in several versions names them all."""
    attempts = [_last_attempt(each) for each in (source.manifest, *(run.manifest for run in source.runs))]
    told: dict[str, list[str]] = {}
    for attempt in filter(None, attempts):
        flat = {**dict(attempt.get("versions") or {}), "python": attempt.get("python")}
        flat |= {"git commit": attempt.get("git_commit"), **dict(attempt.get("hardware") or {})}
        for name, value in flat.items():
            if value is not None and _plain(value) not in told.setdefault(name, []):
                told[name].append(_plain(value))
    rows = [[name, ", ".join(values)] for name, values in told.items() if values]
    return Table("Versions and hardware", ["", ""], rows, text_columns=("",)) if rows else None


def commands_table(runs: Sequence[Run]) -> Table | None:
    """How each run was begun, and whether it came to its end."""
    rows = []
    for run in runs:
        attempt = _last_attempt(run.manifest)
        if attempt:
            command = " ".join(map(_plain, attempt.get("command") or []))
            ended = str(attempt.get("ended") or "")[:10]
            state = "finished" if run.manifest.get("finished") else str(attempt.get("outcome") or "not finished")
            rows.append([run.name, command, f"{state} {ended}".strip()])
    return Table("Runs", ["run", "command", "state"], rows, text_columns=("command", "state")) if rows else None


def _last_attempt(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    attempts = manifest.get("attempts")
    return attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) else None


def _plain(value: Any) -> str:
    if value is None or value in ({}, [], ""):
        return "–"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return _short_path(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short_path(text: str) -> str:
    """The last two parts of an absolute path: where somebody keeps their files is not for a page that travels."""
    parts = text.split("/")
    return f"…/{'/'.join(parts[-2:])}" if text.startswith("/") and len(parts) > 3 else text
