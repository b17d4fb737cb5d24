"""Results of arms and seeds side by side: budgets, pass@k, and paired differences along the chain of controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..statistics import Interval, SeedComparison, compare_over_seeds, interval_over_seeds, pass_at_k
from .arms import ARMS, BASELINE, CHAIN, CHAIN_STEPS, METHOD
from .experiment import Budget, ExperimentSettings, read_result

if TYPE_CHECKING:
    from rich.table import Table

MATCHED_WITHIN = 0.02
"""Response budgets that differ by more are not called matched."""

_FEW_SEEDS = 6  # below it no p-value can reach 0.05


@dataclass(frozen=True)
class Comparison:
    """What an experiment shows so far.

    Attributes:
        seeds: of each arm, those that are done.
        budgets: of each arm, the mean over its seeds.
        matched: whether an arm's responses are within 2 % of the method's (or of the largest budget without it).
        pass_at_k: set -> arm -> k -> mean over seeds and problems with its interval.
        differences: set -> (arm, the arm before it) -> k -> the paired difference over the seeds both have.
        warnings: what not to conclude.
    """

    seeds: Mapping[str, Sequence[int]]
    budgets: Mapping[str, Budget]
    matched: Mapping[str, bool]
    pass_at_k: Mapping[str, Mapping[str, Mapping[int, Interval]]]
    differences: Mapping[str, Mapping[tuple[str, str], Mapping[int, SeedComparison]]]
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Plain mappings with text keys."""
        return {
            "seeds": self.seeds,
            "budgets": {arm: asdict(spent) for arm, spent in self.budgets.items()},
            "matched": self.matched,
            "pass_at_k": {
                name: {arm: {str(k): asdict(i) for k, i in by_k.items()} for arm, by_k in arms.items()}
                for name, arms in self.pass_at_k.items()
            },
            "differences": {
                name: {
                    f"{a} - {b}": {str(k): asdict(gap) | {"lowest_p": gap.lowest_p} for k, gap in by_k.items()}
                    for (a, b), by_k in pairs.items()
                }
                for name, pairs in self.differences.items()
            },
            "warnings": list(self.warnings),
        }


