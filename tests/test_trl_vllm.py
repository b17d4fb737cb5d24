"""vLLM through TRL, colocated and as a server: what reaches the engine, and its corrections across prompts."""

from __future__ import annotations

import math
import random

import pytest
import torch

from fake_vllm import RecordingEngine, fake_vllm
from tiny_models import model
from trl_runs import direct_logps, question_rows, ta_trainer, unpadded

MODES = ["colocate", "server"]
START = dict(model().named_parameters())


def prompt_of(question: int, phrasing: int) -> str:
    return f"<bos>q{question}" + (" " + "r" * phrasing if phrasing else "")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rephrasings", [3, 1])
def test_each_phrasing_reaches_the_engine_g_times_in_a_block_and_comes_back_in_slot_order(
    tmp_path, monkeypatch, mode, rephrasings
):
    """Two questions, N = 3, G = 2. The second question may be short of rephrasings: its blocks are dealt again."""
    engine = RecordingEngine()
    rows = [question_rows(1)[0], question_rows(2, rephrasings)[1]]
    with fake_vllm(mode, engine, monkeypatch) as vllm:
        trainer = ta_trainer(tmp_path, rows, gradient_accumulation_steps=2, shuffle_dataset=False, **vllm)
        trainer.train()
    blocks = [(0, n) for n in range(4)] + [(1, n % (rephrasings + 1)) for n in range(4)]
    if mode == "server":  # one request, each prompt with n = G
        assert engine.asked == [(prompt_of(*block), 2) for block in blocks]
    else:
        assert engine.asked == [(prompt_of(*block), 1) for block in blocks for _ in range(2)]
    assert engine.calls == 1
    assert engine.weights_synced > 0
    logs = trainer._logs
    assert list(logs["completion"]) == engine.completions
    assert list(logs["extra"]["phrasing_index"]) == [phrasing for _, phrasing in blocks for _ in range(2)]
    # What is trained is q_0 followed by those completions.
    trained = [
        trainer._tokenizer.decode([*prompt, *completion])
        for update in trainer.recorder.updates
        for rows in update.passes
        for prompt, completion in zip(
            unpadded(rows["prompt_ids"], rows["prompt_mask"]),
            unpadded(rows["completion_ids"], rows["completion_mask"]),
            strict=True,
        )
    ]
    expected = [f"{prompt_of(i // 8, 0)}{text}<eos>" for i, text in enumerate(engine.completions)]
    assert sorted(trained) == sorted(expected)


@pytest.mark.parametrize("mode", MODES)
def test_without_rephrasings_the_engine_gets_the_question_k_times(tmp_path, monkeypatch, mode):
    engine = RecordingEngine()
    with fake_vllm(mode, engine, monkeypatch) as vllm:
        ta_trainer(tmp_path, question_rows(1), num_rephrasings=0, **vllm).train()
    assert engine.asked == ([(prompt_of(0, 0), 8)] if mode == "server" else [(prompt_of(0, 0), 1)] * 8)


def noisy_engine(spread: float) -> RecordingEngine:
    """Its log-probs are those of the starting policy under the prompt it was given, plus noise by token."""

    def logps(prompt_ids: list[int], completion_ids: list[int]) -> list[float]:
        exact_T = direct_logps(START, prompt_ids, completion_ids)
        return [x + noise for x, noise in zip(exact_T.tolist(), noise_of(completion_ids, spread), strict=True)]

    return RecordingEngine(logps)


def noise_of(completion_ids: list[int], spread: float) -> list[float]:
    rng = random.Random(str(completion_ids))
    return [rng.uniform(-spread, spread) for _ in completion_ids]


def direct_weights(completion_ids: list[int], mode: str, spread: float, cap: float) -> list[float]:
    """pi_old(o|q_n) / pi_vllm(o|q_n) of a completion's tokens, masked or truncated as TRL documents it.

    The noise alone: pi_vllm differs from pi_old by nothing else.
    """
    differences = [-noise for noise in noise_of(completion_ids, spread)]
    if mode.startswith("sequence"):
        differences = [sum(differences)] * len(differences)
    ratios = [math.exp(difference) for difference in differences]
    return [min(ratio, cap) if mode.endswith("truncate") else ratio * (ratio <= cap) for ratio in ratios]


