"""The arithmetic of the expanded group, against the equations and their invariances."""

import math
from random import Random

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ta_grpo.group import (
    drop_off_prompt_negatives,
    group_outcomes,
    joint_advantages,
    nearest_group_sizes,
    per_phrasing_advantages,
    phrasing_of_slot,
    signal_metrics,
    uniform_groups,
    variance_share_between_phrasings,
)

rewards = st.lists(st.floats(-10, 10, allow_nan=False, width=32), min_size=2, max_size=24)


def oracle(group: list[float], eps: float) -> list[float]:
    """The equation, in plain Python."""
    mean = math.fsum(group) / len(group)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (len(group) - 1))
    return [(r - mean) / (std + eps) for r in group]


def spread(group: list[float]) -> float:
    return max(group) - min(group)


@given(rewards)
def test_joint_advantages_are_the_equation(group):
    assume(spread(group) > 1e-2)
    actual = joint_advantages(torch.tensor([group], dtype=torch.float64), eps=1e-4)
    torch.testing.assert_close(actual[0], torch.tensor(oracle(group, 1e-4), dtype=torch.float64))


@given(rewards)
def test_mean_zero_and_unit_std(group):
    assume(spread(group) > 1e-2)
    advantages = joint_advantages(torch.tensor([group], dtype=torch.float64), eps=1e-9)
    assert abs(advantages.mean().item()) < 1e-6
    assert advantages.std().item() == pytest.approx(1, abs=1e-4)


@given(rewards, st.randoms())
def test_permuting_completions_permutes_advantages(group, random):
    order = list(range(len(group)))
    random.shuffle(order)
    rewards_QK = torch.tensor([group], dtype=torch.float64)
    torch.testing.assert_close(joint_advantages(rewards_QK[:, order]), joint_advantages(rewards_QK)[:, order])


@given(rewards, st.floats(0.1, 100), st.floats(-100, 100))
def test_affine_invariance_up_to_eps(group, scale, shift):
    assume(spread(group) > 1e-2)
    rewards_QK = torch.tensor([group], dtype=torch.float64)
    torch.testing.assert_close(
        joint_advantages(scale * rewards_QK + shift, eps=1e-9),
        joint_advantages(rewards_QK, eps=1e-9),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, -3.0])
def test_uniform_group_is_exactly_zero(value):
    # float32: the mean of twelve times 0.1 is not 0.1
    rewards_QK = torch.full((2, 12), value)
    assert uniform_groups(rewards_QK).all()
    assert (joint_advantages(rewards_QK) == 0).all()


def test_a_group_of_one_gives_zero_not_its_reward():
    assert joint_advantages(torch.tensor([[5.0]])).tolist() == [[0.0]]
    lone = torch.tensor([[1.0, math.nan, math.nan]])
    assert joint_advantages(lone).tolist() == [[0.0, 0.0, 0.0]]


def test_missing_rewards_take_no_part():
    with_missing = joint_advantages(torch.tensor([[1.0, math.nan, 0.0, 0.0, math.nan]]))
    without = joint_advantages(torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(with_missing[0, [0, 2, 3]], without[0])
    assert with_missing[0, [1, 4]].tolist() == [0.0, 0.0]
    assert joint_advantages(torch.full((1, 4), math.nan)).tolist() == [[0.0] * 4]


@pytest.mark.parametrize("eps", [1e-4, 0.5])
def test_per_phrasing_is_the_equation_on_each_block(eps):
    rewards_QK = torch.rand(3, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    actual = per_phrasing_advantages(rewards_QK, num_phrasings=4, eps=eps)
    for q in range(3):
        for start in range(0, 12, 3):
            block = rewards_QK[q, start : start + 3].tolist()
            assert actual[q, start : start + 3].tolist() == pytest.approx(oracle(block, eps))
    with pytest.raises(ValueError, match="12 rewards a question do not divide into 5"):
        per_phrasing_advantages(rewards_QK, num_phrasings=5)


def test_original_all_right_rephrasings_all_wrong_differ_by_scope():
    rewards_QK = torch.tensor([[1.0] * 4 + [0.0] * 4])
    joint = joint_advantages(rewards_QK)
    assert joint[0].tolist() == pytest.approx(oracle([1.0] * 4 + [0.0] * 4, 1e-4), abs=1e-6)
    assert (per_phrasing_advantages(rewards_QK, 2) == 0).all()


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9))
def test_slots_are_dealt_in_contiguous_blocks(num_phrasings, per_phrasing, available):
    size = num_phrasings * per_phrasing
    dealt = [phrasing_of_slot(slot, size, num_phrasings, available) for slot in range(size)]
    used = min(available, num_phrasings)
    assert dealt == [block % used for block in range(num_phrasings) for _ in range(per_phrasing)]
    assert all(isinstance(phrasing, int) for phrasing in dealt)
    assert [phrasing_of_slot(slot, size, num_phrasings) for slot in range(size)] == [
        slot // per_phrasing for slot in range(size)
    ]
    # a row number of a later group deals the same
    assert [phrasing_of_slot(3 * size + slot, size, num_phrasings, available) for slot in range(size)] == dealt


