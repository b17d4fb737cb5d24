"""An adaptive phrasing budget: groups end when their rewards differ, and what they save begins other groups."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ta_grpo.errors import UserError
from ta_grpo.group import joint_advantages
from ta_grpo.trl import TAGRPOConfig
from ta_grpo.trl.adaptive import AdaptiveGroup, next_blocks
from trl_runs import FakeEngine, question_rows, ta_trainer, unpadded, vowel_reward

K, P, QUESTIONS_PER_STEP = 8, 4, 4
G = K // P


# The plan of the rounds, without a trainer.


def spend(successes: dict[int, list[bool]], budget: int, multiple: int, others: int) -> list[AdaptiveGroup]:
    """Rounds until the budget is spent; block j of question q is mixed if ``successes[q][j]``, else all wrong."""
    first = budget // P
    groups = [AdaptiveGroup({"q": q}, P) for q in range(first)]
    new = (AdaptiveGroup({"q": q}, P) for q in range(first, first + others))
    left = budget
    while left:
        chosen = next_blocks(groups, new, left, multiple)
        assert chosen
        assert len(chosen) % multiple == 0
        for place in chosen:
            group = groups[place]
            mixed = successes[group.question["q"]][len(group.blocks)]
            group.blocks.append([0.0, 1.0 if mixed else 0.0])
        left -= len(chosen)
    return groups


@given(
    questions=st.integers(1, 6),
    multiple=st.sampled_from([1, 2, 4]),
    others=st.integers(0, 30),
    rate=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_the_budget_is_spent_to_the_last_block_and_no_group_grows_beyond_its_phrasings(
    questions, multiple, others, rate, seed
):
    rng = random.Random(seed)
    successes = {q: [rng.random() < rate for _ in range(P)] for q in range(questions + others)}
    groups = spend(successes, questions * P, multiple, others)
    assert sum(len(group.blocks) for group in groups) == questions * P
    assert all(len(group.blocks) <= P for group in groups)
    # Nobody of the batch is left uniform with phrasings unused.
    assert all(group.spread > 0 or group.room == 0 for group in groups[:questions])


def test_groups_that_are_mixed_at_once_save_half_for_other_questions():
    groups = spend(defaultdict(lambda: [True] * P), budget=16, multiple=1, others=100)
    assert [len(group.blocks) for group in groups] == [2] * 8


def test_stubborn_groups_get_all_their_phrasings_before_others_begin():
    groups = spend(defaultdict(lambda: [False] * P), budget=16, multiple=1, others=100)
    assert [len(group.blocks) for group in groups] == [4] * 4


def test_with_no_other_question_the_least_mixed_groups_go_on():
    groups = [AdaptiveGroup({}, P, [[0.0, 1.0], [0.0, 1.0]]), AdaptiveGroup({}, P, [[0.0, 0.0], [0.0, 1.0]])]
    assert next_blocks(groups, iter(()), left=3) == [1, 1, 0]


def test_rewards_that_are_not_there_make_no_group_mixed():
    assert AdaptiveGroup({}, P, [[math.nan, 1.0], [1.0, 1.0]]).wants == 1
    assert AdaptiveGroup({}, P, [[math.nan, math.nan]] * 2).wants == 1
    assert AdaptiveGroup({}, P, [[math.nan, 1.0], [0.0, 1.0]]).wants == 0


# What ending early does to the gradient: the docstring's equation, by enumeration.


def test_ending_early_changes_weights_and_never_the_sign():
    """G = 1, P = 3: the expected gradient with respect to each phrasing's logit, over all ways a group can go."""
    rates = [0.3, 0.6, 0.1]
    expected, weights = [0.0] * 3, [0.0] * 3
    for rewards in itertools.product([0.0, 1.0], repeat=3):
        asked = 2 if rewards[0] != rewards[1] else 3
        if asked == 2 and rewards[2]:
            continue  # the third is not drawn: count the branch once
        chance = math.prod(p if r else 1 - p for p, r in zip(rates[:asked], rewards, strict=False))
        row = torch.tensor([[*rewards[:asked], *[math.nan] * (3 - asked)]])
        advantages = joint_advantages(row, eps=0.0)[0].tolist()
        assert sum(advantages) == pytest.approx(0, abs=1e-6)
        right = sum(rewards[:asked])
        assert sum(map(abs, advantages)) == pytest.approx(
            2 * math.sqrt(right * (asked - right) * (asked - 1) / asked), abs=1e-6
        )
        for j in range(asked):
            p, r, a = rates[j], rewards[j], advantages[j]
            expected[j] += chance * a * (r - p)  # the score of a logit
            weights[j] += chance * (r * max(a, 0) / p - (1 - r) * min(a, 0) / (1 - p))
    for j, p in enumerate(rates):
        assert weights[j] > 0
        assert expected[j] == pytest.approx(weights[j] * p * (1 - p))  # grad p = p (1 - p)


