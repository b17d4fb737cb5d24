"""What is trained: the ratios, advantages, losses and gradients of each reading of the method, against oracles.

The oracle is written from the equations alone: one forward pass a completion, no padding, no TRL.

    loss = - sum_i sum_t min(rho_it A_i, clip(rho_it, 1 - eps, 1 + eps) A_i) / sum_i |o_i|
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from trl_runs import EOS, FakeEngine, direct_logps, question_rows, row_logps, ta_trainer, unpadded, with_weights

EPSILON = 0.2
# (numerator's prompt, denominator's prompt) of each anchor: 0 the original, "n" the one sampled.
PROMPTS = {"original": (0, 0), "importance": (0, "n"), "sampled": ("n", "n")}


def prompt_ids(trainer: Any, rows: list[dict], index: int, phrasing: int) -> list[int]:
    phrasings = [rows[index]["prompt"], *rows[index]["rephrasings"]]
    return trainer._tokenize_prompts([phrasings[phrasing]])[0][0]


def completions_of(update: Any) -> list[tuple[int, list[int], float]]:
    """(phrasing, completion ids, advantage) of every row of an update, in order."""
    found = []
    for rows in update.passes:
        ids = unpadded(rows["completion_ids"], rows["completion_mask"])
        found += list(zip(rows["phrasing_index"].tolist(), ids, rows["advantages"].tolist(), strict=True))
    return found


def question_of(trainer: Any, rows: list[dict], update: Any) -> list[int]:
    """Which question each row of an update belongs to, told by the prompt that the trainer holds for it."""
    by_ids = {
        tuple(prompt_ids(trainer, rows, i, n)): i
        for i in range(len(rows))
        for n in range(len(rows[i]["rephrasings"]) + 1)
    }
    found = []
    for pass_rows in update.passes:
        found += [by_ids[tuple(ids)] for ids in unpadded(pass_rows["prompt_ids"], pass_rows["prompt_mask"])]
    return found


def oracle_loss(trainer: Any, rows: list[dict], update: Any, before: Any, anchor: str, advantages: list[float]) -> Any:
    """The loss of an update as a differentiable number, and the model whose gradient it has."""
    numerator, denominator = PROMPTS[anchor]
    model = with_weights(update.weights)
    surrogate, tokens = torch.tensor(0.0), 0
    for (phrasing, completion, _), question, advantage in zip(
        completions_of(update), question_of(trainer, rows, update), advantages, strict=True
    ):
        under = lambda side: prompt_ids(trainer, rows, question, phrasing if side == "n" else 0)  # noqa: B023, E731
        now_T = row_logps(model, under(numerator), completion)
        old_T = direct_logps(before, under(denominator), completion)
        ratio_T = (now_T - old_T).exp()
        clipped_T = ratio_T.clamp(1 - EPSILON, 1 + EPSILON)
        surrogate = surrogate + torch.min(ratio_T * advantage, clipped_T * advantage).sum()
        tokens += len(completion)
    return -surrogate / tokens, model


def oracle_advantages(
    rewards: list[float], scope: str, negatives: str, phrasings: list[int], group: int
) -> list[float]:
    block = group if scope == "joint" else group // 4
    found = []
    for start in range(0, len(rewards), block):
        part = rewards[start : start + block]
        spread = statistics.stdev(part)
        found += [0.0 if spread == 0 else (r - statistics.mean(part)) / (spread + 1e-4) for r in part]
    if negatives == "drop":
        found = [0.0 if n > 0 and a < 0 else a for n, a in zip(phrasings, found, strict=True)]
    return found


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("anchor", "scope", "negatives"),
    [
        ("original", "joint", "keep"),
        ("importance", "joint", "keep"),
        ("sampled", "joint", "keep"),
        ("original", "per_phrasing", "keep"),
        ("original", "joint", "drop"),
        ("sampled", "per_phrasing", "drop"),
    ],
)
def test_two_updates_on_a_generation_follow_the_equations(
    tmp_path, monkeypatch, anchor, scope, negatives, accumulation
):
    """Loss and gradient of the first and the second update, advantages as used and as logged."""
    FakeEngine(monkeypatch)
    rows = question_rows(accumulation)
    trainer = ta_trainer(
        tmp_path,
        rows,
        ratio_anchor=anchor,
        advantage_scope=scope,
        off_prompt_negatives=negatives,
        num_iterations=2,
        max_steps=2,
        gradient_accumulation_steps=accumulation,
        shuffle_dataset=False,
    )
    trainer.train()
    first, second = trainer.recorder.updates
    logged = trainer._logs
    rewards = logged["rewards"]["vowel_reward"]
    phrasings = logged["extra"]["phrasing_index"]
    expected = oracle_advantages(list(rewards), scope, negatives, list(phrasings), group=8)
    assert len(set(expected)) > 2
    assert list(logged["advantages"]) == pytest.approx(expected, abs=1e-5)
    for update in (first, second):
        # TRL shuffles the rows of a generation over its passes: compare them as sets.
        used = [(trainer._tokenizer.decode(c, skip_special_tokens=True), a) for _, c, a in completions_of(update)]
        for (text, advantage), (text_logged, wanted) in zip(
            sorted(used), sorted(zip(logged["completion"], expected, strict=True)), strict=True
        ):
            assert text == text_logged
            assert advantage == pytest.approx(wanted, abs=1e-5)
        loss, model = oracle_loss(
            trainer, rows, update, first.weights, anchor, [a for _, _, a in completions_of(update)]
        )
        assert sum(update.losses) == pytest.approx(loss.item(), abs=2e-5)
        loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(update.gradient[name], parameter.grad, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("anchor", ["original", "importance", "sampled"])
def test_old_reference_and_current_log_probs_are_those_of_a_direct_forward_pass(tmp_path, monkeypatch, anchor):
    FakeEngine(monkeypatch)
    rows = question_rows(1)
    from tiny_models import model, save_model

    reference = model(seed=0)
    trained = model(seed=0)
    trained.config._name_or_path = str(save_model(tmp_path / "base"))
    trainer = ta_trainer(
        tmp_path,
        rows,
        ratio_anchor=anchor,
        num_iterations=2,
        max_steps=2,
        beta=0.1,
        model=trained,
        shuffle_dataset=False,
    )
    trainer.train()
    start = dict(reference.named_parameters())
    numerator, denominator = PROMPTS[anchor]
    for update in trainer.recorder.updates:
        (inputs,), (current_BT,) = update.passes, update.logps
        for i, (phrasing, completion, _) in enumerate(completions_of(update)):
            length = len(completion)

            def direct(weights: Any, side: Any, phrasing=phrasing, completion=completion) -> torch.Tensor:
                return direct_logps(weights, prompt_ids(trainer, rows, 0, phrasing if side == "n" else 0), completion)

            close = {"atol": 1e-5, "rtol": 0}
            torch.testing.assert_close(inputs["old_per_token_logps"][i, :length], direct(start, denominator), **close)
            torch.testing.assert_close(inputs["ref_per_token_logps"][i, :length], direct(start, numerator), **close)
            torch.testing.assert_close(current_BT[i, :length], direct(update.weights, numerator), **close)


@pytest.mark.parametrize(("anchor", "one_at_first"), [("original", True), ("sampled", True), ("importance", False)])
def test_the_ratio_is_one_at_the_first_update_and_not_at_the_second(tmp_path, monkeypatch, anchor, one_at_first):
    FakeEngine(monkeypatch)
    trainer = ta_trainer(tmp_path, question_rows(1), ratio_anchor=anchor, num_iterations=2, max_steps=2)
    trainer.train()
    ratios = []
    for update in trainer.recorder.updates:
        mask_BT = update.passes[0]["completion_mask"].bool()
        ratios.append((update.logps[0] - update.passes[0]["old_per_token_logps"]).exp()[mask_BT])
    off_prompt_B = trainer.recorder.updates[0].passes[0]["phrasing_index"] > 0
    mask_BT = trainer.recorder.updates[0].passes[0]["completion_mask"].bool()
    on_prompt = (~off_prompt_B[:, None] & mask_BT)[mask_BT]
    assert (ratios[0][on_prompt] - 1).abs().max() < 1e-5
    assert ((ratios[0] - 1).abs().max() < 1e-5) == one_at_first
    assert (ratios[1] - 1).abs().max() > 1e-3


def test_without_old_log_probs_the_ratio_is_one_by_construction(tmp_path, monkeypatch):
    """One update a generation: TRL skips the old forward pass, and the anchor must not bring it back."""
    FakeEngine(monkeypatch)
    trainer = ta_trainer(tmp_path, question_rows(1))
    trainer.train()
    (update,) = trainer.recorder.updates
    assert "old_per_token_logps" not in update.passes[0]
    loss, _ = oracle_loss(
        trainer, question_rows(1), update, update.weights, "original", [a for _, _, a in completions_of(update)]
    )
    assert update.losses[0] == pytest.approx(loss.item(), abs=1e-5)


def test_an_update_whose_gradient_is_not_finite_is_left_out_and_counted(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    trainer = ta_trainer(tmp_path, question_rows(4), max_steps=2, ratio_anchor="importance")
    compute = trainer._compute_loss
    calls = []

    def spoiled(model: Any, inputs: Any) -> Any:
        calls.append(1)
        return compute(model, inputs) * (float("nan") if len(calls) == 1 else 1.0)

    trainer._compute_loss = spoiled
    trainer.train()
    first, second = trainer.recorder.updates
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
    moved = dict(trainer.model.named_parameters())
    assert any(not torch.equal(second.weights[name], moved[name]) for name in moved)
    assert all(parameter.isfinite().all() for parameter in moved.values())
    assert trainer.state.log_history[0]["skipped_steps"] == 1


@pytest.mark.parametrize(
    "batch",
    [
        {"gradient_accumulation_steps": 1},
        {"gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    ],
    ids=str,
)
def test_pulled_completions_are_trained_once_more_under_the_original(tmp_path, monkeypatch, batch):
    """Own-prompt surrogate plus lambda times that of off-prompt successes under q_0, over the same tokens."""
    FakeEngine(monkeypatch)
    weight = 0.5
    rows = question_rows(2)
    trainer = ta_trainer(
        tmp_path,
        rows,
        ratio_anchor="sampled",
        pull_to_original=weight,
        num_iterations=2,
        max_steps=2,
        shuffle_dataset=False,
        **batch,
    )
    trainer.train()
    first, second = trainer.recorder.updates
    logs = trainer._logs
    numbers = [int(name.removeprefix("id")) for name in logs["extra"]["id"]]
    lengths = [len(text) + 1 for text in logs["completion"]]
    pulled = [a > 0 and n > 0 for a, n in zip(logs["advantages"], logs["extra"]["phrasing_index"], strict=True)]
    assert any(pulled)
    share = trainer.state.log_history[0]["completions/pulled_share"]
    assert share == pytest.approx(
        sum(n for n, is_pulled in zip(lengths, pulled, strict=True) if is_pulled) / sum(lengths)
    )
    for update in (first, second):
        model = with_weights(update.weights)
        surrogate, tokens = torch.tensor(0.0), 0
        for question, phrasing, text, advantage in zip(
            numbers, logs["extra"]["phrasing_index"], logs["completion"], logs["advantages"], strict=True
        ):
            completion = [*trainer._tokenizer(text, add_special_tokens=False)["input_ids"], EOS]
            tokens += len(completion)
            terms = [(phrasing, advantage)]
            if phrasing > 0 and advantage > 0:
                terms.append((0, weight * advantage))
            for under, weighted in terms:
                ids = prompt_ids(trainer, rows, question, under)
                ratio_T = (row_logps(model, ids, completion) - direct_logps(first.weights, ids, completion)).exp()
                clipped_T = ratio_T.clamp(1 - EPSILON, 1 + EPSILON)
                surrogate = surrogate + torch.min(ratio_T * weighted, clipped_T * weighted).sum()
        loss = -surrogate / tokens
        assert sum(update.losses) == pytest.approx(loss.item(), abs=2e-5)
        loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(update.gradient[name], parameter.grad, atol=2e-5, rtol=1e-3)


def test_no_row_is_lost_when_pulled_ones_do_not_divide_into_passes():
    from ta_grpo.trl.pull import append_pulled_rows

    output = {
        "prompt_ids": torch.tensor([[5, 6], [7, 8], [9, 10]]),
        "prompt_mask": torch.ones(3, 2),
        "completion_ids": torch.tensor([[1], [2], [3]]),
        "completion_mask": torch.ones(3, 1),
        "advantages": torch.tensor([1.0, 2.0, -1.0]),
        "phrasing_index": torch.tensor([0, 1, 1]),
        "num_items_in_batch": torch.tensor(3),
    }
    original = {"prompt_ids": torch.tensor([[4]] * 3), "prompt_mask": torch.ones(3, 1)}
    joined = append_pulled_rows(output, original, weight=0.5, pad_token_id=0, multiple=3)
    assert joined["prompt_ids"].tolist() == [[5, 6], [7, 8], [9, 10], [0, 4], [0, 4], [0, 4]]
    assert joined["prompt_mask"].tolist()[3:] == [[0, 1]] * 3
    assert joined["advantages"].tolist() == [1, 2, -1, 1, 0, 0]
    assert joined["completion_ids"].flatten().tolist()[3] == 2
    assert joined["completion_mask"].flatten().tolist() == [1, 1, 1, 1, 0, 0]
    assert joined["num_items_in_batch"] == 3
    assert output["advantages"].tolist() == [1, 2, -1]
    assert output["completion_mask"].sum() == 3
