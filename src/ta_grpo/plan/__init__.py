"""What a run will take, before it starts: responses, tokens, memory of each GPU, hours and cost.

Everything here is an estimate from formulas that say where they come from; ``IGNORED`` lists what they leave out.
"""

from __future__ import annotations

from dataclasses import dataclass

from .layouts import Layout, layouts
from .memory import IGNORED
from .model_size import ModelSize, model_size
from .phases import Phase, phases
from .settings import PlanSettings
from .workload import Workload, workload

__all__ = ["IGNORED", "Layout", "ModelSize", "Phase", "Plan", "PlanSettings", "Workload", "plan"]


@dataclass(frozen=True)
class Plan:
    """The answer of ``plan``; ``phases`` has a list for each layout, in the same order."""

    size: ModelSize
    work: Workload
    layouts: list[Layout]
    phases: list[list[Phase]]


def plan(settings: PlanSettings) -> Plan:
    """Estimate a run.

    Raises:
        UserError: a model or question set that cannot be read, or settings that contradict each other.
    """
    size, work = model_size(settings), workload(settings)
    found = layouts(size, settings)
    return Plan(size, work, found, [phases(layout, work, size, settings) for layout in found])