SPREAD, CAP = 0.4, 1.3


@pytest.mark.parametrize(
    ("engine_mode", "correction"),
    [("colocate", "sequence_mask"), ("colocate", "token_truncate"), ("server", "sequence_mask")],
)
@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("anchor", ["original", "importance", "sampled"])
def test_the_correction_is_computed_under_the_prompt_that_was_sampled(
    tmp_path, monkeypatch, engine_mode, iterations, anchor, correction
):
    """Weights, old log-probs and loss against direct log-probs, for every anchor."""
    engine = noisy_engine(SPREAD)
    with fake_vllm(engine_mode, engine, monkeypatch) as vllm:
        trainer = ta_trainer(
            tmp_path,
            question_rows(1),
            ratio_anchor=anchor,
            num_iterations=iterations,
            max_steps=iterations,
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_mode=correction,
            vllm_importance_sampling_clip_max=CAP,
            **vllm,
        )
        trainer.train()
    weights = []
    for step, update in enumerate(trainer.recorder.updates):
        (rows,) = update.passes
        surrogate, tokens = 0.0, 0
        for i, completion in enumerate(unpadded(rows["completion_ids"], rows["completion_mask"])):
            length, phrasing = len(completion), int(rows["phrasing_index"][i])
            weights_T = torch.tensor(direct_weights(completion, correction, SPREAD, CAP))
            weights += weights_T.tolist()
            ratio_T = rows["importance_sampling_ratio"][i]
            torch.testing.assert_close(ratio_T[:length].expand(length), weights_T, atol=1e-4, rtol=1e-4)
            under = {n: trainer._tokenizer(prompt_of(0, n)[5:])["input_ids"] for n in (0, phrasing)}
            now_T = direct_logps(update.weights, under[phrasing if anchor == "sampled" else 0], completion)
            old_T = direct_logps(START, under[0 if anchor == "original" else phrasing], completion)
            if "old_per_token_logps" in rows:
                torch.testing.assert_close(rows["old_per_token_logps"][i, :length], old_T, atol=1e-5, rtol=0)
            else:  # TA-GRPO spares a forward pass where pi = pi_old
                assert (anchor, iterations, step) == ("original", 1, 0)
            ratio_T, advantage = (now_T - old_T).exp(), rows["advantages"][i].item()
            clipped_T = ratio_T.clamp(0.8, 1.2)
            surrogate += (torch.min(ratio_T * advantage, clipped_T * advantage) * weights_T).sum().item()
            tokens += length
        assert update.losses[0] == pytest.approx(-surrogate / tokens, abs=1e-4)
    assert len(set(weights)) > 2
    if correction == "sequence_mask":
        assert 0 < sum(weight == 0 for weight in weights) < len(weights)


def test_the_kept_share_of_each_phrasing_is_logged(tmp_path, monkeypatch):
    engine = noisy_engine(SPREAD)
    with fake_vllm("colocate", engine, monkeypatch) as vllm:
        trainer = ta_trainer(
            tmp_path,
            question_rows(1),
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_clip_max=CAP,
            **vllm,
        )
        trainer.train()
    (rows,) = trainer.recorder.updates[0].passes
    completions = unpadded(rows["completion_ids"], rows["completion_mask"])
    log = trainer.state.log_history[0]
    for phrasing in range(4):
        mine = [c for c, n in zip(completions, rows["phrasing_index"].tolist(), strict=True) if n == phrasing]
        kept = [len(c) for c in mine if direct_weights(c, "sequence_mask", SPREAD, CAP)[0] > 0]
        assert log[f"sampling/kept/phrasing_{phrasing}"] == pytest.approx(sum(kept) / sum(map(len, mine)))


