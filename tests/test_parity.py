"""The committed fixture through the core and TRL; ``verl_backend/test_parity_verl.py`` puts it through verl."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl import GRPOTrainer

import parity
from ta_grpo.group import TRL_EPS, joint_advantages
from ta_grpo.tiny import load_policy
from trl_runs import messages, ta_trainer


@pytest.fixture(scope="module")
def fixture() -> dict[str, Any]:
    return parity.load()


def rewards_of(group: dict[str, Any]) -> list[float]:
    return [completion["reward"] for completion in group["completions"]]


def in_the_order_of(inputs: dict[str, torch.Tensor], completions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The completions in the order of a pass's rows, which TRL has shuffled."""
    left = list(completions)
    found = []
    for row_T, kept_T in zip(inputs["completion_ids"], inputs["completion_mask"], strict=True):
        ids = row_T[kept_T.bool()].tolist()
        found.append(left.pop(next(place for place, completion in enumerate(left) if completion["ids"] == ids)))
    assert not left
    return found


ROUNDED = ("log_probs", "old_log_probs", "token_losses")  # their last digits are the processor's


def test_the_fixture_is_what_its_script_makes(fixture):
    made = parity.build()
    pairs = zip(made.pop("groups"), fixture["groups"], strict=True)
    assert made == {name: value for name, value in fixture.items() if name != "groups"}
    for ours, theirs in pairs:
        assert ours | {"completions": None} == theirs | {"completions": None}
        for one, other in zip(ours["completions"], theirs["completions"], strict=True):
            for name in ROUNDED:
                assert one.pop(name) == pytest.approx(other[name], abs=1e-4)
            assert one == {name: value for name, value in other.items() if name not in ROUNDED}


def test_the_fixture_says_something(fixture):
    groups = [group["completions"] for group in fixture["groups"]]
    assert [parity.mixed(completions) for completions in groups] == [True, True, False]
    ratios = [
        torch.tensor(c["log_probs"]).sub(torch.tensor(c["old_log_probs"])).exp() for group in groups for c in group
    ]
    assert min(r.min() for r in ratios) < 1 - parity.EPSILON < 1 + parity.EPSILON < max(r.max() for r in ratios)


@pytest.mark.parametrize("eps", [TRL_EPS, 1e-6])
def test_the_core_gives_its_advantages(fixture, eps):
    for group in fixture["groups"]:
        computed = joint_advantages(torch.tensor([rewards_of(group)]), eps)[0].tolist()
        assert computed == pytest.approx(parity.advantages(rewards_of(group), eps), abs=1e-6)
        assert computed == pytest.approx([c["advantage"] for c in group["completions"]], rel=3 * eps, abs=1e-6)


def test_trl_gives_its_advantages_log_probs_and_token_losses(fixture, tmp_path, monkeypatch):
    policy, tokenizer = load_policy()
    of_prompt: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for group in fixture["groups"]:
        for phrasing, text in enumerate([group["question"], *group["rephrasings"]]):
            ids = tuple(parity.prompt_ids(tokenizer, text))
            of_prompt[ids] = [c for c in group["completions"] if c["phrasing"] == phrasing]
    trained: list[dict[str, Any]] = []

    def replay(trainer: Any, prompt_ids: list[list[int]], *rest: Any) -> tuple[list[list[int]], None]:
        asked = {ids: iter(completions) for ids, completions in of_prompt.items()}
        trained.extend(next(asked[tuple(ids)]) for ids in prompt_ids)
        return [completion["ids"] for completion in trained], None

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        return [completion["reward"] for completion in trained]

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", replay)
    rows = [
        {"prompt": messages(g["question"]), "rephrasings": [messages(text) for text in g["rephrasings"]], "id": g["id"]}
        for g in fixture["groups"]
    ]
    trainer = ta_trainer(
        tmp_path,
        rows,
        reward,
        model=policy,
        tokenizer=tokenizer,
        num_generations=parity.K,
        per_device_train_batch_size=len(rows) * parity.K,
        num_iterations=2,  # so that TRL keeps old log-probs
        epsilon=parity.EPSILON,
        max_completion_length=parity.LENGTH,
        learning_rate=0.0,
    )
    trainer.train()
    inputs = trainer.recorder.updates[0].passes[0]
    trained = in_the_order_of(inputs, trained)
    expected = {name: parity.padded([completion[name] for completion in trained]) for name in ("log_probs", "ids")}
    mask_BT = inputs["completion_mask"].bool()
    for logps_BT in (trainer.recorder.updates[0].logps[0], inputs["old_per_token_logps"]):
        torch.testing.assert_close(logps_BT[mask_BT], expected["log_probs"][mask_BT], rtol=0, atol=1e-4)
    exact_B = torch.tensor([completion["advantage"] for completion in trained])
    torch.testing.assert_close(inputs["advantages"], exact_B, rtol=3 * TRL_EPS, atol=1e-6)

    inputs |= {"old_per_token_logps": parity.padded([c["old_log_probs"] for c in trained]), "advantages": exact_B}
    scores = (expected["log_probs"], torch.zeros_like(expected["log_probs"]), None)
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *args, **kwargs: scores)
    # The loss is the masked sum of the token losses over a count: its gradient by the mask is each of them.
    inputs["completion_mask"] = mask_BT.float().requires_grad_()
    trainer.model.train()
    trainer._compute_loss(trainer.model, inputs).backward()
    losses_BT = inputs["completion_mask"].grad * inputs["num_items_in_batch"]
    wanted_BT = parity.padded([completion["token_losses"] for completion in trained])
    torch.testing.assert_close(losses_BT[mask_BT], wanted_BT[mask_BT], rtol=0, atol=1e-5)