# In the trainer.


def stubborn_but(mixed: set[str], from_phrasing: int = 0) -> Any:
    """Rewards differ for the questions named, from a phrasing on; all else is wrong."""

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        own = vowel_reward(completions)
        told = zip(columns["id"], columns["phrasing_index"], own, strict=True)
        return [score if id_ in mixed and phrasing >= from_phrasing else 0.0 for id_, phrasing, score in told]

    return reward


def run(tmp_path: Any, monkeypatch: Any, reward: Any, questions: int = 24, **settings: Any) -> Any:
    engine = FakeEngine(monkeypatch)
    rows = settings.pop("rows", None) or question_rows(questions)
    trainer = ta_trainer(
        tmp_path,
        rows,
        reward,
        **{"adaptive_rephrasings": True, "gradient_accumulation_steps": QUESTIONS_PER_STEP} | settings,
    )
    trainer.engine = engine
    trainer.shown = []

    def show(trainer: Any) -> None:
        logs = trainer._logs
        columns = {"advantage": logs["advantages"], "completion": logs["completion"], **logs["extra"]}
        columns["reward"] = next(iter(logs["rewards"].values()))
        trainer.shown.append({name: list(values) for name, values in columns.items()})

    trainer.on_rollouts = show
    torch.manual_seed(0)
    trainer.train()
    return trainer


