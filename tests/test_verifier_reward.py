"""The accuracy reward, as TRL's trainers call it."""

from __future__ import annotations

import pytest

from ta_grpo.errors import UserError
from ta_grpo.verifier import OUTCOMES, accuracy_reward
from test_verifier import boxed
from test_verifier_workers import BOMB

pytestmark = pytest.mark.usefixtures("ended_workers")


def test_reward_of_texts_and_messages() -> None:
    texts = [boxed(12), boxed(13), "none", BOMB, boxed(12)]
    answers = ["12", "12", "12", "x+3", "proof"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in texts]
    for completions in (texts[:3] + texts[4:], messages[:3] + messages[4:], parts[:3] + parts[4:]):
        rewards = accuracy_reward(prompts=["q"] * 4, completions=completions, answer=answers[:3] + answers[4:])
        assert rewards == [1.0, 0.0, 0.0, None]
    assert accuracy_reward(completions=texts, answer=answers) == [1.0, 0.0, 0.0, 0.0, None]
    assert accuracy_reward.__name__ == "accuracy_reward"


def test_reward_reads_the_last_assistant_message() -> None:
    conversation = [
        {"role": "assistant", "content": boxed(1), "tool_calls": []},
        {"role": "tool", "content": boxed(2)},
        {"role": "assistant", "content": boxed(3)},
    ]
    assert accuracy_reward(
        completions=[conversation, [], [{"role": "assistant", "content": None}]], answer=["3"] * 3
    ) == [
        1.0,
        0.0,
        0.0,
    ]


def test_reward_takes_the_box_of_a_solution() -> None:
    solution = r"As \boxed{1} is not possible, the sum is $\boxed{\frac{1}{2}}$."
    assert accuracy_reward(completions=[boxed("0.5"), boxed(1)], solution=[solution, solution]) == [1.0, 0.0]
    assert accuracy_reward(completions=[boxed("0.5")], answer=["0.5"], solution=["7"]) == [1.0]
    assert accuracy_reward(completions=[boxed(3)], answer=[3]) == [1.0]


def test_reward_logs_every_outcome() -> None:
    metrics, extras = {}, {}
    accuracy_reward(
        completions=[boxed(1), boxed(2), "none", boxed(3)],
        answer=["1", "1", "1", None],
        log_metric=metrics.__setitem__,
        log_extra=extras.__setitem__,
        trainer_state=object(),
        completion_ids=[[1]] * 4,
    )
    assert extras == {
        "verdict": ["right", "wrong", "no_answer", "unusable_gold"],
        "extracted": ["1", "2", None, "3"],
    }
    assert metrics == {f"verifier/{outcome}": 0.25 * (outcome not in ("timed_out", "error")) for outcome in OUTCOMES}
    assert sum(metrics.values()) == 1


def test_reward_without_references_names_the_fix() -> None:
    with pytest.raises(UserError, match="rename_column"):
        accuracy_reward(prompts=["q"], completions=[boxed(1)], final_answer=["1"])
    with pytest.raises(UserError, match="2 reference answers"):
        accuracy_reward(completions=[boxed(1)], answer=["1", "2"])


def test_reward_of_nothing() -> None:
    assert accuracy_reward(completions=[], answer=[], log_metric=print, log_extra=lambda *_: None) == []


def test_prose_without_an_answer_is_no_reference() -> None:
    prose = "Janet sells the rest of the eggs at the market every day, and so she makes 18 dollars there."
    assert accuracy_reward(completions=[boxed(18)], solution=[prose]) == [None]
    assert accuracy_reward(completions=[boxed(18)], solution=[prose + "\n#### 18"]) == [1.0]