def test_a_group_that_does_not_divide_names_the_nearest_sizes():
    with pytest.raises(ValueError, match="use 8 or 12"):
        phrasing_of_slot(0, num_generations=10, num_phrasings=4)
    assert nearest_group_sizes(10, 4) == [8, 12]
    assert nearest_group_sizes(3, 4) == [4]
    # one completion has no deviation from its group
    assert nearest_group_sizes(1, 1) == [2]
    assert nearest_group_sizes(2, 1) == [2, 3]
    assert nearest_group_sizes(3, 2) == [2, 4]


@pytest.mark.parametrize(("num_generations", "num_phrasings"), [(8, 0), (0, 4), (0, 0), (-8, 4), (8, -4)])
def test_a_group_of_nothing_is_refused(num_generations, num_phrasings):
    with pytest.raises(ValueError, match="at least 1"):
        phrasing_of_slot(0, num_generations, num_phrasings)


def test_a_question_has_its_original():
    with pytest.raises(ValueError, match="a question has at least one phrasing"):
        phrasing_of_slot(0, 8, 4, available=0)
    assert phrasing_of_slot(7, 8, 4, available=1) == 0


@given(st.lists(st.tuples(st.floats(-3, 3, width=32), st.integers(0, 4)), min_size=1))
@example([(-1.0, 0), (1.0, 0), (-1.0, 1), (-0.5, 2), (0.5, 1)])
def test_off_prompt_negatives_only_are_dropped(completions):
    advantages, phrasings = zip(*completions, strict=True)
    kept = drop_off_prompt_negatives(torch.tensor(advantages), torch.tensor(phrasings))
    assert kept.tolist() == [0.0 if a < 0 and p >= 1 else a for a, p in completions]


def test_outcomes_cover_every_question_once():
    nan = math.nan
    rewards_QK = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [nan, nan], [1.0, nan], [0.0, nan]])
    outcomes = group_outcomes(rewards_QK)
    assert outcomes.all_wrong_Q.tolist() == [True, False, False, False, False, True]
    assert outcomes.all_right_Q.tolist() == [False, True, False, False, True, False]
    assert outcomes.mixed_Q.tolist() == [False, False, True, False, False, False]
    assert outcomes.unscored_Q.tolist() == [False, False, False, True, False, False]
    shares = {"all_wrong": 2 / 6, "all_right": 2 / 6, "mixed": 1 / 6, "unscored": 1 / 6}
    assert outcomes.shares() == pytest.approx(shares)


def test_a_uniform_group_below_zero_is_all_wrong():
    outcomes = group_outcomes(torch.tensor([[-1.0, -1.0], [-1.0, math.nan], [0.5, 0.5], [-1.0, 0.0]]))
    assert outcomes.all_wrong_Q.tolist() == [True, True, False, False]
    assert outcomes.all_right_Q.tolist() == [False, False, True, False]
    assert outcomes.mixed_Q.tolist() == [False, False, False, True]


