"""The verb eval, through the real command line, on small models."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripted_endpoint import scripted_endpoint
from ta_grpo.cli import main
from ta_grpo.evaluation import load_evaluation
from test_vllm_sampler import FakeLLM
from tiny_models import save_model


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model, question files, and a finished run of two steps with a checkpoint at each."""
    place = tmp_path_factory.mktemp("eval")
    save_model(place / "model")
    write_questions(place / "sums.jsonl", 5)
    write_questions(place / "more.jsonl", 3)
    (place / "folder").mkdir()
    write_questions(place / "folder" / "sums.jsonl", 2)
    flags = {
        "--model": place / "model",
        "--questions": place / "sums.jsonl",
        "--output-dir": place / "run",
        "--num-rephrasings": 0,
        "--num-generations": 4,
        "--per-device-train-batch-size": 4,
        "--questions-per-step": 1,
        "--max-steps": 2,
        "--save-steps": 1,
        "--max-completion-length": 4,
        "--learning-rate": 0.1,
        "--prompt-template": "Q: {question}",
        "--trl.chat_template_kwargs": "{mode: '>'}",
        "--reward": "random_reward:reward",
    }
    (place / "random_reward.py").write_text(
        "def reward(completions, **columns):\n    return [float(i % 2) for i in range(len(completions))]\n"
    )
    sys.path.insert(0, str(place))
    assert main(["train", *(str(word) for flag in flags.items() for word in flag)]) == 0
    sys.path.remove(str(place))
    return place


