"""Hours and cost of each phase, from throughputs that the user has measured or states."""

from __future__ import annotations

from dataclasses import dataclass

from .layouts import Layout
from .model_size import ModelSize
from .settings import PlanSettings
from .workload import Workload, forward_flops, update_flops


@dataclass(frozen=True)
class Phase:
    """One phase of a run. ``hours`` is None without a throughput, ``cost`` None without a price as well.

    ``derived``: the throughput was not stated, but follows from that of updates and the work of a token in each.
    """

    name: str
    tokens: int
    gpus: int
    tokens_a_second: float | None
    derived: bool
    hours: float | None
    cost: float | None


def phases(layout: Layout, work: Workload, size: ModelSize, settings: PlanSettings) -> list[Phase]:
    """Sampling, scoring and updates, one after another.

        hours = tokens / (tokens a second of one GPU * GPUs that take part) / 3600
        cost  = hours * all GPUs * price of a GPU for an hour

    All GPUs are paid for in every phase: those of the other phase wait.
    """
    scoring, derived = settings.scoring_throughput, False
    if scoring is None and settings.update_throughput is not None:
        scoring = settings.update_throughput * update_flops(size, settings) / forward_flops(size)
        derived = True
    planned = (
        ("sampling", work.completion_tokens, layout.sampling_gpus, settings.sampling_throughput, False),
        ("scoring", work.tokens_scored, layout.training_gpus, scoring, derived),
        ("update", work.tokens_trained, layout.training_gpus, settings.update_throughput, False),
    )
    found = []
    for name, tokens, gpus, speed, is_derived in planned:
        if tokens == 0:
            continue
        hours = None if speed is None else tokens / (speed * gpus) / 3600
        price = settings.gpu_hour_price
        cost = None if hours is None or price is None else hours * settings.gpus * price
        found.append(Phase(name, tokens, gpus, speed, is_derived, hours, cost))
    return found
