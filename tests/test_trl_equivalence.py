"""What TA-GRPO must not change: without rephrasings it is stock GRPO, number by number, in every mode of TRL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig

from tiny_models import model, save_model
from trl_runs import FakeEngine, question_rows, same_as_question, stock_trainer, ta_trainer

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


def assert_same_training(ours: Any, stock: Any) -> None:
    """Losses, gradients, logged numbers and final weights of two runs are equal, bit by bit."""
    for trainer in (ours, stock):
        torch.manual_seed(0)
        trainer.train()
    assert len(ours.recorder.updates) == len(stock.recorder.updates) > 0
    for ours_update, stock_update in zip(ours.recorder.updates, stock.recorder.updates, strict=True):
        assert ours_update.losses == stock_update.losses
        assert ours_update.gradient.keys() == stock_update.gradient.keys()
        for name, gradient in stock_update.gradient.items():
            assert torch.equal(ours_update.gradient[name], gradient), name
    for name, weights in stock.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], weights), name
    times = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    for ours_log, stock_log in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for name, value in stock_log.items():
            if name not in times:
                assert ours_log[name] == pytest.approx(value, nan_ok=True), name


def changed(trainer: Any) -> bool:
    start = dict(model().named_parameters())
    return any(not torch.equal(start[name], weights) for name, weights in trainer.model.named_parameters())


BATCHES = [
    {},
    {"num_iterations": 2},
    {"gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_iterations": 2},
    {"scale_rewards": "batch"},
    {"scale_rewards": "none"},
    {"delta": 3.0, "epsilon_high": 0.28, "mask_truncated_completions": True, "max_completion_length": 60},
    {"top_entropy_quantile": 0.5},
]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("conversational", [False, True], ids=["text", "messages"])
def test_no_rephrasings_is_stock_grpo(tmp_path, batch, conversational):
    rows = question_rows(8, conversational=conversational)
    settings = {"max_steps": 3, **batch}
    ours = ta_trainer(tmp_path, rows, num_rephrasings=0, **settings)
    assert_same_training(ours, stock_trainer(tmp_path, rows, **settings))
    assert changed(ours)


def test_no_rephrasings_is_stock_grpo_with_a_kl_term(tmp_path):
    base = str(save_model(tmp_path / "base"))
    trained = [model(), model()]
    for each in trained:
        each.config._name_or_path = base
    settings = {"max_steps": 3, "beta": 0.1, "num_iterations": 2}
    ours = ta_trainer(tmp_path, question_rows(8), num_rephrasings=0, model=trained[0], **settings)
    assert_same_training(ours, stock_trainer(tmp_path, question_rows(8), model=trained[1], **settings))


@pytest.mark.parametrize("conversational", [False, True], ids=["text", "messages"])
def test_rephrasings_equal_to_the_question_are_stock_grpo(tmp_path, conversational):
    rows = same_as_question(question_rows(8, conversational=conversational))
    settings = {"max_steps": 3, "num_iterations": 2}
    assert_same_training(ta_trainer(tmp_path, rows, **settings), stock_trainer(tmp_path, rows, **settings))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_anchored_method_is_stock_grpo_on_the_completions_of_the_rephrasings(
    tmp_path, monkeypatch, loss_type, level
):
    """Every loss type and ratio level: only the sampler sees a rephrasing, so given its completions nothing differs."""
    rows = question_rows(8)
    settings = {
        "loss_type": loss_type,
        "importance_sampling_level": level,
        "num_iterations": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
    }
    engine = FakeEngine(monkeypatch)
    ours = ta_trainer(tmp_path, rows, **settings)
    ours.train()
    sampled = engine.calls
    engine.calls = []
    stock = stock_trainer(tmp_path, rows, **settings)
    stock.train()
    assert {prompt for prompts, _ in sampled for prompt in prompts} > {
        p for prompts, _ in engine.calls for p in prompts
    }
    assert any(update.losses[0] != 0 for update in stock.recorder.updates)
    for ours_update, stock_update in zip(ours.recorder.updates, stock.recorder.updates, strict=True):
        assert ours_update.losses == stock_update.losses
        for name, gradient in stock_update.gradient.items():
            assert torch.equal(ours_update.gradient[name], gradient), name


@pytest.mark.parametrize("anchor", ["importance", "sampled"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_trains_with_the_other_anchors(tmp_path, monkeypatch, loss_type, level, anchor):
    FakeEngine(monkeypatch)
    trainer = ta_trainer(
        tmp_path,
        question_rows(8),
        ratio_anchor=anchor,
        loss_type=loss_type,
        importance_sampling_level=level,
        max_steps=2,
    )
    trainer.train()
    assert changed(trainer)
    assert all(weights.isfinite().all() for weights in trainer.model.parameters())


@pytest.mark.parametrize("settings", [{}, {"beta": 0.1, "num_iterations": 2}], ids=str)
def test_lora_trains_the_adapters_alone_as_stock_grpo_does(tmp_path, settings):
    rows = same_as_question(question_rows(8))

    def adapters() -> dict[str, Any]:
        torch.manual_seed(0)
        return {"model": model(), "peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}

    ours = ta_trainer(tmp_path, rows, max_steps=3, **settings, **adapters())
    before = {name: weights.clone() for name, weights in ours.model.named_parameters()}
    torch.manual_seed(0)
    stock = stock_trainer(tmp_path, rows, max_steps=3, **settings, **adapters())
    # The adapters' random start is drawn when a trainer is made.
    stock.model.load_state_dict(ours.model.state_dict())
    assert_same_training(ours, stock)
    moved = {name for name, weights in ours.model.named_parameters() if not torch.equal(before[name], weights)}
    assert moved
    assert all("lora_" in name for name in moved)


def test_lora_with_each_anchor(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    for anchor in ("original", "importance", "sampled"):
        trainer = ta_trainer(
            tmp_path,
            question_rows(8),
            ratio_anchor=anchor,
            max_steps=2,
            beta=0.1,
            num_iterations=2,
            peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.train()
        assert all(update.gradient for update in trainer.recorder.updates)


def test_joint_advantages_are_trls_own_numbers(tmp_path, monkeypatch):
    """The pure function and TRL's trainer agree on the same rewards."""
    from ta_grpo.group import joint_advantages

    FakeEngine(monkeypatch)
    trainer = stock_trainer(tmp_path, question_rows(8), gradient_accumulation_steps=4)
    trainer.train()
    rewards_QK = torch.tensor(list(trainer._logs["rewards"]["vowel_reward"])).reshape(-1, 8)
    advantages_QK = torch.tensor(list(trainer._logs["advantages"])).reshape(-1, 8)
    torch.testing.assert_close(joint_advantages(rewards_QK), advantages_QK, atol=1e-5, rtol=1e-5)