Results = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Arm -> seed -> what its result file holds."""


def read_results(settings: ExperimentSettings) -> Results:
    """What is done of an experiment.

    Raises:
        UserError: nothing is done yet; a result file that is damaged or not of this experiment.
    """
    results: dict[str, dict[int, dict[str, Any]]] = {}
    for arm in map(str, settings.arms):
        done = [seed for seed in map(int, settings.seeds) if settings.result_file(arm, seed).exists()]
        if done:
            results[arm] = {seed: read_result(settings, arm, seed) for seed in done}
    if not results:
        raise UserError(f"{settings.output_dir} holds no results yet")
    return results


def pass_curves(results: Results, ks: Sequence[int]) -> dict[str, dict[str, dict[int, Interval]]]:
    """Set -> arm -> k -> mean pass@k over seeds and problems with its interval."""
    sets = list(next(iter(next(iter(results.values())).values()))["evaluations"])
    return {
        name: {
            arm: {k: interval_over_seeds(_pass_at_k(by_seed, list(by_seed), name, k)) for k in ks}
            for arm, by_seed in results.items()
        }
        for name in sets
    }


def compare_arms(settings: ExperimentSettings, results: Results | None = None) -> Comparison:
    """Compare what is done of an experiment, at pass@1 and at pass@k with k the number of samples.

    Args:
        settings: of the experiment.
        results: what ``read_results`` gives, if it was read already, or from several directories.

    Raises:
        UserError: nothing is done yet; a result file that is damaged or not of this experiment.
    """
    results = read_results(settings) if results is None else results
    ks = sorted({1, settings.num_samples})
    budgets = {arm: _mean_budget([r["budget"] for r in by_seed.values()]) for arm, by_seed in results.items()}
    matched = _matched(budgets)
    pairs = _pairs(list(results))
    figures = pass_curves(results, ks)
    differences = {
        name: {(a, b): by_k for a, b in pairs if (by_k := _differences(results, a, b, name, ks))} for name in figures
    }
    return Comparison(
        seeds={arm: list(by_seed) for arm, by_seed in results.items()},
        budgets=budgets,
        matched=matched,
        pass_at_k=figures,
        differences=differences,
        warnings=_warnings(matched, differences),
    )


def _pass_at_k(
    by_seed: Mapping[int, Mapping[str, Any]], seeds: Sequence[int], name: str, k: int
) -> NDArray[np.float64]:
    """(S, Q) pass@k of each seed and problem; all seeds have the same problems."""
    rows, ids = [], None
    for seed in seeds:
        evaluation = by_seed[seed]["evaluations"][name]
        ids = ids or sorted(evaluation["correct"])
        if sorted(evaluation["correct"]) != ids:
            raise UserError(
                f"results of {name} are of different questions; evaluate all arms and seeds on the same ones"
            )
        rows.append(pass_at_k(evaluation["num_samples"], [evaluation["correct"][i] for i in ids], k))
    return np.array(rows)


def _differences(results: Results, a: str, b: str, name: str, ks: Sequence[int]) -> dict[int, SeedComparison]:
    """k -> pass@k of arm a minus that of arm b on one set, paired over the seeds both have; empty without any."""
    shared = [seed for seed in results[a] if seed in results[b]]
    if not shared:
        return {}
    of_a, of_b = results[a], results[b]
    return {k: compare_over_seeds(_pass_at_k(of_a, shared, name, k), _pass_at_k(of_b, shared, name, k)) for k in ks}


def _pairs(arms: Sequence[str]) -> list[tuple[str, str]]:
    """The method against matched GRPO; neighbours along the chain, as far as they were run; other arms.

    Where the arm that another is compared with was not run, the chain's first takes its place.
    """
    chain = [arm for arm in CHAIN if arm in arms]
    base = chain[0] if chain else arms[0]
    whole = [(METHOD, BASELINE)] if METHOD in arms and BASELINE in arms else []
    alone = [arm for arm in arms if arm not in chain and arm != base]
    others = [(arm, ARMS[arm].against if ARMS[arm].against in arms else base) for arm in alone]
    return list(dict.fromkeys([*whole, *((b, a) for a, b in pairwise(chain)), *others]))


def chain_step(a: str, b: str) -> str:
    """What differs between two neighbours of the chain; empty for other pairs."""
    places = [CHAIN.index(arm) if arm in CHAIN else -1 for arm in (b, a)]
    return " + ".join(CHAIN_STEPS[places[0] : places[1]]) if -1 not in places else ""


def _mean_budget(budgets: Sequence[Mapping[str, float]]) -> Budget:
    means = {name: sum(spent[name] for spent in budgets) / len(budgets) for name in budgets[0]}
    seconds = round(means.pop("seconds"), 1)
    return Budget(**{name: round(value) for name, value in means.items()}, seconds=seconds)


def _matched(budgets: Mapping[str, Budget]) -> dict[str, bool]:
    of_method = budgets["ta-grpo"] if "ta-grpo" in budgets else max(budgets.values(), key=lambda spent: spent.responses)
    return {
        arm: abs(spent.responses - of_method.responses) <= MATCHED_WITHIN * of_method.responses
        for arm, spent in budgets.items()
    }


def _warnings(
    matched: Mapping[str, bool], differences: Mapping[str, Mapping[tuple[str, str], Mapping[int, SeedComparison]]]
) -> list[str]:
    told = []
    if unmatched := [arm for arm, is_matched in matched.items() if not is_matched]:
        told.append(f"not matched in responses (more than {MATCHED_WITHIN:.0%} apart): {', '.join(unmatched)}")
    gaps = [gap for pairs in differences.values() for by_k in pairs.values() for gap in by_k.values()]
    if gaps and (seeds := min(gap.seeds for gap in gaps)) < _FEW_SEEDS:
        told.append(f"with {seeds} shared seeds no p-value can be below {2.0 ** (1 - seeds):.2g}: run more seeds")
        if seeds == 1:
            told.append("with one seed the intervals cover the choice of problems only, not the luck of a run")
    undecided = sum(gap.low <= 0 <= gap.high for gap in gaps)
    if undecided:
        told.append(
            f"{undecided} of {len(gaps)} intervals of differences hold 0: too few seeds or problems to tell these apart"
        )
    if undecided < len(gaps) and len(gaps) > 1:
        told.append(
            f"of {len(gaps)} intervals of 95 %, about {0.05 * len(gaps):.1f} leave 0 out by chance alone; "
            f"{len(gaps) - undecided} of these do"
        )
    return told


# Tables.


def pass_table(comparison: Comparison, name: str) -> Table:
    """pass@k of each arm on one set, with intervals over seeds and problems."""
    from rich.table import Table

    arms = comparison.pass_at_k[name]
    ks = list(next(iter(arms.values())))
    table = Table(title=name, caption="in %, with 95 % intervals over seeds and problems", title_justify="left")
    for column in ("arm", "seeds", *(f"pass@{k}" for k in ks)):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, by_k in arms.items():
        table.add_row(arm, str(len(comparison.seeds[arm])), *(_percent(by_k[k]) for k in ks))
    return table


def difference_table(comparison: Comparison, name: str) -> Table:
    """Paired differences on one set; along the chain each names the one thing that changed."""
    from rich.table import Table

    pairs = comparison.differences[name]
    ks = list(next(iter(pairs.values()))) if pairs else []
    table = Table(
        title=f"{name}: differences",
        caption="in points, paired by seed and problem, with 95 % intervals; p: sign-flip test over seeds",
        title_justify="left",
    )
    for column in ("arms", "changes", "seeds", *(f"pass@{k}" for k in ks)):
        table.add_column(column, justify="right" if column.startswith(("seeds", "pass")) else "left")
    for (a, b), by_k in pairs.items():
        seeds = next(iter(by_k.values())).seeds
        cells = [_points(gap) for gap in by_k.values()]
        table.add_row(f"{a} - {b}", chain_step(a, b), str(seeds), *cells)
    return table


def budget_table(comparison: Comparison) -> Table:
    """What each arm spent, and whether that is matched."""
    from rich.table import Table

    table = Table(title="budgets", caption="means over seeds", title_justify="left")
    names = ("questions", "responses", "tokens_generated", "tokens_trained", "updates", "seconds")
    for column in ("arm", *(name.replace("_", " ") for name in names), "matched", "what it is"):
        table.add_column(column, justify="left" if column in ("arm", "matched", "what it is") else "right")
    for arm, spent in comparison.budgets.items():
        cells = [f"{getattr(spent, name):,}" for name in names]
        table.add_row(arm, *cells, "yes" if comparison.matched[arm] else "no", ARMS[arm].about)
    return table


def _percent(interval: Interval) -> str:
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _points(gap: SeedComparison) -> str:
    return f"{100 * gap.difference:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}] p={gap.p_value:.2g}"
