"""Compact passes: what gives no gradient is left out, and nothing else changes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from ta_grpo.trl.compact import compact, idle_rows
from tiny_models import model as tiny_model
from tiny_models import save_model
from trl_runs import FakeEngine, question_rows, stock_trainer, ta_trainer, vowel_reward

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


def half_uniform(completions: list[Any], **columns: Any) -> list[float]:
    """Every second question is right whatever is answered: its groups give no gradient."""
    rewards = vowel_reward(completions)
    return [1.0 if int(id_[2:]) % 2 else reward for id_, reward in zip(columns["id"], rewards, strict=True)]


def assert_same_updates(ours: Any, theirs: Any) -> None:
    """Losses and gradients of each update, and the weights at the end, of two runs are equal up to rounding."""
    assert len(ours.recorder.updates) == len(theirs.recorder.updates) > 0
    assert any(update.gradient["model.norm.weight"].abs().max() > 1e-4 for update in theirs.recorder.updates)
    for our_update, their_update in zip(ours.recorder.updates, theirs.recorder.updates, strict=True):
        assert sum(our_update.losses) == pytest.approx(sum(their_update.losses), rel=1e-4, abs=1e-6)
        for name, gradient in their_update.gradient.items():
            torch.testing.assert_close(our_update.gradient[name], gradient, rtol=1e-4, atol=1e-6)
    for name, weights in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weights, rtol=1e-4, atol=1e-5)


def rows_and_columns(trainer: Any) -> tuple[int, int]:
    """Rows of all passes, and their tokens with padding."""
    passes = [rows for update in trainer.recorder.updates for rows in update.passes]
    widths = [rows["prompt_ids"].shape[1] + rows["completion_ids"].shape[1] for rows in passes]
    return sum(len(rows["advantages"]) for rows in passes), sum(
        len(rows["advantages"]) * width for rows, width in zip(passes, widths, strict=True)
    )


def model_with_a_reference(tmp_path: Any) -> Any:
    """The tiny model, which knows where its reference model is to be read."""
    made = tiny_model()
    made.config._name_or_path = str(save_model(tmp_path / "base"))
    return made


def assert_compact_is_the_same(tmp_path: Any, monkeypatch: Any, **settings: Any) -> None:
    """A run with compact passes and one without, on the same completions, half of whose groups are uniform."""
    runs = []
    for compact_passes in (True, False):
        FakeEngine(monkeypatch)
        settings = {"max_steps": 4, "learning_rate": 1e-3, "optim": "sgd"} | settings
        trainer = ta_trainer(
            tmp_path,
            question_rows(12),
            half_uniform,
            model=model_with_a_reference(tmp_path),
            compact_passes=compact_passes,
            **settings,
        )
        torch.manual_seed(0)
        trainer.train()
        runs.append(trainer)
    assert_same_updates(*runs)
    (our_rows, our_tokens), (their_rows, their_tokens) = map(rows_and_columns, runs)
    rows_stay = {"beta", "top_entropy_quantile", "entropy_coef"} & settings.keys()
    if rows_stay:
        assert our_rows == their_rows
        assert our_tokens <= their_tokens
    else:
        assert our_rows < 0.8 * their_rows
        assert our_tokens < 0.7 * their_tokens


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_keeps_its_updates(tmp_path, monkeypatch, loss_type):
    batch = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}
    assert_compact_is_the_same(tmp_path, monkeypatch, loss_type=loss_type, **batch)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize(
    "batch",
    [
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 2},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
    ],
    ids=str,
)
def test_every_layout_of_batches_keeps_its_updates(tmp_path, monkeypatch, loss_type, batch):
    assert_compact_is_the_same(tmp_path, monkeypatch, loss_type=loss_type, **batch)


@pytest.mark.parametrize(
    "settings",
    [
        {"off_prompt_negatives": "drop"},
        {"mask_truncated_completions": True, "max_completion_length": 4},
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "delta": 3.0},
        {"ratio_anchor": "importance"},
        {"ratio_anchor": "sampled", "pull_to_original": 0.5},
        {"beta": 0.1},
        {"top_entropy_quantile": 0.5},
        {"entropy_coef": 0.01},
        {"scale_rewards": "none"},
    ],
    ids=str,
)
def test_every_setting_keeps_its_updates(tmp_path, monkeypatch, settings):
    assert_compact_is_the_same(tmp_path, monkeypatch, gradient_accumulation_steps=2, **settings)


def test_without_rephrasings_it_is_stock_grpo(tmp_path):
    """Real generation: the same draws, since nothing is drawn while a batch is compacted."""
    settings = {"max_steps": 4, "learning_rate": 1e-3, "optim": "sgd", "gradient_accumulation_steps": 4}
    ours = ta_trainer(tmp_path, question_rows(12), half_uniform, num_rephrasings=0, compact_passes=True, **settings)
    stock = stock_trainer(tmp_path, question_rows(12), half_uniform, **settings)
    for trainer in (ours, stock):
        torch.manual_seed(0)
        trainer.train()
    assert_same_updates(ours, stock)
    assert rows_and_columns(ours)[1] < 0.8 * rows_and_columns(stock)[1]


def test_a_batch_without_any_gradient_keeps_one_row_a_pass(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    trainer = ta_trainer(
        tmp_path,
        question_rows(8),
        lambda completions, **_: [1.0] * len(completions),
        compact_passes=True,
        gradient_accumulation_steps=4,
    )
    trainer.train()
    passes = trainer.recorder.updates[0].passes
    assert [len(rows["advantages"]) for rows in passes] == [1, 1, 1, 1]
    assert trainer.recorder.updates[0].losses == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"beta": 0.1}, "beta > 0"), ({"top_entropy_quantile": 0.5}, "top_entropy"), ({"entropy_coef": 0.1}, "bonus")],
)
def test_it_says_when_rows_stay(tmp_path, caplog, settings, reason):
    with caplog.at_level(logging.INFO, "ta_grpo"):
        trained = model_with_a_reference(tmp_path)
        ta_trainer(tmp_path, question_rows(4), model=trained, compact_passes=True, **settings)
    assert reason in caplog.text


def micro_batch(lengths: list[int], advantages: list[float]) -> dict[str, Any]:
    """Rows whose completion ids are their length; one token of prompt for each, behind padding for odd ones."""
    width = 8
    mask = torch.tensor([[int(t < n) for t in range(width)] for n in lengths])
    return {
        "prompt_ids": torch.tensor([[0, 7]] * len(lengths)),
        "prompt_mask": torch.tensor([[0, 1]] * len(lengths)),
        "completion_ids": mask * torch.tensor(lengths)[:, None],
        "completion_mask": mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(99.0),
    }


def alone(counts: torch.Tensor) -> torch.Tensor:
    return counts


def test_rows_are_dealt_by_length_over_a_window_and_trimmed():
    batches = [micro_batch([8, 1, 3, 2], [1, 1, 0, -1]), micro_batch([5, 2, 4, 8], [0, 1, 1, 0])]
    made = compact(batches, loss_type="grpo", window=2, drop_idle=True, trim_prompts=True, most_rows=alone)
    lengths = [rows["completion_mask"].sum(1).tolist() for rows in made]
    assert sorted([*lengths[0], *lengths[1]]) == [1, 2, 2, 3, 4, 8]  # five needed, an idle row fills the last place
    assert max(lengths[0]) <= min(lengths[1])
    for rows, its_lengths in zip(made, lengths, strict=True):
        assert rows["completion_ids"].shape == rows["completion_mask"].shape == (3, max(its_lengths))
        assert rows["completion_ids"].amax(1).tolist() == its_lengths
        assert rows["prompt_ids"].tolist() == [[7]] * 3
        assert rows["loss_scale"] == 3 / 4
        assert rows["num_items_in_batch"] == 99


def test_all_processes_keep_as_many_rows():
    made = compact(
        [micro_batch([3, 2, 1], [0, 0, 1])],
        loss_type="dapo",
        window=1,
        drop_idle=True,
        trim_prompts=False,
        most_rows=lambda counts: counts.clamp(min=2),  # another process needs two
    )
    assert made[0]["advantages"].tolist() == [1, 0]
    assert made[0]["prompt_ids"].shape == (2, 2)
    assert made[0]["loss_scale"] == 1


def test_what_is_idle():
    rows = micro_batch([3, 2, 1], [0, 1, -1])
    rows["completion_mask"][1] = 0
    assert idle_rows(rows).tolist() == [True, True, False]
    rows["tool_mask"] = torch.zeros_like(rows["completion_mask"])
    assert idle_rows(rows).all()


def test_rows_with_images_are_left_alone():
    batches = [micro_batch([3, 2], [0, 0]) | {"pixel_values": torch.zeros(5)}]
    assert compact(batches, loss_type="dapo", window=1, drop_idle=True, trim_prompts=True, most_rows=alone) == batches
