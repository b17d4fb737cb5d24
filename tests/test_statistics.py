import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ta_grpo.errors import UserError
from ta_grpo.statistics import (
    Interval,
    bootstrap_interval,
    compare_over_seeds,
    interval_over_seeds,
    mean_of_means,
    paired_comparison,
    pass_at_k,
    pass_at_k_table,
)

counts = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
shares = st.lists(st.integers(0, 8).map(lambda c: c / 8), min_size=2, max_size=12)


def by_enumeration(n, c, k):
    """Share of the k-subsets of n samples that hold one of the first c, the correct ones."""
    subsets = list(itertools.combinations(range(n), k))
    return sum(min(subset) < c for subset in subsets) / len(subsets)


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one():
    for n in range(1, 9):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            assert pass_at_k(n, c, k) == pytest.approx(by_enumeration(n, c, k), abs=1e-14)


@given(counts)
def test_pass_at_k_agrees_with_binomials_in_exact_arithmetic(ncks):
    n, c, k = ncks
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-13)


@given(counts)
def test_pass_at_k_properties(ncks):
    n, c, k = ncks
    value = pass_at_k(n, c, k)
    assert type(value) is float
    assert 0 <= value <= 1
    assert pass_at_k(n, 0, k) == 0
    assert pass_at_k(n, n, k) == 1
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert (value == 1) == (n - c < k)
    if k < n:
        assert pass_at_k(n, c, k + 1) >= value
    if c < n:
        assert pass_at_k(n, c + 1, k) >= value


def test_pass_at_k_stays_exact_for_many_samples():
    n, c, k = 10_000, 3, 5_000
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-12)
    assert pass_at_k(1_000_000, 1, 1) == pytest.approx(1e-6, rel=1e-9)


def test_pass_at_k_takes_arrays():
    counts_23 = np.array([[0, 1, 2], [4, 3, 0]])
    values_23 = pass_at_k(4, counts_23, 2)
    assert values_23.shape == (2, 3)
    assert values_23[1, 1] == pass_at_k(4, 3, 2)
    assert pass_at_k(4, np.array([], dtype=int), 2).shape == (0,)


def test_more_samples_than_drawn_are_refused_not_called_1():
    with pytest.raises(UserError, match="pass@8 cannot be estimated from 4 samples"):
        pass_at_k(4, 4, 8)
    with pytest.raises(UserError):
        pass_at_k_table(4, [1, 2], [1, 8])


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1.0, 1), (4, True, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=r"needs k|between 0|whole numbers"):
        pass_at_k(n, c, k)


def test_table_has_a_value_a_problem_for_each_k():
    table = pass_at_k_table(4, [0, 2, 4], [2, 1, 2])
    assert list(table) == [1, 2]
    assert table[1].tolist() == [0, 0.5, 1]
    assert table[2].tolist() == pytest.approx([0, 5 / 6, 1])


@settings(max_examples=30)
@given(shares)
def test_interval_holds_the_mean_and_stays_within_the_values(values):
    interval = bootstrap_interval(values, resamples=199)
    assert interval.mean == pytest.approx(np.mean(values))
    assert min(values) <= interval.low <= interval.high <= max(values)
    if min(values) == max(values):
        assert interval.low == interval.mean == interval.high
    assert interval == bootstrap_interval(values, resamples=199)


def test_interval_of_one_problem_is_nan_and_of_equal_ones_is_a_point():
    one = bootstrap_interval([0.25])
    assert one.mean == 0.25
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert bootstrap_interval([0.1] * 12) == Interval(0.1, 0.1, 0.1)


def test_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        interval = bootstrap_interval(rng.binomial(16, rng.beta(1, 1, 40)) / 16, confidence=0.9, resamples=399)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.83 <= covered / 200 <= 0.96