def test_left_unset_the_correction_is_off_for_the_method_and_nothing_compares_prompts(tmp_path, monkeypatch, caplog):
    engine = noisy_engine(SPREAD)
    with fake_vllm("colocate", engine, monkeypatch) as vllm:
        trainer = ta_trainer(tmp_path, question_rows(1), **vllm)
        trainer.train()
    assert "vllm_importance_sampling_correction is off" in caplog.text
    (rows,) = trainer.recorder.updates[0].passes
    assert "importance_sampling_ratio" not in rows
    assert not any(name.startswith("sampling/") for name in trainer.state.log_history[0])


@pytest.mark.parametrize("use_vllm", [False, True])
def test_with_the_importance_ratio_the_off_policy_mask_measures_the_distance_between_prompts(
    tmp_path, monkeypatch, use_vllm
):
    """Negative completions whose mean log(pi_sampler(o|q_n) / pi(o|q_0)) is above the threshold give no gradient."""
    engine, threshold = noisy_engine(0.0), 1e-3
    with fake_vllm("colocate", engine, monkeypatch) as vllm:
        trainer = ta_trainer(
            tmp_path,
            question_rows(1),
            num_generations=32,
            per_device_train_batch_size=32,
            ratio_anchor="importance",
            off_policy_mask_threshold=threshold,
            **(vllm if use_vllm else {}),
        )
        trainer.train()
    (update,) = trainer.recorder.updates
    (rows,) = update.passes
    surrogate, tokens, dropped = 0.0, 0, []
    for i, completion in enumerate(unpadded(rows["completion_ids"], rows["completion_mask"])):
        phrasing, advantage = int(rows["phrasing_index"][i]), rows["advantages"][i].item()
        log_ratio_T = direct_logps(START, trainer._tokenizer(prompt_of(0, 0)[5:])["input_ids"], completion)
        log_ratio_T -= direct_logps(START, trainer._tokenizer(prompt_of(0, phrasing)[5:])["input_ids"], completion)
        tokens += len(completion)
        if advantage < 0 and -log_ratio_T.mean() > threshold:
            dropped.append(phrasing)
            continue
        ratio_T = log_ratio_T.exp()
        surrogate += torch.min(ratio_T * advantage, ratio_T.clamp(0.8, 1.2) * advantage).sum().item()
    assert dropped
    assert 0 not in dropped
    assert update.losses[0] == pytest.approx(-surrogate / tokens, abs=1e-4)


@pytest.mark.parametrize("anchor", ["original", "importance", "sampled"])
def test_the_kl_term_is_weighted_by_the_ratio_of_the_anchor(tmp_path, monkeypatch, anchor):
    """use_bias_correction_kl: k3 times pi(o|.) / pi_old(o|.), unclipped."""
    from tiny_models import save_model
    from trl_runs import FakeEngine

    FakeEngine(monkeypatch)
    reference, trained = model(seed=1), model()
    trained.config._name_or_path = str(save_model(tmp_path / "base", seed=1))
    trainer = ta_trainer(tmp_path, question_rows(1), ratio_anchor=anchor, beta=0.1, model=trained)
    assert trainer.args.use_bias_correction_kl
    trainer.train()
    (rows,) = trainer.recorder.updates[0].passes
    total, tokens = 0.0, 0
    for i, completion in enumerate(unpadded(rows["completion_ids"], rows["completion_mask"])):
        phrasing = int(rows["phrasing_index"][i])
        under = {n: trainer._tokenizer(prompt_of(0, n)[5:])["input_ids"] for n in (0, phrasing)}
        trained_prompt = under[phrasing if anchor == "sampled" else 0]
        now_T = direct_logps(START, trained_prompt, completion)
        ratio_T = (now_T - direct_logps(START, under[phrasing if anchor != "original" else 0], completion)).exp()
        d_T = direct_logps(dict(reference.named_parameters()), trained_prompt, completion) - now_T
        total += (ratio_T * (d_T.exp() - d_T - 1)).sum().item()
        tokens += len(completion)
    assert trainer.state.log_history[0]["kl"] == pytest.approx(total / tokens, rel=1e-3)
