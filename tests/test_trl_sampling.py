"""What is sampled: which prompts reach the generation engine, how often, in which order, in which form."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from tiny_models import model, tokenizer
from trl_runs import FakeEngine, question_rows, stock_trainer, ta_trainer


def blocks(prompts: list[str]) -> list[tuple[str, int]]:
    """Runs of equal prompts: (prompt, how many)."""
    found: list[tuple[str, int]] = []
    for prompt in prompts:
        if found and found[-1][0] == prompt:
            found[-1] = (prompt, found[-1][1] + 1)
        else:
            found.append((prompt, 1))
    return found


def test_each_phrasing_reaches_the_engine_g_times_in_a_block_of_its_own(tmp_path, monkeypatch):
    engine = FakeEngine(monkeypatch)
    ta_trainer(tmp_path, question_rows(2), gradient_accumulation_steps=2, shuffle_dataset=False).train()
    ((prompts, num_generations),) = engine.calls
    assert num_generations == 2
    assert blocks(prompts) == [(f"<bos>q{i}" + (" " + "r" * n if n else ""), 2) for i in range(2) for n in range(4)]


def test_vllm_server_mode_takes_every_gth_prompt_and_misses_none(tmp_path, monkeypatch):
    """Server mode sends prompts[::num_generations], each to be completed num_generations times."""
    engine = FakeEngine(monkeypatch)
    ta_trainer(tmp_path, question_rows(2), gradient_accumulation_steps=2, shuffle_dataset=False).train()
    ((prompts, num_generations),) = engine.calls
    assert [p for p in prompts[::num_generations] for _ in range(num_generations)] == prompts


@pytest.mark.parametrize(
    ("rephrasings", "expected"),
    [(0, [0, 0, 0, 0]), (1, [0, 1, 0, 1]), (2, [0, 1, 2, 0]), (3, [0, 1, 2, 3]), (5, [0, 1, 2, 3])],
)
def test_fewer_rephrasings_are_dealt_again_and_more_are_left_out(tmp_path, monkeypatch, rephrasings, expected):
    engine = FakeEngine(monkeypatch)
    rows = [*question_rows(1, rephrasings), question_rows(2, 3)[1]]
    trainer = ta_trainer(tmp_path, rows, shuffle_dataset=False, max_steps=2)
    trainer.train()
    prompts, _ = engine.calls[0]
    assert [len(p) - len("<bos>q0 ") if "r" in p else 0 for p in prompts[::2]] == expected
    short = trainer.state.log_history[0]["questions/short_of_rephrasings"]
    assert short == (1.0 if rephrasings < 3 else 0.0)


def test_the_reward_function_is_told_which_prompt_was_sampled(tmp_path, monkeypatch):
    engine = FakeEngine(monkeypatch)
    seen: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts)
        return [float(i) for i in range(len(completions))]

    ta_trainer(tmp_path, question_rows(1), reward=reward).train()
    assert seen["phrasing_index"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [f"<bos>{prompt}" for prompt in seen["sampled_prompt"]] == engine.calls[0][0]
    assert seen["prompts"] == ["q0"] * 8
    assert seen["answer"] == ["0"] * 8


def test_evaluation_samples_the_original_question_alone(tmp_path, monkeypatch):
    engine = FakeEngine(monkeypatch)
    rows = question_rows(4)
    trainer = ta_trainer(tmp_path, rows, eval_dataset=None, num_generations_eval=2, per_device_eval_batch_size=8)
    trainer.evaluate(Dataset.from_list(rows))
    prompts = [prompt for call, _ in engine.calls for prompt in call]
    assert sorted(blocks(prompts)) == [(f"<bos>q{i}", 2) for i in range(4)]
    assert all(num_generations == 2 for _, num_generations in engine.calls)


def test_chat_templates_get_the_same_arguments_for_original_and_rephrasing_and_one_bos(tmp_path, monkeypatch):
    engine = FakeEngine(monkeypatch)
    rows = question_rows(1, conversational=True)
    trainer = ta_trainer(tmp_path, rows, chat_template_kwargs={"mode": "!"})
    trainer.train()
    ((prompts, _),) = engine.calls
    assert prompts[0] == "<bos>u:q0\na!"
    assert prompts[-1] == "<bos>u:q0 rrr\na!"
    for prompt in prompts:
        assert prompt.count("<bos>") == 1
    trained = trainer.recorder.updates[0].passes[0]
    for ids, mask in zip(trained["prompt_ids"], trained["prompt_mask"], strict=True):
        assert trainer._tokenizer.decode(ids[mask.bool()]) == "<bos>u:q0\na!"


def test_the_own_prompt_ratio_trains_under_the_sampled_prompt(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    trainer = ta_trainer(tmp_path, question_rows(1, conversational=True), ratio_anchor="sampled")
    trainer.train()
    trained = trainer.recorder.updates[0].passes[0]
    for ids, mask, phrasing in zip(
        trained["prompt_ids"], trained["prompt_mask"], trained["phrasing_index"].tolist(), strict=True
    ):
        expected = "<bos>u:q0" + (" " + "r" * phrasing if phrasing else "") + "\na:"
        assert trainer._tokenizer.decode(ids[mask.bool()]) == expected


def test_rephrasings_survive_remove_unused_columns(tmp_path, monkeypatch):
    engine = FakeEngine(monkeypatch)
    ta_trainer(tmp_path, question_rows(1), remove_unused_columns=True).train()
    assert len(set(engine.calls[0][0])) == 4


def test_real_generation_continues_the_rephrasing(tmp_path):
    """With transformers' own generation and nothing faked: a model that copies the prompt's last letter."""
    tokens = tokenizer()
    sampled: list[tuple[str, str]] = []

    def reward(completions: Any, sampled_prompt: Any, **columns: Any) -> list[float]:
        sampled.extend(zip(sampled_prompt, completions, strict=True))
        return [float(i % 3) for i in range(len(completions))]

    rows = [{"prompt": "a", "rephrasings": ["ab", "abc", "abcd"]}]
    trainer = ta_trainer(tmp_path, rows, reward=reward, tokenizer=tokens, model=_copier(), max_completion_length=1)
    trainer.train()
    assert sampled == [(p, p[-1]) for p in ("a", "ab", "abc", "abcd") for _ in range(2)]


def _copier() -> Any:
    """A model whose next token is, nearly always, its last one: hidden state = embedding, attention and MLP silent."""
    copier = model(hidden=128)
    with torch.no_grad():
        for name, weights in copier.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weights.zero_()
        copier.model.embed_tokens.weight.copy_(torch.eye(copier.config.vocab_size, 128) * 10)
    return copier


# TRL 1.16 keeps these private: a test that fails by name when a release moves one.
SEAMS = {
    "_generate_single_turn": [
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ],
    "_generate_and_score_completions": ["self", "inputs"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_compute_loss": ["self", "model", "inputs"],
    "_tokenize_prompts": ["self", "prompts"],
    "_log_completion_extra": ["self", "column", "values"],
    "_set_signature_columns_if_needed": ["self"],
    "_get_train_sampler": ["self", "dataset"],
    "_save_checkpoint": ["self", "model", "trial"],
}


@pytest.mark.parametrize("seam", SEAMS)
def test_the_private_methods_of_trl_that_we_override_are_where_they_were(seam):
    method = getattr(GRPOTrainer, seam, None)
    assert method is not None, f"TRL has moved GRPOTrainer.{seam}: adapt ta_grpo/trl/trainer.py"
    parameters = list(inspect.signature(method).parameters)
    assert parameters == SEAMS[seam], f"TRL has changed GRPOTrainer.{seam}: adapt ta_grpo/trl/trainer.py"


def test_the_private_state_of_trl_that_we_read_is_where_it_was(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    trainer = stock_trainer(tmp_path, question_rows(1))
    trainer.train()
    for name in ("_logs", "_metrics", "_step", "_tokenizer", "reward_weights", "num_generations", "pad_to_multiple_of"):
        assert hasattr(trainer, name), f"TRL has moved GRPOTrainer.{name}: adapt ta_grpo/trl"
    assert {"prompt", "completion", "rewards", "advantages", "extra"} <= trainer._logs.keys()
    scored = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    assert list(scored)[:6] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"]
    sampler = inspect.signature(RepeatSampler).parameters
    assert list(sampler) == ["data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed"]
