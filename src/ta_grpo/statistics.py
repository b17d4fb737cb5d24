"""pass@k, intervals of a mean over problems, and the paired comparison of two models.

Shapes: Q problems, N samples of each, of which c are correct. The problem is the unit of resampling: samples of one
problem are not independent observations of the benchmark.
Source of the estimator: Chen et al. 2021, arXiv 2107.03374, section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import UserError

DEFAULT_RESAMPLES = 9_999


@dataclass(frozen=True)
class Interval:
    """A mean over problems with its confidence interval; ``low`` and ``high`` are NaN where there is none."""

    mean: float
    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True)
class PairedComparison:
    """``difference`` = mean of a - mean of b over the same ``n`` problems, its interval, and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float
    n: int
    confidence: float = 0.95


def pass_at_k(n: int, c: ArrayLike, k: int) -> Any:
    """Unbiased estimate of the chance that at least one of k samples is correct, from c correct ones of n.

        pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod over i = n - c + 1 .. n of (1 - k / i)

    The product has no large numbers in it, and is exactly 0 where n - c < k.

    Args:
        n: samples of each problem.
        c: correct ones, an int or an array of ints of any shape, 0 <= c <= n.
        k: 1 <= k <= n.

    Returns:
        a float for an int, else an array of c's shape.

    Raises:
        UserError: k > n. The value is then unknown, and certainly not 1.
        ValueError: k < 1, or a count outside 0 .. n.
    """
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1; got {k}")
    if k > n:
        raise UserError(f"pass@{k} cannot be estimated from {n} samples a problem; draw at least {k}, or leave it out")
    counts = np.asarray(c)
    if counts.dtype.kind not in "iu":
        raise ValueError(f"correct samples are counted in whole numbers; got {counts.dtype}")
    if counts.size and (counts.min() < 0 or counts.max() > n):
        raise ValueError(f"between 0 and {n} of {n} samples can be correct; got {counts.min()} to {counts.max()}")
    # all_wrong[c] is the chance that all k are wrong: one factor more for each correct sample. The factor of i = k is
    # 0, so that the negative ones after it do not matter.
    all_wrong = np.concatenate([[1.0], np.cumprod(1.0 - k / np.arange(n, 0, -1))])
    estimate = 1.0 - all_wrong[counts]
    return float(estimate) if counts.ndim == 0 else estimate


def pass_at_k_table(n: int, correct_Q: ArrayLike, ks: Iterable[int]) -> dict[int, NDArray[np.float64]]:
    """(Q,) pass@k of each problem, for each k in ascending order.

    Raises:
        UserError, ValueError: see ``pass_at_k``.
    """
    counts_Q = np.atleast_1d(np.asarray(correct_Q))
    return {k: pass_at_k(n, counts_Q, k) for k in sorted(set(ks))}