def test_variance_share_recovers_a_known_split():
    generator = torch.Generator().manual_seed(0)
    # between: variance 1; within: variance 3; so a share of 0.25
    phrasing_effect = torch.randn(4000, 4, 1, generator=generator)
    noise = math.sqrt(3) * torch.randn(4000, 4, 8, generator=generator)
    assert variance_share_between_phrasings(phrasing_effect + noise) == pytest.approx(0.25, abs=0.02)
    assert variance_share_between_phrasings(noise) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("num_questions", "num_phrasings", "per_phrasing"), [(1, 2, 2), (3, 2, 5), (2, 4, 2), (5, 3, 4)]
)
def test_variance_share_is_the_equation(num_questions, num_phrasings, per_phrasing):
    random = Random(0)

    def mean(values):
        return math.fsum(values) / len(values)

    def mean_square(values):
        return math.fsum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)

    rewards = [
        [[random.random() for _ in range(per_phrasing)] for _ in range(num_phrasings)] for _ in range(num_questions)
    ]
    within = mean([mean_square(block) for question in rewards for block in question])
    between = mean([per_phrasing * mean_square([mean(block) for block in question]) for question in rewards])
    variance = (between - within) / per_phrasing
    incomplete = [[[math.nan] + [0.0] * (per_phrasing - 1)] * num_phrasings]
    assert variance_share_between_phrasings(torch.tensor(rewards + incomplete)) == pytest.approx(
        variance / (variance + within), rel=1e-4
    )


@pytest.mark.filterwarnings("error")
def test_variance_share_is_undefined_where_nothing_varies():
    assert math.isnan(variance_share_between_phrasings(torch.zeros(3, 4, 8)))
    assert math.isnan(variance_share_between_phrasings(torch.rand(3, 1, 8)))
    assert math.isnan(variance_share_between_phrasings(torch.rand(3, 4, 1)))
    assert math.isnan(variance_share_between_phrasings(torch.rand(0, 4, 8)))
    assert math.isnan(variance_share_between_phrasings(torch.full((3, 4, 8), math.nan)))
    # all between: each phrasing always right or always wrong
    assert variance_share_between_phrasings(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])) == pytest.approx(1)


def test_signal_metrics_of_a_batch_by_hand():
    nan = math.nan
    rewards_QK = torch.tensor(
        [
            [1.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
            [0.0, 1.0, nan, nan, 1.0, 1.0],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        ]
    )
    # the last question has one rephrasing only, so its third block is the original's again
    phrasing_QK = torch.tensor([[0, 0, 1, 1, 2, 2]] * 3 + [[0, 0, 1, 1, 0, 0]])
    metrics = signal_metrics(rewards_QK, phrasing_QK, torch.tensor([3, 3, 3, 2]), num_phrasings=3)
    complete_QPG = rewards_QK[:2].reshape(2, 3, 2)
    assert metrics == pytest.approx(
        {
            "questions/original/all_wrong": 0.25,
            "questions/original/all_right": 0.5,
            "questions/original/mixed": 0.25,
            "questions/original/unscored": 0.0,
            "questions/joint/all_wrong": 0.0,
            "questions/joint/all_right": 0.25,
            "questions/joint/mixed": 0.75,
            "questions/joint/unscored": 0.0,
            "questions/short_of_rephrasings": 0.25,
            "reward/phrasing_0": 7 / 10,
            "reward/phrasing_1": 2 / 6,
            "reward/phrasing_2": 5 / 6,
            "reward/variance_between_phrasings": variance_share_between_phrasings(complete_QPG),
        }
    )


def test_signal_metrics_without_rephrasings_say_nothing_about_phrasings():
    rewards_QK = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    metrics = signal_metrics(rewards_QK, torch.zeros(2, 2, dtype=torch.int64), torch.ones(2), num_phrasings=1)
    shares = {"all_wrong": 0.0, "all_right": 0.5, "mixed": 0.5, "unscored": 0.0}
    assert metrics == {f"questions/{scope}/{name}": v for scope in ("original", "joint") for name, v in shares.items()}
