"""The committed fixture through verl: the same advantages, log-probs and token losses as the core and TRL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from configs import compose

import parity
from ta_grpo.group import joint_advantages
from ta_grpo.tiny import load_policy

VERL_EPS = 1e-6


@pytest.fixture(scope="module")
def fixture() -> dict[str, Any]:
    return parity.load()


@pytest.fixture(scope="module")
def completions(fixture: dict[str, Any]) -> list[dict[str, Any]]:
    return [completion for group in fixture["groups"] for completion in group["completions"]]


def mask_of(completions: list[dict[str, Any]]) -> torch.Tensor:
    return parity.padded([[1.0] * len(completion["ids"]) for completion in completions])


def test_this_transformers_gives_the_same_log_probs(fixture: dict[str, Any]) -> None:
    policy, tokenizer = load_policy()
    for group in fixture["groups"]:
        prompt = parity.prompt_ids(tokenizer, group["question"])
        for completion in group["completions"]:
            computed = parity.log_probs(policy, prompt, completion["ids"])
            assert computed == pytest.approx(completion["log_probs"], abs=1e-4)


def test_verl_gives_its_advantages(fixture: dict[str, Any], completions: list[dict[str, Any]]) -> None:
    """verl's grpo on rows that share a question's uid is the core's joint normalisation."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask_BT = mask_of(completions)
    rewards_BT = torch.zeros_like(mask_BT)
    rewards_BT[torch.arange(len(completions)), mask_BT.sum(1).long() - 1] = torch.tensor(
        [completion["reward"] for completion in completions]
    )
    uids = np.array([group["id"] for group in fixture["groups"] for _ in group["completions"]], dtype=object)
    order = np.random.default_rng(0).permutation(len(uids))  # verl balances lengths: rows of a group lie anywhere
    shuffled = torch.as_tensor(order)
    advantages_BT, _ = compute_grpo_outcome_advantage(rewards_BT[shuffled], mask_BT[shuffled], uids[order])
    computed_B = torch.empty(len(uids))
    computed_B[shuffled] = advantages_BT[:, 0]
    torch.testing.assert_close(advantages_BT, computed_B[shuffled][:, None] * mask_BT[shuffled], rtol=0, atol=1e-6)
    rewards_QK = torch.tensor([[c["reward"] for c in group["completions"]] for group in fixture["groups"]])
    torch.testing.assert_close(
        computed_B.view_as(rewards_QK), joint_advantages(rewards_QK, VERL_EPS), rtol=0, atol=1e-5
    )
    exact_B = torch.tensor([completion["advantage"] for completion in completions])
    torch.testing.assert_close(computed_B, exact_B, rtol=3 * VERL_EPS, atol=1e-5)


def test_verl_gives_its_token_losses(completions: list[dict[str, Any]]) -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    from ta_grpo.verl.mapping import mapped_overrides

    settings = {"per_device_train_batch_size": 8, "epsilon": parity.EPSILON}
    words = [f"{key}={value}" for key, value in mapped_overrides(settings, lambda _: 1).items() if ".clip_ratio" in key]
    config = compose(*words, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "actor_rollout_ref.rollout.n=8")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    mask_BT = mask_of(completions).requires_grad_()
    actor.global_batch_info["batch_num_tokens"] = mask_BT.sum().item()
    actor.global_batch_info["dp_size"] = 1
    advantages_B1 = torch.tensor([[completion["advantage"]] for completion in completions])
    # The loss is the masked sum of the token losses over a count: its gradient by the mask is each of them.
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=parity.padded([completion["old_log_probs"] for completion in completions]),
        log_prob=parity.padded([completion["log_probs"] for completion in completions]),
        advantages=advantages_B1 * mask_BT.detach(),
        response_mask=mask_BT,
        loss_agg_mode="token-mean",
        config=actor,
    )
    loss.backward()
    assert mask_BT.grad is not None
    losses_BT = mask_BT.grad * mask_BT.sum()
    wanted_BT = parity.padded([completion["token_losses"] for completion in completions])
    kept_BT = mask_BT.bool()
    torch.testing.assert_close(losses_BT[kept_BT], wanted_BT[kept_BT], rtol=0, atol=1e-5)