def test_a_higher_confidence_is_a_wider_interval_and_another_seed_another():
    values = np.random.default_rng(0).random(50)
    narrow, wide = bootstrap_interval(values, 0.5), bootstrap_interval(values, 0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.confidence == 0.99
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:The BCa confidence interval")
def test_where_no_correction_for_bias_is_defined_the_interval_is_that_of_the_resamples():
    # one resample of two problems: its mean is on one side of 0.5, or is 0.5
    intervals = [bootstrap_interval([0.0, 1.0], resamples=1, seed=seed) for seed in range(8)]
    assert {(i.low, i.high) for i in intervals} <= {(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)}


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf], [[0.5, 0.5]]])
def test_values_without_a_mean_are_refused(values):
    with pytest.raises(ValueError, match=r"one value a problem|not finite"):
        bootstrap_interval(values)


def by_flipping_signs(differences):
    flips = itertools.product([1, -1], repeat=len(differences))
    means = [abs(np.mean(np.multiply(signs, differences))) for signs in flips]
    return np.mean(np.array(means) >= abs(np.mean(differences)) - 1e-12)


def by_enumeration_of_resamples(values_SQ):
    """The means of all resamples of a crossed design, which are equally likely."""
    seeds, problems = np.shape(values_SQ)
    rows = list(itertools.product(range(seeds), repeat=seeds))
    columns = list(itertools.product(range(problems), repeat=problems))
    return np.array([np.mean(np.array(values_SQ)[np.ix_(row, column)]) for row in rows for column in columns])


def share_at_or_below(means, value):
    return np.mean(means <= value + 1e-9)


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (2, 3), (3, 4)])
@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_interval_over_seeds_has_the_quantiles_of_all_resamples(shape, confidence):
    values_SQ = np.random.default_rng(4).random(shape)
    interval = interval_over_seeds(values_SQ, confidence, resamples=4000)
    assert interval.mean == pytest.approx(values_SQ.mean())
    assert interval.confidence == confidence
    means = by_enumeration_of_resamples(values_SQ)
    for bound, share in ((interval.low, (1 - confidence) / 2), (interval.high, (1 + confidence) / 2)):
        # the share jumps at each of the possible means
        assert share_at_or_below(means, bound) >= share - 0.03
        assert share_at_or_below(means, bound - 2e-9) <= share + 0.03
    assert interval.low < interval.mean < interval.high


def test_interval_over_seeds_resamples_seeds_and_problems_as_often_as_asked():
    # seeds that agree leave the problems' variance alone, and the other way round
    by_problem = np.tile(np.random.default_rng(0).random(200), (5, 1))
    by_seed = np.random.default_rng(1).random((40, 1)) + np.zeros((1, 50))
    for values_SQ, values in ((by_problem, by_problem[0]), (by_seed, by_seed[:, 0])):
        interval = interval_over_seeds(values_SQ, resamples=4000)
        assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std() / len(values) ** 0.5, rel=0.06)
    single = interval_over_seeds(by_problem, resamples=1)
    assert single.low == single.high
    first, second = (interval_over_seeds(by_problem, resamples=1300, seed=seed) for seed in (0, 1))
    assert first != second
    assert first == interval_over_seeds(by_problem, resamples=1300) == interval_over_seeds(by_problem, 0.95, 1300, 0)
    assert 0 <= first.low <= first.high <= 1


def test_seeds_may_be_given_as_truth_values_or_in_single_precision():
    single = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    assert interval_over_seeds(single, resamples=99) == interval_over_seeds(single.astype(float), resamples=99)
    right, wrong = [[True, True], [True, False]], [[False, True], [False, False]]
    numbers = np.array(right).astype(int), np.array(wrong).astype(int)
    assert compare_over_seeds(right, wrong, resamples=99) == compare_over_seeds(*numbers, resamples=99)


def test_one_value_leaves_no_interval_over_seeds():
    interval = interval_over_seeds([[0.25]], confidence=0.9)
    assert (interval.mean, interval.confidence) == (0.25, 0.9)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize("values", [[0.5, 1.0], [[[0.5]]], [[]], [[0.5, math.nan]], [[math.inf]]])
