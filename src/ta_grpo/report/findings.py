"""The sentences at the head of a page.

One speaks of a difference only where its interval leaves 0 out and its p-value is at most 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..controls.results import chain_step
from .outcomes import Gap, Outcomes
from .reading import Arm, Source
from .training import mean_over_training, metric

_TELLING_P = 0.05
MIXED = "questions/joint/mixed"


@dataclass(frozen=True)
class Finding:
    """``kind``: up, down, both (of differences), none (cannot be told), fact, diagnosed, or caution."""

    kind: str
    about: str
    text: str


def findings_of(source: Source, outcomes: Outcomes) -> list[Finding]:
    """All findings, the most asked-for first."""
    pairs = list(dict.fromkeys(pair for by_pair in outcomes.gaps.values() for pair in by_pair))
    found = [_of_pair(pair, outcomes) for pair in pairs]
    found += _mixed_share(source.arms)
    for run in source.runs:
        for told in _diagnosed(run.diagnostics):
            found.append(Finding("diagnosed", f"{run.name}, {told[0]}", told[1]))
    return found + [Finding("caution", "Caution", warning) for warning in outcomes.warnings]


def _of_pair(pair: tuple[str, str], outcomes: Outcomes) -> Finding:
    """What is told of one difference: for each k, where it is higher, lower, or cannot be told."""
    a, b = pair
    by_k: dict[int, dict[str, Gap]] = {}
    for name, by_pair in outcomes.gaps.items():
        for k, gap in by_pair.get(pair, {}).items():
            by_k.setdefault(k, {})[name] = gap
    signs = {_direction(gap) for by_set in by_k.values() for gap in by_set.values()} - {""}
    step = chain_step(a, b)
    about = f"{a} against {b}" + (f" ({step})" if step else "")
    kind = "none" if not signs else "both" if len(signs) > 1 else "up" if signs == {"higher"} else "down"
    return Finding(kind, about, "; ".join(_at_k(k, by_set) for k, by_set in by_k.items()))


def _direction(gap: Gap) -> str:
    """Empty unless both the interval and the test tell the difference from 0; with few seeds no test can."""
    if gap.p_value > _TELLING_P:
        return ""
    return "higher" if gap.low > 0 else "lower" if gap.high < 0 else ""


def _at_k(k: int, by_set: Mapping[str, Gap]) -> str:
    parts = []
    for direction in ("higher", "lower", ""):
        there = {name: gap for name, gap in by_set.items() if _direction(gap) == direction}
        if there:
            parts.append(f"{direction or 'cannot be told apart'}{_where_and_how_much(there, len(by_set))}")
    return f"pass@{k} {', '.join(parts)}"


def _where_and_how_much(there: Mapping[str, Gap], sets: int) -> str:
    """Each with its interval, or of many sets the range."""
    if sets == 1:
        return f", {points(next(iter(there.values())))}"
    if len(there) <= 2:
        return ", " + " and ".join(f"{points(gap)} on {name}" for name, gap in there.items())
    amounts = sorted(gap.difference for gap in there.values())
    names = "all sets" if len(there) == sets else ", ".join(there)
    return f" on {names}, {signed(100 * amounts[0])} to {signed(100 * amounts[-1])} points"


def points(gap: Gap) -> str:
    """A difference in points with its interval and p-value."""
    interval = "" if math.isnan(gap.low) else f" [{signed(100 * gap.low)}, {signed(100 * gap.high)}]"
    return f"{signed(100 * gap.difference)} points{interval} (p = {gap.p_value:.2g})"


def signed(value: float) -> str:
    """With a true minus, one decimal; what rounds to 0 has no sign."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _mixed_share(arms: Sequence[Arm]) -> list[Finding]:
    told = []
    for arm in arms:
        shares = [100 * mean_over_training(metric(MIXED)(run)) for run in arm.runs]
        shares = [share for share in shares if not math.isnan(share)]
        if shares:
            span = f" ({min(shares):.0f} to {max(shares):.0f} over {len(shares)} seeds)" if len(shares) > 1 else ""
            told.append(f"{sum(shares) / len(shares):.0f} % in {arm.name}{span}")
    if not told:
        return []
    return [Finding("fact", "Groups that gave a gradient", f"mixed over all of training: {'; '.join(told)}")]


def _diagnosed(diagnostics: Mapping[str, object] | None) -> list[tuple[str, str]]:
    found = (diagnostics or {}).get("findings")
    if not isinstance(found, list):
        return []
    return [(str(each.get("checkpoint", "")), str(each.get("text", ""))) for each in found if isinstance(each, dict)]
