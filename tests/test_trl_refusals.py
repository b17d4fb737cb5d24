"""What the trainer and its configuration refuse, each in words that name the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ta_grpo.errors import UserError
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer
from ta_grpo.trl.train_settings import TrainSettings
from tiny_models import model, tokenizer
from trl_runs import COMMON, FakeEngine, messages, question_rows, ta_trainer, vowel_reward


def config(**settings: Any) -> TAGRPOConfig:
    return TAGRPOConfig(output_dir="unused", **(COMMON | settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_generations": 10}, r"num_generations=10 does not divide into .* 4 phrasings; use 8 or 12"),
        ({"num_generations": 3}, r"use 4$"),
        ({"num_generations": 1, "num_rephrasings": 0}, "at least 2"),
        ({"num_rephrasings": -1}, "0 or more"),
        ({"num_rephrasings": 1.5}, "whole number"),
        ({"ratio_anchor": "anchored"}, "use one of original, importance, sampled"),
        ({"advantage_scope": "all"}, "use one of joint, per_phrasing"),
        ({"off_prompt_negatives": "no"}, "use one of keep, drop"),
        ({"num_rephrasings": 0, "off_prompt_negatives": "drop"}, "nothing to act on"),
        ({"advantage_scope": "per_phrasing", "num_generations": 4}, "use num_generations=8 or more"),
        ({"per_device_train_batch_size": 4}, "set gradient_accumulation_steps=2"),
        ({"per_device_train_batch_size": 3}, "set gradient_accumulation_steps=8"),
        ({"per_device_train_batch_size": 4, "steps_per_generation": 3}, "set steps_per_generation=2"),
        ({"pull_to_original": -1.0, "ratio_anchor": "sampled"}, "0 or more"),
        ({"pull_to_original": 1.0}, "ratio_anchor='sampled'"),
        ({"pull_to_original": 1.0, "ratio_anchor": "sampled", "num_rephrasings": 0}, "with rephrasings"),
        ({"pull_to_original": 1.0, "ratio_anchor": "sampled", "loss_type": "grpo"}, "use loss_type='dapo' or 'cispo'"),
        ({"pull_to_original": 1.0, "ratio_anchor": "sampled", "beta": 0.1}, "set beta=0"),
        ({"use_vllm": True, "off_policy_mask_threshold": 0.5}, "because of their prompt, not because"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(UserError, match=message):
        config(**settings)


def test_the_vllm_correction_follows_the_prompts(caplog):
    assert not config().vllm_importance_sampling_correction
    assert config(ratio_anchor="sampled").vllm_importance_sampling_correction
    assert config(num_rephrasings=0).vllm_importance_sampling_correction
    assert config(ratio_anchor="sampled", use_vllm=True, vllm_importance_sampling_correction=True)
    assert not caplog.records
    config(use_vllm=True, vllm_importance_sampling_correction=True)
    assert not caplog.records
    config(use_vllm=True)
    assert "vllm_importance_sampling_correction is off" in caplog.text
    assert "one more forward pass" in caplog.text


def test_the_off_policy_mask_is_refused_only_where_it_would_compare_prompts_by_accident():
    for settings in (
        {},
        {"ratio_anchor": "importance", "use_vllm": True},
        {"ratio_anchor": "sampled", "use_vllm": True},
    ):
        assert config(off_policy_mask_threshold=0.5, **settings).off_policy_mask_threshold == 0.5


def test_a_kl_term_weighted_across_prompts_is_told(caplog):
    config(beta=0.1)
    config(beta=0.1, ratio_anchor="importance", use_bias_correction_kl=False)
    assert not caplog.records
    config(beta=0.1, ratio_anchor="importance")
    assert "single tokens can weigh much" in caplog.text


def test_the_defaults_of_trl_are_kept():
    from dataclasses import fields

    from trl import GRPOConfig

    ours = {field.name: field.default for field in fields(TAGRPOConfig)}
    stock = {field.name: field.default for field in fields(GRPOConfig)}
    changed = {name for name, default in stock.items() if ours[name] != default}
    assert changed == {"num_generations", "vllm_importance_sampling_correction"}
    added = {name: ours[name] for name in ours.keys() - stock.keys()}
    assert added == {
        "num_rephrasings": 3,
        "ratio_anchor": "original",
        "advantage_scope": "joint",
        "off_prompt_negatives": "keep",
        "pull_to_original": 0.0,
        "dynamic_sampling": 0.0,
        "adaptive_rephrasings": False,
        "compact_passes": True,
    }


ROW = question_rows(1)[0]
CHAT = question_rows(1, conversational=True)[0]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([{"question": "x"}], {}, "no column 'prompt'.*question"),
        ([{"prompt": "x"}], {}, "no column 'rephrasings'.*num_rephrasings=0"),
        ([{"prompt": "x", "rephrasings": []}], {}, "no question of the training set has a rephrasing"),
        ([ROW], {"gradient_accumulation_steps": 2}, "has 1 questions, and a generation batch takes 2"),
        ([ROW | {"rephrasings": "other"}], {}, "row 0: 'rephrasings' must be a list"),
        ([ROW | {"rephrasings": ["fine", ""]}], {}, "row 0: rephrasing 2 is ''"),
        ([ROW | {"rephrasings": [messages("x")]}], {}, "row 0: rephrasing 1 .* 'prompt' is text"),
        ([CHAT | {"rephrasings": ["x"]}], {}, "row 0: rephrasing 1 .* 'prompt' is messages"),
        ([ROW | {"prompt": ""}], {}, "row 0: 'prompt' must be text or a list of messages, and not empty"),
        ([ROW | {"image": "x"}], {}, "images are not supported"),
        ([ROW | {"prompt": "<bos>q0"}], {}, "two BOS tokens"),
        ([CHAT], {"tokenizer": tokenizer(chat_template=None)}, "no chat template"),
    ],
    ids=str,
)
def test_training_sets_that_cannot_work(tmp_path, rows, settings, message):
    with pytest.raises(UserError, match=message):
        ta_trainer(tmp_path, rows, **settings)


def test_what_is_left_out_of_an_epoch_and_short_of_rephrasings_is_told(tmp_path, caplog):
    rows = [*question_rows(4), *question_rows(1, rephrasings=1)]
    ta_trainer(tmp_path, rows, gradient_accumulation_steps=2)
    assert "1 of 5 questions are left out of each epoch" in caplog.text
    assert "1 of 5 questions have fewer than num_rephrasings=3 rephrasings (fewest: 1)" in caplog.text
    ta_trainer(tmp_path, [*question_rows(3), ROW | {"rephrasings": None}], gradient_accumulation_steps=2)
    assert "1 of 4 questions have fewer than num_rephrasings=3 rephrasings (fewest: 0)" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt_format": "markdown"}, "'markdown' is not a choice; use messages or text"),
        ({"limit": 0}, "limit=0 must be 1 or more"),
        ({"questions_per_step": -1}, "questions_per_step=-1 must be 1 or more"),
        ({"output_dir": Path()}, "--output-dir is missing"),
    ],
    ids=str,
)
def test_requests_of_the_verb_that_cannot_work(settings, message):
    with pytest.raises(UserError, match=message):
        TrainSettings(**({"model": "tiny", "questions": "tiny/train", "output_dir": Path("run")} | settings))


@pytest.mark.parametrize("feature", ["tools", "rollout_func", "environment_factory"])
def test_features_that_choose_their_own_prompts(tmp_path, feature):
    with pytest.raises(UserError, match=f"{feature}: not supported with rephrasings"):
        TAGRPOTrainer(
            model=model(),
            reward_funcs=vowel_reward,
            args=config(),
            train_dataset=None,
            processing_class=tokenizer(),
            **{feature: [vowel_reward]},
        )


def test_a_stock_configuration(tmp_path):
    from trl import GRPOConfig

    with pytest.raises(UserError, match=r"GRPOConfig; TAGRPOTrainer needs a ta_grpo\.trl\.TAGRPOConfig"):
        TAGRPOTrainer(model=model(), reward_funcs=vowel_reward, args=GRPOConfig(output_dir=str(tmp_path), bf16=False))


def test_streamed_rows_are_checked_as_they_come(tmp_path, monkeypatch):
    from datasets import IterableDataset

    FakeEngine(monkeypatch)
    settings = COMMON | {"max_steps": 1}
    rows = [ROW | {"rephrasings": ["fine", None]}] * 8

    trainer = TAGRPOTrainer(
        model=model(),
        reward_funcs=vowel_reward,
        args=TAGRPOConfig(output_dir=str(tmp_path), **settings),
        train_dataset=IterableDataset.from_generator(lambda: iter(rows)),
        processing_class=tokenizer(),
    )
    with pytest.raises(UserError, match="a row of the training stream: rephrasing 2 is None"):
        trainer.train()