def test_what_is_no_matrix_of_numbers_is_refused(values):
    with pytest.raises(ValueError, match="finite values of seeds x problems; got shape"):
        interval_over_seeds(values)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_comparison_over_seeds_flips_seeds(seeds, problems, seed):
    rng = np.random.default_rng(seed)
    a_SQ, b_SQ = rng.integers(0, 5, (2, seeds, problems)) / 4
    compared = compare_over_seeds(a_SQ, b_SQ, resamples=99)
    assert compared.difference == pytest.approx(a_SQ.mean() - b_SQ.mean())
    assert compared.p_value == pytest.approx(by_flipping_signs((a_SQ - b_SQ).mean(axis=1)))
    assert compared.p_value >= compared.lowest_p == 2 / 2**seeds
    assert (compared.seeds, compared.problems) == (seeds, problems)
    interval = interval_over_seeds(a_SQ - b_SQ, resamples=99)
    np.testing.assert_equal((compared.low, compared.high), (interval.low, interval.high))


def test_comparison_over_seeds_is_that_of_its_seed_confidence_and_resamples():
    a_SQ, b_SQ = np.random.default_rng(3).random((2, 14, 6))
    compared = compare_over_seeds(a_SQ, b_SQ, confidence=0.6, resamples=299, seed=5)
    assert compared == compare_over_seeds(a_SQ, b_SQ, confidence=0.6, resamples=299, seed=5)
    interval = interval_over_seeds(a_SQ - b_SQ, confidence=0.6, resamples=299, seed=5)
    assert (compared.low, compared.high) == (interval.low, interval.high)
    others = [compare_over_seeds(a_SQ, b_SQ, resamples=299, seed=seed) for seed in range(8)]
    assert len({other.p_value for other in others}) > 1
    assert len({other.low for other in others}) > 1
    assert compare_over_seeds(a_SQ, b_SQ, resamples=299) == others[0]
    assert compare_over_seeds(a_SQ.tolist(), b_SQ.tolist(), resamples=299) == others[0]
    with pytest.raises(ValueError, match=r"same seeds and problems; got \(14, 6\) and \(14, 5\)"):
        compare_over_seeds(a_SQ, b_SQ[:, :5])


def test_mean_of_sets_weighs_them_equally_and_resamples_within_them():
    rng = np.random.default_rng(0)
    small, large = rng.random(20), rng.random(500)
    mean = mean_of_means([small, large])
    assert mean.mean == pytest.approx((small.mean() + large.mean()) / 2)
    deviation = np.sqrt(small.var() / 20 + large.var() / 500) / 2
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * deviation, rel=0.05)
    assert (mean.low + mean.high) / 2 == pytest.approx(mean.mean, abs=0.1 * deviation)
    assert mean_of_means([[0.5, 0.5], [1.0, 1.0]]) == Interval(0.75, 0.75, 0.75)
    alone = mean_of_means([[0.25], large])
    assert alone.mean == pytest.approx((0.25 + large.mean()) / 2)
    assert np.isnan(alone.low)
    with pytest.raises(ValueError, match="no sets"):
        mean_of_means([])


def test_mean_of_sets_is_that_of_its_seed_confidence_and_resamples():
    sets = [np.random.default_rng(0).random(20), np.random.default_rng(1).random(30)]
    others = [mean_of_means(sets, resamples=199, seed=seed) for seed in range(4)]
    assert len({other.low for other in others}) == 4
    assert mean_of_means(sets, resamples=199) == others[0]
    narrow = mean_of_means(sets, 0.5)
    assert (narrow.confidence, others[0].confidence) == (0.5, 0.95)
    assert others[0].low < narrow.low < narrow.mean < narrow.high < others[0].high
    single = mean_of_means(sets, resamples=1)
    assert single.low == single.high


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=8))
def test_p_value_is_the_share_of_sign_flips_at_least_as_far_out(pairs):
    a, b = np.array(pairs).T / 4
    compared = paired_comparison(a, b)
    assert compared.p_value == pytest.approx(by_flipping_signs(a - b))
    assert compared.n == len(pairs)


def test_comparison_has_a_sign_and_finds_a_difference_that_pairing_shows():
    rng = np.random.default_rng(0)
    difficulty = rng.random(200)
    a, b = difficulty + 0.05 + 0.01 * rng.standard_normal(200), difficulty
    compared = paired_comparison(a, b, resamples=999)
    assert compared.difference == pytest.approx(0.05, abs=0.005)
    assert 0 < compared.low < compared.difference < compared.high
    assert compared.p_value == pytest.approx(2 / 1000)
    mirrored = paired_comparison(b, a, resamples=999)
    assert mirrored.difference == -compared.difference
    unpaired = bootstrap_interval(a)
    assert compared.high - compared.low < 0.1 * (unpaired.high - unpaired.low)


