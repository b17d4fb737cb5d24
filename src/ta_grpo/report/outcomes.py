"""pass@k, differences and budgets of what a page shows, by the code that the verbs compare and eval use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat, takewhile

from ..controls.experiment import Budget, budget
from ..controls.results import MATCHED_WITHIN, compare_arms, pass_curves
from ..errors import UserError
from ..evaluation.summary import Evaluation
from ..evaluation.tables import compare
from ..statistics import Interval, PairedComparison, SeedComparison
from .reading import Run, Source

Gap = SeedComparison | PairedComparison


@dataclass(frozen=True)
class Outcomes:
    """What a page tells of results.

    Attributes:
        curves: set -> arm -> k -> pass@k.
        over: set -> what the intervals are taken over, with n.
        gaps: set -> (arm, the arm it is compared with) -> k -> paired difference.
        budgets: of the arms that training records or results are there for.
        matched: whether an arm had as many responses as the method (of runs: as the one they are compared with).
        warnings: what not to conclude.
    """

    curves: Mapping[str, Mapping[str, Mapping[int, Interval]]]
    over: Mapping[str, str]
    gaps: Mapping[str, Mapping[tuple[str, str], Mapping[int, Gap]]]
    budgets: Mapping[str, Budget]
    matched: Mapping[str, bool]
    warnings: Sequence[str]


def outcomes_of(source: Source, against: str | None) -> Outcomes:
    """Of an experiment, over seeds and questions; of runs, over questions, each against one of them.

    Raises:
        UserError: ``against`` names no run; results that are damaged.
    """
    if source.experiment is None:
        return _of_runs(source.runs, against)
    if against is not None:
        raise UserError("--against is for runs; an experiment's arms are compared along its chain")
    return _of_experiment(source)


def _of_experiment(source: Source) -> Outcomes:
    settings = source.experiment
    assert settings is not None  # noqa: S101 - the caller's condition
    results = source.results
    comparison = compare_arms(settings, results)
    curves = pass_curves(results, _powers_of_two(settings.num_samples))
    over = {}
    for name in curves:
        questions = len(next(iter(next(iter(results.values())).values()))["evaluations"][name]["correct"])
        counts = sorted({len(seeds) for seeds in comparison.seeds.values()})
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        plural = "" if counts == [1] else "s"
        over[name] = f"{seeds} seed{plural} and {questions} questions × {settings.num_samples} samples"
    return Outcomes(curves, over, comparison.differences, comparison.budgets, comparison.matched, comparison.warnings)


def _powers_of_two(most: int) -> list[int]:
    """1, 2, 4, … and the number itself."""
    return sorted({*takewhile(lambda k: k <= most, accumulate(repeat(2), lambda k, two: k * two, initial=1)), most})


def _of_runs(runs: Sequence[Run], against: str | None) -> Outcomes:
    names = [run.name for run in runs]
    if against is not None and against not in names:
        raise UserError(f"--against {against}: no such run here; name one of {', '.join(names)}")
    base = runs[names.index(against)] if against else runs[0]
    others = [run for run in runs if run is not base]
    sets = list(dict.fromkeys(name for run in runs for name in run.evaluations))
    gaps: dict[str, dict[tuple[str, str], Mapping[int, Gap]]] = {}
    warnings = []
    for name in sets:
        gaps[name] = {}
        for run in others:
            if name in run.evaluations and name in base.evaluations:
                try:
                    gaps[name][run.name, base.name] = _gaps(run.evaluations[name], base.evaluations[name])
                except UserError as error:
                    warnings.append(f"{run.name} and {base.name} on {name}: {error}")
    if len(runs) > 1:
        warnings.append("one seed a run: the intervals cover the choice of questions only, not the luck of a run")
    budgets = {run.name: budget(run.path) for run in runs if run.metrics and run.rollouts and run.config}
    of_base = budgets.get(base.name)
    matched = {
        name: of_base is None or abs(spent.responses - of_base.responses) <= MATCHED_WITHIN * of_base.responses
        for name, spent in budgets.items()
    }
    if unmatched := [name for name, is_matched in matched.items() if not is_matched]:
        warnings.append(
            f"not matched in responses with {base.name} (more than {MATCHED_WITHIN:.0%} apart): {', '.join(unmatched)}"
        )
    return Outcomes(
        curves={
            name: {run.name: run.evaluations[name].pass_at_k for run in runs if name in run.evaluations}
            for name in sets
        },
        over={name: _over(next(run.evaluations[name] for run in runs if name in run.evaluations)) for name in sets},
        gaps=gaps,
        budgets=budgets,
        matched=matched,
        warnings=warnings,
    )


def _gaps(a: Evaluation, b: Evaluation) -> Mapping[int, Gap]:
    """At pass@1 and at the largest k that both have."""
    shared = set(a.pass_at_k) & set(b.pass_at_k)
    return compare(a, b, sorted({min(shared), max(shared)})) if shared else {}


def _over(evaluation: Evaluation) -> str:
    return f"{evaluation.num_questions} questions × {evaluation.num_samples} samples, one seed"