def write_questions(path: Path, count: int, shift: int = 0) -> None:
    rows = [{"id": f"s{i}", "question": f"{i}+{i}?", "answer": str(2 * i + shift)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def here(place, tmp_path, monkeypatch) -> Path:
    """A fresh working directory with copies of the files and links to the model and the run."""
    for name in ("sums.jsonl", "more.jsonl"):
        shutil.copy(place / name, tmp_path / name)
    shutil.copytree(place / "folder", tmp_path / "folder")
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "model").symlink_to(place / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ("--num-samples", "4", "--max-new-tokens", "5", "--batch-size", "6")


def evaluate(capsys, target: str, *words: str) -> dict[str, Any]:
    """The JSON of an eval that succeeds."""
    code = main(["eval", target, *words, "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out)


def refused(capsys, *words: str) -> str:
    code = main(["eval", *words])
    shown = capsys.readouterr()
    assert code == 2, shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert shown.err.splitlines()[-1].startswith("ta-grpo: ")
    return shown.err


def meta(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "samples.meta.json").read_text())


def contents(folder: Path) -> dict[str, bytes]:
    """What an evaluation has written, but for the record of when and how."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name not in ("manifest.json", "run.lock")}


# A model


def test_a_model_on_a_file_of_questions(here, capsys):
    shown = evaluate(capsys, "model", "--benchmarks", "sums.jsonl", "--output-dir", "out", *SMALL)
    (one,) = shown["evaluations"]
    assert (one["model"], one["mean"], one["against"]) == ("model", None, None)
    figures = one["benchmarks"]["sums"]
    assert list(figures["pass_at_k"]) == ["1", "2", "4"]
    assert (figures["num_questions"], figures["num_samples"]) == (5, 4)
    assert figures["directory"] == "out/sums"
    assert {path.name for path in (here / "out" / "sums").iterdir()} == {
        *("config.json", "manifest.json", "run.lock", "samples.jsonl", "samples.meta.json"),
        *("verdicts.jsonl", "summary.json"),
    }
    assert len((here / "out" / "sums" / "samples.jsonl").read_text().splitlines()) == 20
    config = json.loads((here / "out" / "sums" / "config.json").read_text())
    assert (config["model"], config["benchmark"], config["backend"]) == ("model", "sums.jsonl", "transformers")
    manifest = json.loads((here / "out" / "sums" / "manifest.json").read_text())
    assert manifest["finished"]
    assert len(manifest["data"]["questions"]) == 64


def test_the_embedded_policy_on_several_sets_as_a_table_and_against_another_seed(here, capsys):
    words = ("--num-samples", "8", "--batch-size", "128", "--limit", "16", "--benchmarks", "tiny/test,tiny/ood")
    assert main(["eval", "tiny", *words, "--output-dir", "a"]) == 0
    shown = capsys.readouterr()
    rows = {line.split("│")[1].strip(): line for line in shown.out.splitlines() if line.startswith("│")}
    assert list(rows) == ["tiny_test", "tiny_ood", "mean"]
    test, ood = (load_evaluation(here / "a" / name) for name in ("tiny_test", "tiny_ood"))
    assert test.pass_at_k[1].mean > ood.pass_at_k[1].mean
    for evaluation, name in ((test, "tiny_test"), (ood, "tiny_ood")):
        interval = evaluation.pass_at_k[8]
        assert f"{100 * interval.mean:.1f} [{100 * interval.low:.1f},\u00a0{100 * interval.high:.1f}]" in rows[name]
    assert f"{50 * (test.pass_at_k[1].mean + ood.pass_at_k[1].mean):.1f} [" in rows["mean"]
    assert "tiny tiny_test: sampling 128/128" in shown.err
    assert "tiny tiny_ood: verifying 128/128" in shown.err
    assert "Loading weights" not in shown.err

    compared = evaluate(capsys, "tiny", *words, "--seed", "1", "--output-dir", "b", "--against", "a")
    gap = compared["evaluations"][0]["against"]["tiny_test"]["1"]
    other = load_evaluation(here / "b" / "tiny_test")
    assert gap["difference"] == pytest.approx(other.pass_at_k[1].mean - test.pass_at_k[1].mean)
    assert gap["low"] <= gap["difference"] <= gap["high"]
    assert 0 < gap["p_value"] <= 1
    mean = compared["evaluations"][0]["mean"]
    assert mean["names"] == ["tiny/test", "tiny/ood"]
    # A single evaluation, or its summary, is taken too.
    for path in ("a/tiny_test", "a/tiny_test/summary.json"):
        again = evaluate(capsys, "tiny", *words, "--seed", "1", "--output-dir", "b", "--against", path)
        assert again["evaluations"][0]["against"] == {"tiny_test": compared["evaluations"][0]["against"]["tiny_test"]}
    assert main(["eval", "tiny", *words, "--seed", "1", "--output-dir", "b", "--against", "a"]) == 0
    assert f"{100 * gap['difference']:+.1f} [" in capsys.readouterr().out


def test_plain_prompts_and_templates(here, capsys):
    words = ("--benchmarks", "sums.jsonl", *SMALL)
    evaluate(capsys, "model", *words, "--output-dir", "raw", "--no-chat-template", "--prompt-template", "{question} =")
    assert meta(here / "raw" / "sums")["conversational"] is False
    assert meta(here / "raw" / "sums")["prompt_template"] == "{question} ="
    evaluate(capsys, "model", *words, "--output-dir", "chat")
    assert meta(here / "chat" / "sums")["conversational"] is True


def test_settings_from_a_file_with_lists(here, capsys):
    (here / "eval.yaml").write_text(
        "benchmarks: [sums.jsonl, more.jsonl]\nks: [4, 1]\nnum_samples: 4\nmax_new_tokens: 5\ntemperature: 0.5\n"
    )
    shown = evaluate(capsys, "model", "--config", "eval.yaml", "--output-dir", "out", "--temperature", "0.75")
    figures = shown["evaluations"][0]["benchmarks"]
    assert list(figures) == ["sums", "more"]
    assert list(figures["more"]["pass_at_k"]) == ["1", "4"]
    assert figures["more"]["settings"]["temperature"] == 0.75


# A run


def test_a_run_is_asked_as_it_was_trained(here, capsys):
    shown = evaluate(capsys, "run", "--benchmarks", "sums.jsonl", "--num-samples", "4")
    assert shown["evaluations"][0]["model"] == "checkpoint-2"
    assert shown["evaluations"][0]["benchmarks"]["sums"]["directory"] == "run/eval/sums"
    asked = meta(here / "run" / "eval" / "sums")
    assert asked["prompt_template"] == "Q: {question}"
    assert asked["chat_template_kwargs"] == {"mode": ">"}
    assert asked["max_new_tokens"] == 4
    words = ("--benchmarks", "sums.jsonl", "--num-samples", "4", "--output-dir", "out")
    evaluate(capsys, "run", *words, "--prompt-template", "{question}", "--max-new-tokens", "3")
    assert meta(here / "out" / "sums")["prompt_template"] == "{question}"
    assert meta(here / "out" / "sums")["max_new_tokens"] == 3


def test_every_checkpoint_of_a_run(here, capsys):
    words = ("--benchmarks", "sums.jsonl,more.jsonl", *SMALL)
    shown = evaluate(capsys, "run", *words, "--every-checkpoint")
    assert [each["model"] for each in shown["evaluations"]] == ["checkpoint-1", "checkpoint-2"]
    first, last = here / "run" / "eval" / "checkpoint-1", here / "run" / "eval"
    assert meta(first / "sums")["model"] != meta(last / "sums")["model"]
    for each in (first, last):
        assert {"sums", "more"} <= {path.name for path in each.iterdir()}
    # What is there is not drawn again: one checkpoint, the last one, and all of them in a table.
    before = {path: path.read_bytes() for path in (here / "run" / "eval").rglob("*.json*")}
    evaluate(capsys, "run/checkpoint-1", *words)
    evaluate(capsys, "run", *words, "--against", "run/eval/checkpoint-1")
    assert main(["eval", "run", *words, "--every-checkpoint"]) == 0
    assert "checkpoint-1 mean" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (here / "run" / "eval").rglob("*.json*")} == before
    evaluate(capsys, "run", *words, "--every-checkpoint", "--output-dir", "out")
    assert (here / "out" / "checkpoint-1" / "sums" / "summary.json").exists()
    assert contents(here / "out" / "checkpoint-2" / "sums") == contents(last / "sums")


def test_the_last_checkpoint_of_an_unfinished_run_has_a_folder_of_its_own(here, capsys):
    manifest = here / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"finished": true', '"finished": false'))
    shutil.copytree(here / "run" / "checkpoint-2", here / "run" / "checkpoint-3")
    (here / "run" / "checkpoint-3" / "checkpoint_complete").unlink()
    evaluate(capsys, "run", "--benchmarks", "sums.jsonl", *SMALL)
    assert (here / "run" / "eval" / "checkpoint-2" / "sums" / "summary.json").exists()
    assert "was not written to its end" in refused(capsys, "run/checkpoint-3", "--benchmarks", "sums.jsonl")
    for path in (here / "run").glob("checkpoint-*/checkpoint_complete"):
        path.unlink()
    assert "no complete checkpoint" in refused(capsys, "run", "--benchmarks", "sums.jsonl")


# Going on, rescoring, refusing to overwrite


def test_a_killed_evaluation_goes_on_and_ends_as_an_unbroken_one(here, capsys):
    words = ["tiny", "--benchmarks", "tiny/test,more.jsonl", "--num-samples", "16", "--limit", "24"]
    words += ["--batch-size", "16", "--max-new-tokens", "40"]
    evaluate(capsys, *words, "--output-dir", "unbroken")
    process = subprocess.Popen(
        [sys.executable, "-m", "ta_grpo.cli", "eval", *words, "--output-dir", "killed"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    samples = here / "killed" / "tiny_test" / "samples.jsonl"
    while not samples.exists() or samples.stat().st_size < 5_000:
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    drawn = samples.read_bytes()
    assert len(drawn) < len((here / "unbroken" / "tiny_test" / "samples.jsonl").read_bytes())
    assert "--resume" in refused(capsys, *words, "--output-dir", "killed")
    told = refused(capsys, *words, "--output-dir", "killed", "--resume", "--temperature", "0.5")
    assert "temperature: 1.0 -> 0.5" in told
    assert samples.read_bytes() == drawn
    evaluate(capsys, *words, "--output-dir", "killed", "--resume")
    for name in ("tiny_test", "more"):
        assert contents(here / "killed" / name) == contents(here / "unbroken" / name)
    manifest = json.loads((here / "killed" / "tiny_test" / "manifest.json").read_text())
    assert len(manifest["attempts"]) == 2


def test_a_finished_evaluation_is_shown_and_never_overwritten(here, capsys, monkeypatch):
    words = ("model", "--benchmarks", "sums.jsonl", "--output-dir", "out", *SMALL)
    first = evaluate(capsys, *words)
    before = contents(here / "out" / "sums")
    with monkeypatch.context() as context:
        context.setattr("ta_grpo.models.load_model", lambda *_: pytest.fail("nothing is left to sample"))
        assert evaluate(capsys, *words) == first
        assert evaluate(capsys, *words, "--resume") == first
    told = refused(capsys, *words, "--seed", "1")
    assert "seed: 0 -> 1" in told
    assert "another --output-dir" in told
    write_questions(here / "sums.jsonl", 5, shift=1)
    assert "sums.jsonl has changed" in refused(capsys, *words)
    write_questions(here / "sums.jsonl", 5)
    assert contents(here / "out" / "sums") == before
    assert "--resume" in refused(capsys, *words, "--ks", "3")
    assert list(
        evaluate(capsys, *words, "--ks", "3", "--resume")["evaluations"][0]["benchmarks"]["sums"]["pass_at_k"]
    ) == ["3"]
    assert contents(here / "out" / "sums")["samples.jsonl"] == before["samples.jsonl"]


def test_rescoring_after_an_answer_was_corrected(here, capsys):
    words = ("tiny", "--benchmarks", "some.jsonl", "--output-dir", "out")
    from ta_grpo.tiny import questions

    rows = [{"id": each.id, "question": each.question, "answer": each.answer} for each in questions("test")[:8]]
    wrong = [row | {"answer": "-1"} for row in rows]
    path = here / "some.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in wrong))
    sampling = ("--num-samples", "8", "--prompt-template", "{question}")
    assert evaluate(capsys, *words, *sampling)["evaluations"][0]["benchmarks"]["some"]["pass_at_k"]["8"]["mean"] == 0
    samples = (here / "out" / "some" / "samples.jsonl").read_bytes()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rescored = evaluate(capsys, *words, "--rescore", "--ks", "1,8")
    figures = rescored["evaluations"][0]["benchmarks"]["some"]["pass_at_k"]
    assert list(figures) == ["1", "8"]
    assert figures["8"]["mean"] > 0
    assert (here / "out" / "some" / "samples.jsonl").read_bytes() == samples
    assert "leave --num-samples out" in refused(capsys, *words, *sampling, "--rescore")
    assert "holds no evaluation to rescore" in refused(
        capsys, "tiny", "--benchmarks", "more.jsonl", "--output-dir", "x", "--rescore"
    )
    for name, field in (("config.json", "ks"), ("samples.meta.json", "num_samples")):
        damaged = here / "out" / "some" / name
        content = damaged.read_text()
        damaged.write_text(content.replace(f'"{field}"', f'"{field}x"'))
        assert f"{name} is damaged: it has no {field}" in refused(capsys, *words, "--rescore")
        damaged.write_text(content)
    lines = samples.splitlines(keepends=True)
    (here / "out" / "some" / "samples.jsonl").write_bytes(b"".join(lines[:16]))
    told = refused(capsys, *words, "--rescore")
    kept = {json.loads(line)["id"] for line in lines[:16]}
    first_lost = next(row["id"] for row in rows if row["id"] not in kept)
    assert f"has lost the samples of 6 questions that summary.json counts, such as {first_lost!r}" in told


def test_a_dry_run_touches_nothing_and_knows_what_is_there(here, capsys):
    words = ("model", "--benchmarks", "sums.jsonl", "--output-dir", "out", *SMALL)
    before = sorted(here.rglob("*"))
    (plan,) = evaluate(capsys, *words, "--dry-run")["evaluations"]
    assert (plan["questions"], plan["completions"], plan["stored"], plan["to_draw"]) == (5, 20, 0, 20)
    assert plan["tokens_at_most"] == 100
    assert sorted(here.rglob("*")) == before
    evaluate(capsys, *words)
    (plan,) = evaluate(capsys, *words, "--dry-run")["evaluations"]
    assert (plan["stored"], plan["to_draw"], plan["tokens_at_most"]) == (20, 0, 0)
    assert main(["eval", *words, "--dry-run"]) == 0
    assert "out/sums" in capsys.readouterr().out


def test_the_papers_protocol_and_what_is_said_beside_it(here, capsys):
    words = ("model", "--benchmarks", "sums.jsonl", "--output-dir", "out", "--preset", "paper", "--dry-run")
    (plan,) = evaluate(capsys, *words)["evaluations"]
    settings = plan["settings"]
    assert (settings["num_samples"], settings["temperature"], settings["top_p"]) == (128, 0.6, 0.95)
    assert settings["max_new_tokens"] == 3072
    assert settings["ks"] == [1, 2, 4, 8, 16, 32, 64, 128]
    (plan,) = evaluate(capsys, *words, "--num-samples", "32", "--ks", "1,32")["evaluations"]
    assert (plan["settings"]["num_samples"], plan["settings"]["ks"]) == (32, [1, 32])
    from ta_grpo.benchmarks import PAPER_BENCHMARKS
    from ta_grpo.evaluation.settings import EvalSettings

    assert EvalSettings(preset="paper").benchmarks == list(PAPER_BENCHMARKS)


GOOD = ("--benchmarks", "sums.jsonl", "--output-dir", "new")
BAD = {
    "no benchmarks": (("model", "--output-dir", "new"), "--benchmarks is missing"),
    "unknown benchmark": (("model", "--output-dir", "new", "--benchmarks", "maths500"), "maths500"),
    "missing file of a benchmark": (("model", "--output-dir", "new", "--benchmarks", "aime24=no.jsonl"), "no.jsonl"),
    "two of one name": (
        ("model", "--output-dir", "new", "--benchmarks", "sums.jsonl,folder/sums.jsonl"),
        "two sets are called sums",
    ),
    "no output directory": (("model", "--benchmarks", "sums.jsonl"), "--output-dir is missing"),
    "missing model": (("./nowhere", *GOOD), "there is no such directory"),
    "checkpoints of a model": (("model", *GOOD, "--every-checkpoint"), "is no run directory"),
    "unknown preset": (("model", *GOOD, "--preset", "papers"), "paper"),
    "unknown backend": (("model", *GOOD, "--backend", "sglang"), "transformers, vllm, endpoint"),
    "address without an endpoint": (("model", *GOOD, "--base-url", "http://h/v1"), "--backend endpoint"),
    "vllm settings without vllm": (("model", *GOOD, "--vllm.dtype", "half"), "--backend vllm"),
    "k above n": (("model", *GOOD, "--num-samples", "4", "--ks", "8"), "pass@8 cannot be estimated from 4 samples"),
    "ks that are no numbers": (("model", *GOOD, "--ks", "1;2"), "whole numbers with commas"),
    "mistyped setting": (("model", *GOOD, "--num-samples", "4.5"), "or a whole number; got '4.5'"),
    "unknown flag": (("model", *GOOD, "--num-sample", "4"), "--num-sample"),
    "greedy with many samples": (("model", *GOOD, "--temperature", "0"), "set num_samples=1"),
    "no tokens": (("model", *GOOD, "--max-new-tokens", "0"), "max_new_tokens must be at least 1; got 0"),
    "no limit": (("model", *GOOD, "--limit", "0"), "limit=0"),
    "no concurrency": (("model", *GOOD, "--concurrency", "0"), "concurrency=0"),
    "too long": (("model", *GOOD), "the model takes 256"),
    "bad template": (("model", *GOOD, "--prompt-template", "no place"), "{question}"),
    "nothing to resume": (("model", *GOOD, "--resume"), "holds no evaluation to resume"),
    "nothing to compare with": (("model", *GOOD, "--against", "folder"), "no finished evaluation of sums"),
    "a run at an endpoint": (("run", *GOOD, "--backend", "endpoint"), "as the server does"),
    "checkpoints at an endpoint": (
        ("served", *GOOD, "--backend", "endpoint", "--every-checkpoint"),
        "an endpoint serves one model",
    ),
    "no key": (("served", *GOOD, "--backend", "endpoint"), "OPENAI_API_KEY"),
    "no server": (
        ("served", *GOOD, "--backend", "endpoint", "--base-url", "http://127.0.0.1:9/v1"),
        "is the server running?",
    ),
    "no vllm": (("model", *GOOD, "--backend", "vllm"), "pip install 'ta-grpo[vllm]'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_request_is_told_with_its_fix(here, monkeypatch, capsys, case):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("ta_grpo.sampling.endpoint._RETRIES", 0)
    words, message = BAD[case]
    assert message in refused(capsys, *words)
    assert not list(here.glob("new/*/samples.jsonl"))


def test_a_comparison_with_other_questions_is_refused_before_sampling(here, capsys):
    evaluate(capsys, "model", "--benchmarks", "sums.jsonl", "--output-dir", "a", *SMALL)
    words = ("model", "--benchmarks", "sums.jsonl", "--output-dir", "b", "--limit", "2", *SMALL)
    assert "has 5 questions and this one 2" in refused(capsys, *words, "--against", "a")
    assert not (here / "b").exists()


# Other backends


def test_an_endpoint_and_a_key_that_stays_secret(here, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    words = ("served-model", "--benchmarks", "sums.jsonl", "--output-dir", "out", "--backend", "endpoint", *SMALL[:4])
    with scripted_endpoint() as endpoint:
        shown = evaluate(capsys, *words, "--base-url", endpoint.url)
        assert {request["model"] for request in endpoint.asked} == {"served-model"}
        assert {request["n"] for request in endpoint.asked} == {4}
    figures = shown["evaluations"][0]["benchmarks"]["sums"]
    assert figures["outcomes"]["no_answer"] == 0
    assert figures["pass_at_k"]["4"]["mean"] == pytest.approx(2 / 5)  # the answers are 0, 1 and 2
    assert evaluate(capsys, *words, "--base-url", "http://elsewhere/v1") == shown
    assert not any(b"sk-secret" in file.read_bytes() for file in (here / "out").rglob("*") if file.is_file())


def test_an_endpoint_that_fails_leaves_what_arrived(here, capsys):
    words = ("m", "--benchmarks", "sums.jsonl", "--output-dir", "out", "--backend", "endpoint", *SMALL)
    with scripted_endpoint() as endpoint:
        endpoint.script = [endpoint.choices, *[(401, "no")] * 5]
        message = refused(capsys, *words, "--base-url", endpoint.url, "--concurrency", "1")
        assert "refuses the key (401)" in message
        asked = sum(request["n"] for request in endpoint.asked[:1])
        endpoint.script, endpoint.asked = [], []
        evaluate(capsys, *words, "--base-url", endpoint.url, "--resume")
        assert sum(request["n"] for request in endpoint.asked) == 20 - asked


def test_vllm_in_this_process(here, capsys, monkeypatch):
    FakeLLM.made = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=SimpleNamespace))
    words = ("--benchmarks", "sums.jsonl", "--backend", "vllm", "--vllm.tensor-parallel-size", "2", *SMALL)
    evaluate(capsys, "run", *words, "--every-checkpoint")
    assert [(Path(made["model"]).name, made["tensor_parallel_size"]) for made in FakeLLM.made] == [
        ("checkpoint-1", 2),
        ("checkpoint-2", 2),
    ]
    asked = meta(here / "run" / "eval" / "checkpoint-1" / "sums")
    assert (asked["backend"], asked["chat_template_kwargs"]) == ("vllm", {"mode": ">"})


def test_progress_is_a_bar_on_a_terminal_and_a_line_now_and_then_elsewhere(monkeypatch):
    from io import StringIO

    from rich.console import Console

    from ta_grpo.evaluation import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    plain, terminal = (Console(file=StringIO(), force_terminal=terminal, width=100) for terminal in (False, True))
    for console in (plain, terminal):
        now[0] = 100.0
        with progress.SamplingProgress("model [set]", console) as tell:
            for done in (0, 10, 20, 30, 100):
                tell("sampling", done, 100)
                now[0] += 10.0
    assert plain.file.getvalue().splitlines() == [
        "model [set]: sampling 0/100",
        "model [set]: sampling 20/100  1.0/s  1:20 left",
        "model [set]: sampling 100/100  2.5/s",
    ]
    assert "model [set]: sampling" in terminal.file.getvalue()
    assert "100/100" in terminal.file.getvalue()


def test_help_imports_no_torch():
    script = "import sys; from ta_grpo.cli import main; main(['eval', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--every-checkpoint" in done.stdout
