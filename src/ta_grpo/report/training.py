"""Curves over the steps of training: an arm's mean over its seeds, and their range.

A step's figure rests on the few questions of that step, so a window of steps is averaged, within each seed first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .reading import Run


@dataclass(frozen=True)
class Curve:
    """Figures at ``steps``: the mean over ``seeds`` runs, and the lowest and highest of them."""

    steps: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    seeds: int


Values = Mapping[int, float]
"""Step -> figure of one run."""


def metric(name: str) -> Callable[[Run], dict[int, float]]:
    """Reads a metric of a run, where it is a number."""

    def values(run: Run) -> dict[int, float]:
        there = {record["step"]: record.get(name) for record in run.metrics}
        return {step: float(value) for step, value in there.items() if isinstance(value, int | float)}

    return values


def window_of(steps: int) -> int:
    """How many steps are averaged: about a tenth of a run, at most 25."""
    return max(1, min(25, steps // 10))


def curve(runs: Sequence[Values], window: int) -> Curve | None:
    """The curve of an arm over the steps that all its runs have; None where there is none."""
    runs = [run for run in runs if run]
    if not runs:
        return None
    shared = sorted(set(runs[0]).intersection(*runs[1:]))
    smooth = [_moving_mean([run[step] for step in shared], window) for run in runs]
    if not shared:
        return None
    at_step = list(zip(*smooth, strict=True))
    return Curve(
        steps=shared,
        mean=[math.fsum(values) / len(values) for values in at_step],
        low=[min(values) for values in at_step],
        high=[max(values) for values in at_step],
        seeds=len(runs),
    )


def _moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Centred; shorter at both ends."""
    before, after = window // 2, (window - 1) // 2
    means = []
    for place in range(len(values)):
        part = values[max(0, place - before) : place + after + 1]
        means.append(math.fsum(part) / len(part))
    return means


def mean_over_training(values: Values) -> float:
    """NaN without steps."""
    return math.fsum(values.values()) / len(values) if values else math.nan