def groups_of(shown: dict[str, list[Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for values in zip(*shown.values(), strict=True):
        row = dict(zip(shown, values, strict=True))
        groups.setdefault(row["id"], []).append(row)
    return groups


def last_metrics(trainer: Any) -> dict[str, float]:
    return next(log for log in trainer.state.log_history if "loss" in log)


def test_mixed_questions_end_after_two_blocks_and_others_take_their_place(tmp_path, monkeypatch):
    everything = {f"id{i}" for i in range(24)}
    trainer = run(tmp_path, monkeypatch, stubborn_but(everything))
    (shown,) = trainer.shown
    groups = groups_of(shown)
    assert len(shown["id"]) == K * QUESTIONS_PER_STEP
    assert {len(rows) for rows in groups.values()} == {2 * G}
    assert all(Counter(row["phrasing_index"] for row in rows) == {0: G, 1: G} for rows in groups.values())
    assert last_metrics(trainer)["adaptive_rephrasings/questions"] == 2
    assert last_metrics(trainer)["questions/joint/mixed"] == 1


def test_stubborn_questions_are_asked_under_every_phrasing(tmp_path, monkeypatch):
    trainer = run(tmp_path, monkeypatch, stubborn_but(set()))
    groups = groups_of(trainer.shown[0])
    assert {len(rows) for rows in groups.values()} == {K}
    assert all([row["phrasing_index"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3] for rows in groups.values())
    assert last_metrics(trainer)["adaptive_rephrasings/questions"] == 1


@pytest.mark.parametrize("negatives", ["keep", "drop"])
def test_advantages_are_joint_over_what_was_sampled_and_those_that_are_trained(tmp_path, monkeypatch, negatives):
    """The third phrasing rescues every second question."""
    rescued = {f"id{i}" for i in range(0, 24, 2)}
    trainer = run(tmp_path, monkeypatch, stubborn_but(rescued, 2), off_prompt_negatives=negatives, num_iterations=2)
    (shown,) = trainer.shown
    groups = groups_of(shown)
    assert {len(rows) for rows in groups.values()} >= {3 * G, K}
    # Whole groups one after another, each in order of its phrasings, though they were sampled in rounds.
    assert [id_ for id_, _ in itertools.groupby(shown["id"])] == list(groups)
    for rows in groups.values():
        assert [row["phrasing_index"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3][: len(rows)]
    expected: dict[tuple[str, str], set[float]] = defaultdict(set)
    for id_, rows in groups.items():
        rewards = torch.tensor([row["reward"] for row in rows])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for row, advantage in zip(rows, advantages.tolist(), strict=True):
            if negatives == "drop" and row["phrasing_index"] > 0:
                advantage = max(advantage, 0.0)
            assert row["advantage"] == pytest.approx(advantage, abs=1e-4)
            expected[id_, row["completion"]].add(round(advantage, 3))
    seen, tokens = 0, 0
    decode = trainer.engine.tokenizer.decode
    for rows in trainer.recorder.updates[0].passes:
        prompts = unpadded(rows["prompt_ids"], rows["prompt_mask"])
        completions = unpadded(rows["completion_ids"], rows["completion_mask"])
        for prompt, completion, advantage in zip(prompts, completions, rows["advantages"].tolist(), strict=True):
            id_ = "id" + decode(prompt, skip_special_tokens=True)[1:]  # q_0's own: the ratio is anchored
            told = expected[id_, decode(completion, skip_special_tokens=True)]
            assert any(abs(advantage - value) < 2e-3 for value in told)
            seen, tokens = seen + 1, tokens + len(completion)
        assert rows["old_per_token_logps"].shape == rows["completion_ids"].shape
    assert seen == K * QUESTIONS_PER_STEP
    assert {int(rows["num_items_in_batch"]) for rows in trainer.recorder.updates[0].passes} == {tokens}


def test_a_question_short_of_rephrasings_starts_over(tmp_path, monkeypatch):
    short = [row | {"rephrasings": row["rephrasings"][: i % 2 + 1]} for i, row in enumerate(question_rows(24))]
    trainer = run(tmp_path, monkeypatch, stubborn_but(set()), rows=short)
    for id_, rows in groups_of(trainer.shown[0]).items():
        asked = [row["phrasing_index"] for row in rows]
        assert asked == ([0, 0, 1, 1, 2, 2, 0, 0] if int(id_[2:]) % 2 else [0, 0, 1, 1, 0, 0, 1, 1])


def test_the_same_seed_and_step_give_the_same_questions(tmp_path, monkeypatch):
    everything = {f"id{i}" for i in range(24)}
    runs = [run(tmp_path / str(i), monkeypatch, stubborn_but(everything), max_steps=2) for i in range(2)]
    assert runs[0].shown == runs[1].shown


def test_variance_between_phrasings_is_of_those_that_all_were_asked(tmp_path, monkeypatch):
    everything = {f"id{i}" for i in range(24)}
    trainer = run(tmp_path, monkeypatch, stubborn_but(everything))
    assert math.isfinite(last_metrics(trainer)["reward/variance_between_phrasings"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_rephrasings": 1}, "num_rephrasings=2 or more"),
        ({"advantage_scope": "per_phrasing"}, "advantage_scope='joint'"),
        ({"ratio_anchor": "sampled", "pull_to_original": 0.5}, "pull_to_original=0"),
        ({"dynamic_sampling": 2.0}, "dynamic_sampling=0"),
        ({"scale_rewards": "none"}, "scale_rewards='group'"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        TAGRPOConfig(
            output_dir=str(tmp_path), **{"adaptive_rephrasings": True, "num_generations": K, "bf16": False} | settings
        )