def test_p_values_of_models_that_do_not_differ_are_spread_evenly():
    rng = np.random.default_rng(1)
    p_values = [paired_comparison(rng.random(20), rng.random(20), resamples=199).p_value for _ in range(200)]
    assert 0.02 <= np.mean(np.array(p_values) <= 0.1) <= 0.18


def test_p_value_is_exact_where_few_problems_differ():
    a, b = [0.5] * 100, [0.5] * 97 + [0.25] * 3
    assert paired_comparison(a, b, resamples=99).p_value == 2 / 8


def test_a_comparison_is_that_of_its_seed_confidence_and_resamples():
    rng = np.random.default_rng(2)
    a, b = rng.random(40), rng.random(40)
    compared = paired_comparison(a, b, confidence=0.8, resamples=299, seed=5)
    assert compared == paired_comparison(a, b, confidence=0.8, resamples=299, seed=5)
    assert compared.confidence == 0.8
    interval = bootstrap_interval(a - b, confidence=0.8, resamples=299, seed=5)
    assert (compared.low, compared.high) == (interval.low, interval.high)
    others = [paired_comparison(a, b, resamples=299, seed=seed) for seed in range(8)]
    assert len({other.p_value for other in others}) > 1
    assert len({other.low for other in others}) > 1
    assert paired_comparison(a, b, resamples=299) == others[0]
    # of 299 random flips and the one that was observed
    assert all(other.p_value * 300 == pytest.approx(round(other.p_value * 300)) for other in others)


def test_degenerate_comparisons():
    same = paired_comparison([0.2, 0.7], [0.2, 0.7])
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    single = paired_comparison([1.0], [0.0])
    assert single.difference == 1
    assert math.isnan(single.low)
    assert single.p_value == 1
    with pytest.raises(ValueError, match="same problems"):
        paired_comparison([0.1, 0.2], [0.1])


def test_the_interval_of_problems_is_corrected_for_bias_and_skew():
    from scipy import stats

    values = np.array([0.0] * 14 + [0.1, 0.2, 0.9, 1.0])
    oracle = {
        method: stats.bootstrap(
            (values,), np.mean, n_resamples=999, confidence_level=0.9, method=method, rng=np.random.default_rng(4)
        ).confidence_interval
        for method in ("BCa", "percentile")
    }
    interval = bootstrap_interval(values, confidence=0.9, resamples=999, seed=4)
    assert (interval.low, interval.high) == pytest.approx(tuple(oracle["BCa"]))
    assert tuple(oracle["BCa"]) != pytest.approx(tuple(oracle["percentile"]))
    assert bootstrap_interval(values, resamples=99) == bootstrap_interval(values, resamples=99, seed=0)


def test_intervals_that_need_no_resampling_tell_their_confidence():
    assert bootstrap_interval([0.5], confidence=0.8).confidence == 0.8
    assert bootstrap_interval([0.5, 0.5], confidence=0.8).confidence == 0.8
    alone = mean_of_means([[0.25], [0.5, 1.0]], confidence=0.8)
    assert (alone.mean, alone.confidence) == (0.5, 0.8)
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_problems_may_be_given_as_truth_values():
    right, wrong = [True, True, False, True], [False, True, False, False]
    assert paired_comparison(right, wrong, resamples=99) == paired_comparison(
        [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], resamples=99
    )


def test_how_many_values_are_not_finite_is_told():
    with pytest.raises(ValueError, match="1 of 3 values are not finite"):
        bootstrap_interval([0.5, math.nan, 1.0])


def test_one_resample_over_seeds_is_one():
    values_SQ = 10 + np.random.default_rng(0).random((3, 4))
    interval = interval_over_seeds(values_SQ, resamples=1)
    assert values_SQ.min() <= interval.low == interval.high <= values_SQ.max()
