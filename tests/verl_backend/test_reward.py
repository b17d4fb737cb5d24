"""The accuracy reward in verl's own reward workers: Ray processes that run its naive reward manager."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from configs import with_accuracy_reward
from tensordict import TensorDict

from ta_grpo.models import load_tokenizer
from ta_grpo.tiny import POLICY_DIR
from ta_grpo.verl.reward import NoRewardError, compute_score

DEADLINE = 5.0  # the verifier's default


@pytest.fixture(scope="module")
def workers(ray_cluster: None) -> list[Any]:
    from verl.experimental.reward_loop import RewardLoopManager

    return RewardLoopManager(with_accuracy_reward("reward.num_workers=2")).reward_loop_workers


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(str(POLICY_DIR))


def as_batch(tokenizer: Any, completion: str, gold: str) -> Any:
    """What verl's agent loop hands to a reward worker for one completion."""
    from verl.protocol import DataProto

    prompt = torch.tensor([tokenizer("question").input_ids])
    response = torch.tensor([tokenizer(completion, add_special_tokens=False).input_ids])
    return DataProto(
        batch=TensorDict(
            {
                "prompts": prompt,
                "responses": response,
                "attention_mask": torch.ones(1, prompt.shape[1] + response.shape[1], dtype=torch.int64),
            },
            batch_size=1,
        ),
        non_tensor_batch={
            "data_source": np.array(["tiny"], dtype=object),
            "reward_model": np.array([{"style": "rule", "ground_truth": gold}], dtype=object),
            "extra_info": np.array([{"index": 0}], dtype=object),
            "__num_turns__": np.array([2]),
        },
    )


def score(worker: Any, tokenizer: Any, completion: str, gold: str) -> Any:
    return worker.compute_score.remote(as_batch(tokenizer, completion, gold))


def test_verdicts_arrive_as_rewards(workers: list[Any], tokenizer: Any) -> None:
    import ray

    answers = [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0, "right"),
        (r"so \boxed{3}", "0.5", 0.0, "wrong"),
        ("I do not know", "0.5", 0.0, "no_answer"),
    ]
    for completion, gold, reward, verdict in answers:
        result = ray.get(score(workers[0], tokenizer, completion, gold))
        assert result["reward_score"] == reward
        assert result["reward_extra_info"]["verdict"] == verdict
        assert result["reward_extra_info"]["acc"] == reward


def test_hostile_answers_end_by_the_deadline_and_harm_no_others(workers: list[Any], tokenizer: Any) -> None:
    import ray

    hostile = [
        r"\boxed{9^{9^{9^{9}}}}",
        r"\boxed{" + "1+" * 100_000 + "1}",
        "\x00" * 1000 + r"\boxed{\frac{1}{" + "\x00" * 1000 + "}}",
        r"\boxed{" + "{" * 3000 + "1" + "}" * 3000 + "}",
        r"\boxed{\sqrt{" * 300 + "2" + "}}" * 300,
        r"\boxed{(10^{10^{10}})!}",
    ]
    right = r"\boxed{x^2 - 1}"
    before = ray.get([worker.__ray_call__.remote(lambda _: __import__("os").getpid()) for worker in workers])
    started = time.monotonic()
    jobs = [
        (expected, score(workers[number % 2], tokenizer, completion, r"(x-1)(x+1)"))
        for number, (completion, expected) in enumerate(
            pair for answer in hostile for pair in ((answer, 0.0), (right, 1.0))
        )
    ]
    results = ray.get([job for _, job in jobs])
    took = time.monotonic() - started
    assert [result["reward_score"] for result in results] == [expected for expected, _ in jobs]
    outcomes = {result["reward_extra_info"]["verdict"] for result in results}
    assert outcomes <= {"right", "wrong", "no_answer", "timed_out"}
    assert results[0]["reward_extra_info"]["verdict"] == "timed_out"
    # Twelve answers, two workers with two checking processes or more each; starting those takes seconds.
    assert took < 4 * DEADLINE + 120
    after = ray.get([worker.__ray_call__.remote(lambda _: __import__("os").getpid()) for worker in workers])
    assert after == before


def test_without_a_usable_reference_there_is_no_reward(workers: list[Any], tokenizer: Any) -> None:
    """Not a silent 0: the completion fails, others of the worker do not."""
    import ray

    jobs = [score(workers[0], tokenizer, r"\boxed{4}", gold) for gold in ("", "None", "4")]
    for job in jobs[:2]:
        with pytest.raises(NoRewardError, match="unusable_gold"):
            ray.get(job)
    assert ray.get(jobs[2])["reward_score"] == 1.0


def test_the_function_has_verls_signature() -> None:
    result = compute_score(
        data_source="tiny", solution_str=r"\boxed{4}", ground_truth="4", extra_info={}, reward_router_address=None
    )
    assert result == {"score": 1.0, "acc": 1.0, "verdict": "right", "extracted": "4"}