def bootstrap_interval(
    values_Q: ArrayLike, confidence: float = 0.95, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> Interval:
    """The mean over problems with its bootstrap interval (bias-corrected and accelerated; problems are resampled).

    Degenerate cases: one problem has no interval (NaN). Problems that all have the same value give low = mean = high:
    resampling cannot show what other problems would do, so read it as "not known", not as "certain".

    Args:
        values_Q: (Q,) finite, one value a problem.
        confidence: share of such intervals that should cover the true mean. At 30 problems with skewed difficulty
            the real share is a few points lower.
        resamples: bootstrap samples.
        seed: the same seed gives the same interval.

    Raises:
        ValueError: no values, or values that are not finite numbers.
    """
    values_Q = _finite(values_Q)
    mean = float(values_Q.mean())
    if len(values_Q) == 1:
        return Interval(mean, float("nan"), float("nan"), confidence)
    if values_Q.min() == values_Q.max():
        return Interval(float(values_Q[0]), float(values_Q[0]), float(values_Q[0]), confidence)
    low, high = _bootstrap(values_Q, confidence, resamples, seed)
    return Interval(mean, low, high, confidence)


def mean_of_means(
    groups: Sequence[ArrayLike], confidence: float = 0.95, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> Interval:
    """The unweighted mean of several sets' means, with its percentile bootstrap interval (problems are resampled within
    their sets, which are taken as they are). A set of one problem leaves no interval (NaN).

    Args:
        groups: (Q_i,) finite values of each set.
        confidence, resamples, seed: see ``bootstrap_interval``.

    Raises:
        ValueError: no sets, one without values, or values that are not finite numbers.
    """
    if not groups:
        raise ValueError("the mean of no sets is not defined")
    sets = [_finite(values) for values in groups]
    mean = float(np.mean([values_Q.mean() for values_Q in sets]))
    if min(map(len, sets)) == 1:
        return Interval(mean, float("nan"), float("nan"), confidence)
    rng = np.random.default_rng(seed)
    means_R = np.mean([_resampled_means(values_Q, resamples, rng) for values_Q in sets], axis=0)
    low, high = np.quantile(means_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, float(low), float(high), confidence)


def _resampled_means(values_Q: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(R,) means of resamples. Equal values are drawn together: how many of each kind is multinomial."""
    kinds, counts = np.unique(values_Q, return_counts=True)
    drawn_RV = rng.multinomial(len(values_Q), counts / len(values_Q), size=resamples)
    return drawn_RV @ kinds / len(values_Q)


def paired_comparison(
    a_Q: ArrayLike, b_Q: ArrayLike, confidence: float = 0.95, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> PairedComparison:
    """Compare two models on the same problems: mean(a - b), its bootstrap interval, and a sign-flip test.

    The p-value is two-sided, from flipping the signs of the problems' differences at random (all 2^Q ways where that
    is fewer than ``resamples``): how often chance alone gives a mean difference at least this large. The degenerate
    cases of the interval are those of ``bootstrap_interval``; without any difference the p-value is 1.

    Args:
        a_Q: (Q,) finite, one value a problem.
        b_Q: (Q,) the other model's, in the same order.
        confidence: of the interval.
        resamples: of the bootstrap and of the test.
        seed: the same seed gives the same figures.

    Raises:
        ValueError: different lengths, no values, or values that are not finite numbers.
    """
    a_Q, b_Q = _finite(a_Q), _finite(b_Q)
    if len(a_Q) != len(b_Q):
        raise ValueError(f"a paired comparison needs the same problems on both sides; got {len(a_Q)} and {len(b_Q)}")
    difference_Q = a_Q - b_Q
    interval = bootstrap_interval(difference_Q, confidence, resamples, seed)
    p_value = _sign_flip_p_value(difference_Q, resamples, seed)
    return PairedComparison(interval.mean, interval.low, interval.high, p_value, len(difference_Q), confidence)


@dataclass(frozen=True)
class SeedComparison:
    """``difference`` = mean of a - mean of b over ``seeds`` seeds and ``problems`` problems.

    ``p_value`` is that of a sign-flip test with the seed as its unit; it cannot be below ``lowest_p`` = 2^(1 - seeds).
    """

    difference: float
    low: float
    high: float
    p_value: float
    seeds: int
    problems: int

    @property
    def lowest_p(self) -> float:
        return 2.0 ** (1 - self.seeds)


def interval_over_seeds(
    values_SQ: ArrayLike, confidence: float = 0.95, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> Interval:
    """Mean over S seeds and Q problems, with the percentile bootstrap interval of a crossed design.

    All seeds answer the same problems, so seeds and problems are resampled independently, and a resample's mean is
    that of the rows and columns drawn. One seed (or one problem) leaves the other alone to be resampled: the interval
    then says nothing about seeds; one of both leaves none (NaN).

    Args:
        values_SQ: (S, Q) finite.
        confidence, resamples, seed: see ``bootstrap_interval``.

    Raises:
        ValueError: not a matrix, empty, or values that are not finite numbers.
    """
    values_SQ = np.asarray(values_SQ, dtype=np.float64)
    if values_SQ.ndim != 2 or values_SQ.size == 0 or not np.isfinite(values_SQ).all():
        raise ValueError(f"expected finite values of seeds x problems; got shape {values_SQ.shape}")
    seeds, problems = values_SQ.shape
    mean = float(values_SQ.mean())
    if values_SQ.size == 1:
        return Interval(mean, float("nan"), float("nan"), confidence)
    rng = np.random.default_rng(seed)
    times_RS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means_R = np.empty(resamples)
    for start in range(0, resamples, 500):  # bounds the memory
        part_RS = times_RS[start : start + 500]
        times_RQ = rng.multinomial(problems, np.full(problems, 1 / problems), size=len(part_RS))
        means_R[start : start + 500] = ((part_RS @ values_SQ) * times_RQ).sum(axis=1) / values_SQ.size
    low, high = np.quantile(means_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, float(low), float(high), confidence)


def compare_over_seeds(
    a_SQ: ArrayLike, b_SQ: ArrayLike, confidence: float = 0.95, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> SeedComparison:
    """Compare two arms on the same seeds and problems: the crossed interval of a - b, and a sign-flip test over seeds.

    Args:
        a_SQ, b_SQ: (S, Q), the same seeds and problems in the same order.
        confidence, resamples, seed: see ``bootstrap_interval``.

    Raises:
        ValueError: different shapes; see also ``interval_over_seeds``.
    """
    a_SQ, b_SQ = np.asarray(a_SQ, dtype=np.float64), np.asarray(b_SQ, dtype=np.float64)
    if a_SQ.shape != b_SQ.shape:
        raise ValueError(f"a paired comparison needs the same seeds and problems; got {a_SQ.shape} and {b_SQ.shape}")
    difference_SQ = a_SQ - b_SQ
    interval = interval_over_seeds(difference_SQ, confidence, resamples, seed)
    p_value = _sign_flip_p_value(difference_SQ.mean(axis=1), resamples, seed)
    return SeedComparison(interval.mean, interval.low, interval.high, p_value, *difference_SQ.shape)


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected one value a problem, at least one; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(array))} of {array.size} values are not finite")
    return array


def _bootstrap(values_Q: NDArray[np.float64], confidence: float, resamples: int, seed: int) -> tuple[float, float]:
    from scipy import stats

    def interval(method: Literal["BCa", "percentile"]) -> tuple[float, float]:
        # The batch bounds the memory: resamples * Q numbers would be a gigabyte for a large set.
        low, high = stats.bootstrap(
            (values_Q,),
            np.mean,
            n_resamples=resamples,
            confidence_level=confidence,
            batch=200,
            method=method,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        return float(low), float(high)

    # BCa is undefined where every resample lies on one side of the mean.
    corrected = interval("BCa")
    return corrected if np.isfinite(corrected).all() else interval("percentile")


def _sign_flip_p_value(difference_Q: NDArray[np.float64], resamples: int, seed: int) -> float:
    from scipy import stats

    difference_Q = difference_Q[difference_Q != 0.0]  # flipping these changes nothing
    if len(difference_Q) < 2:
        return 1.0  # both signs of a single difference are equally far out
    test = stats.permutation_test(
        (difference_Q,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        n_resamples=resamples,
        batch=200,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)
