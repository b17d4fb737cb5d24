"""The figures of docs/results are those of the results that lie beside them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ta_grpo.controls.results import Comparison, Results, compare_arms
from ta_grpo.report.reading import read_source
from ta_grpo.statistics import SeedComparison, compare_over_seeds, pass_at_k

PLACE = Path(__file__).parent.parent / "docs" / "results" / "tiny_controls"
SMALL = PLACE.parent / "tiny_small_groups"
SETS = ("tiny_test", "tiny_test_phrasings", "tiny_ood")
KS = (1, 32)


EXPLORATORY = PLACE / "exploratory"


def compare_of(*places: Path, without: Collection[str] = ()) -> Comparison:
    source = read_source(places)
    assert source.experiment is not None
    return compare_arms(source.experiment, {arm: of for arm, of in source.results.items() if arm not in without})


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare_of(PLACE)


def rows_of(page: str, beginning: str) -> list[list[str]]:
    rows = re.findall(rf"^\| ({beginning}[^\n]*) \|$", page, re.MULTILINE)
    return [[cell.replace("*", "").strip() for cell in row.split(" | ")] for row in rows]


def signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def holds_means(page: str, compared: Comparison, arm: str) -> None:
    told = rows_of(page, f"`{arm}` \\| ")[0][1:]
    means = [compared.pass_at_k[name][arm][k] for name in SETS for k in KS]
    assert told == [f"{100 * i.mean:.1f} [{100 * i.low:.1f}, {100 * i.high:.1f}]" for i in means], arm


def holds_differences(page: str, compared: Comparison, a: str, b: str) -> None:
    holds_gaps(page, f"`{a}` − `{b}`", [compared.differences[name][a, b][k] for name in SETS for k in KS])


def holds_gaps(page: str, label: str, gaps: Sequence[SeedComparison]) -> None:
    told = rows_of(page, f"{label} \\| ")[0][2:]
    assert told == [f"{signed(g.difference)} [{signed(g.low)}, {signed(g.high)}] p {g.p_value:.2g}" for g in gaps], (
        label
    )
    bold = re.findall(r"\*\*", next(line for line in page.splitlines() if line.startswith(f"| {label} |")))
    telling = [gap for gap in gaps if gap.low * gap.high > 0 and gap.p_value <= 0.05]
    assert len(bold) == 2 * len(telling), label


def test_the_tables_are_what_compare_says_of_the_results(compared):
    page = (PLACE / "README.md").read_text(encoding="utf-8")
    assert all(seeds == list(range(8)) for seeds in compared.seeds.values())
    assert all(compared.matched.values())
    for arm in compared.seeds:
        holds_means(page, compared, arm)
    for pair in compared.differences[SETS[0]]:
        holds_differences(page, compared, *pair)


@pytest.mark.parametrize("other", ["rephrased-data", "ta-grpo"])
def test_what_longer_training_is_compared_with_besides(compared, other):
    page = (PLACE / "README.md").read_text(encoding="utf-8")
    two = compare_of(PLACE, without=set(compared.seeds) - {"grpo-longer", other})
    holds_differences(page, two, "grpo-longer", other)


def test_the_exploratory_tables_too(compared):
    page = (PLACE / "README.md").read_text(encoding="utf-8")
    exploratory = compare_of(PLACE, EXPLORATORY, without=set(compared.seeds) - {"grpo-matched"})
    assert len(exploratory.seeds) == 7
    for arm, seeds in exploratory.seeds.items():
        if arm != "grpo-matched":
            assert seeds == [0, 1]
            holds_means(page, exploratory, arm)
            holds_differences(page, exploratory, arm, "grpo-matched")


def test_what_chance_alone_would_leave_is_told(compared):
    page = (PLACE / "README.md").read_text(encoding="utf-8")
    gaps = [gap for pairs in compared.differences.values() for by_k in pairs.values() for gap in by_k.values()]
    decided = sum(gap.low > 0 or gap.high < 0 for gap in gaps)
    assert f"- {len(gaps)} intervals: about {0.05 * len(gaps):.1f} leave 0 out by chance alone; {decided} do." in page


def rates(results: Results, arm: str, name: str, k: int) -> NDArray[np.float64]:
    """(seeds, problems) pass@k."""
    evaluations = [results[arm][seed]["evaluations"][name] for seed in range(8)]
    return np.array(
        [pass_at_k(e["num_samples"], [e["correct"][i] for i in sorted(e["correct"])], k) for e in evaluations]
    )


def test_the_tables_of_small_groups(compared):
    page = (SMALL / "README.md").read_text(encoding="utf-8")
    small_arms = compare_of(SMALL)
    assert small_arms.seeds == {"grpo-matched": list(range(8)), "ta-grpo": list(range(8))}
    assert all(small_arms.matched.values())
    for arm in small_arms.seeds:
        holds_means(page, small_arms, arm)
    holds_differences(page, small_arms, "ta-grpo", "grpo-matched")

    large, small = read_source([PLACE]).results, read_source([SMALL]).results
    means = rows_of((PLACE / "README.md").read_text(encoding="utf-8"), "`ta-grpo` \\| ")[0][1:]
    assert rows_of(page, "`ta-grpo` in groups of 32, 50 updates \\| ")[0][1:] == means
    by_size, by_both = [], []
    for name in SETS:
        for k in KS:
            of_small, of_large = rates(small, "ta-grpo", name, k), rates(large, "ta-grpo", name, k)
            by_size.append(compare_over_seeds(of_small, of_large))
            matched_small, matched_large = (rates(results, "grpo-matched", name, k) for results in (small, large))
            by_both.append(compare_over_seeds(of_small - matched_small, of_large - matched_large))
    holds_gaps(page, "`ta-grpo` − `ta-grpo` in groups of 32", by_size)
    holds_gaps(page, "the first, less what it is in groups of 32", by_both)


def test_plain_grpo_in_small_groups_came_out_the_same_twice():
    longer, matched = read_source([PLACE]).results["grpo-longer"], read_source([SMALL]).results["grpo-matched"]
    assert len(longer) == 8
    for seed, run in longer.items():
        assert matched[seed]["evaluations"] == run["evaluations"]
        spent = [
            {name: amount for name, amount in r["budget"].items() if name != "seconds"} for r in (run, matched[seed])
        ]
        assert spent[0] == spent[1]
