"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ta_grpo.cli import main
from ta_grpo.verifier import close_workers, worker_status
from tiny_models import save_model, tokenizer
from trl_runs import question_rows


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model, a question file and a settings file that work together, and files that do not."""
    place = tmp_path_factory.mktemp("cli")
    save_model(place / "model")
    save_model(place / "base-model")
    tokenizer(chat_template=None).save_pretrained(place / "base-model")
    (place / "base-model" / "chat_template.jinja").unlink()
    questions(place / "questions.jsonl", question_rows(4))
    questions(place / "plain.jsonl", question_rows(4, rephrasings=0))
    (place / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (place / "bad.jsonl").write_text('{"question": "x", "answer": "1"}\n{"question": "", "answer": "2"}\n{"question"\n')
    (place / "empty-model").mkdir()
    (place / "used").mkdir()
    (place / "used" / "notes.txt").write_text("mine")
    (place / "run.yaml").write_text("num_generations: 8\nquestions_per_step: 1\nbeta: 0.0\ntop_k: 5\n")
    (place / "typo.yaml").write_text("num_generation: 8\n")
    (place / "mistyped.yaml").write_text("num_generations: 8.5\nbeta: high\n")
    return place


def questions(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w") as file:
        for row in rows:
            row = dict(row)
            row["question"] = row.pop("prompt")
            file.write(json.dumps(row) + "\n")


GOOD = {
    "--model": "model",
    "--questions": "questions.jsonl",
    "--output-dir": "new",
    "--num-generations": "8",
    "--questions-per-step": "1",
    "--max-steps": "1",
    "--max-completion-length": "4",
}


def train_words(**changes: str | None) -> list[str]:
    """The words of a train command that works, with some changed, added (or with None left out)."""
    flags = GOOD | {f"--{name.replace('__', '.').replace('_', '-')}": value for name, value in changes.items()}
    return ["train", *(word for name, value in flags.items() if value is not None for word in (name, value))]


BAD = {
    "no model": (train_words(model=None), "--model is missing"),
    "no questions": (train_words(questions=None), "--questions is missing"),
    "no output directory": (train_words(output_dir=None), "--output-dir is missing"),
    "missing question file": (train_words(questions="nowhere.jsonl"), "nowhere.jsonl"),
    "unknown set": (train_words(questions="tinny"), "did you mean tiny?"),
    "bad rows": (train_words(questions="bad.jsonl"), "line 3"),
    "missing model": (train_words(model="./nowhere"), "there is no such directory"),
    "missing hub model": (train_words(model="nobody/nothing"), "cannot be loaded"),
    "directory without a model": (train_words(model="empty-model"), "no config.json"),
    "missing gguf file": (train_words(model="nowhere.gguf"), "there is no such file"),
    "cut gguf file": (train_words(model="cut.gguf"), "model cut.gguf cannot be loaded"),
    "missing settings file": (train_words(config="nowhere.yaml"), "there is no file nowhere.yaml"),
    "unknown setting in a file": (train_words(config="typo.yaml"), "did you mean 'num_generations'"),
    "mistyped settings in a file": (train_words(config="mistyped.yaml"), "num_generations must be a whole number"),
    "unknown flag": (train_words(num_generation="8"), "--num-generation"),
    "mistyped flag": (train_words(num_generations="8.5"), "must be a whole number; got '8.5'"),
    "unknown TRL setting": (train_words(trl__tok_k="5"), "did you mean 'top_k'"),
    "mistyped TRL setting": (train_words(trl__top_k="5.5"), "top_k must be a whole number"),
    "TRL setting of ours": (train_words(trl__beta="0.1"), "use --beta"),
    "managed TRL setting": (train_words(trl__output_dir="x"), "use --output-dir"),
    "token on the command line": (train_words(trl__hub_token="hf_secret"), "HF_TOKEN"),
    "TRL's own refusal": (train_words(trl__steps_per_generation="0", questions_per_step=None), "steps_per_generation"),
    "group not divisible": (train_words(num_generations="10"), "use 8 or 12"),
    "no whole group": (
        train_words(questions_per_step=None, gradient_accumulation_steps="1", per_device_train_batch_size="4"),
        "set gradient_accumulation_steps=2",
    ),
    "passes do not divide": (train_words(per_device_train_batch_size="3"), "such as 1"),
    "two ways to say the batch": (train_words(gradient_accumulation_steps="1"), "leave one of them out"),
    "no chat template": (train_words(model="base-model"), "--prompt-format text"),
    "used directory": (train_words(output_dir="used"), "--resume"),
    "output is a file": (train_words(output_dir="questions.jsonl"), "is a file"),
    "no rephrasings": (train_words(questions="plain.jsonl"), "num_rephrasings=0"),
    "too few questions": (train_words(questions_per_step="5"), "has 4 questions, and a generation batch takes 5"),
    "unknown reward module": (train_words(reward="no_such_module:f"), "no_such_module"),
    "unknown reward function": (train_words(reward="json:nothing"), "has no function nothing"),
    "reward of no form": (train_words(reward="exact"), "accuracy or module:function"),
    "unknown anchor": (train_words(ratio_anchor="anchored"), "original, importance, sampled"),
    "bad template": (train_words(prompt_template="no place"), "{question}"),
    "unknown verb": (["tain"], "tain"),
    "wrong number of steps": (["demo", "--steps", "0"], "--steps"),
    "demo into a file": (["demo", "--output-dir", "run.yaml"], "is a file"),
    "used demo directory": (["demo", "--output-dir", "used"], "--resume"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_request_is_told_with_its_fix_and_exit_code_2(place, monkeypatch, capsys, case):
    monkeypatch.chdir(place)
    before = sorted(place.iterdir())
    words, message = BAD[case]
    assert main(words) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("ta-grpo: ")
    assert "Traceback" not in shown.err
    assert "hf_secret" not in shown.err
    assert shown.out == ""
    # TRL makes the (empty) directory of a run when a trainer is made.
    assert [path for path in sorted(place.iterdir()) if path.name != "new"] == before
    assert not (place / "new").exists() or not any((place / "new").iterdir())


def test_a_dry_run_prints_the_arithmetic_and_touches_nothing(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = sorted(place.iterdir())
    words = train_words(max_steps=None, config="run.yaml")
    assert main([*words, "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["num_generations"] == 8
    assert shown["settings"]["trl"] == {"top_k": 5}
    assert shown["batch"]["updates_per_epoch"] == 4
    assert shown["batch"]["completions"] == 3 * 4 * 8
    assert main([*words, "--dry-run"]) == 0
    assert "4 phrasings x 2" in capsys.readouterr().out
    assert sorted(place.iterdir()) == before


def test_a_question_whose_answer_cannot_be_checked_is_not_trained_on(place, monkeypatch, capsys, caplog):
    """No completion of it could be right: sampling it would buy a reward that is never there."""
    monkeypatch.chdir(place)
    rows = question_rows(4)
    rows[1]["answer"] = r"\frac{1}{2"
    questions(place / "one-unusable.jsonl", rows)
    counts = {}
    for reward in ("accuracy", "math:fsum"):
        words = train_words(questions="one-unusable.jsonl", max_steps=None, reward=reward)
        assert main([*words, "--dry-run", "--json"]) == 0
        counts[reward] = json.loads(capsys.readouterr().out)["batch"]["questions"]
    assert counts == {"accuracy": 3, "math:fsum": 4}
    assert "1 of 4 questions are left out" in caplog.text
    assert rows[1]["id"] in caplog.text


def test_the_verifiers_workers_are_there_before_anything_is_sampled(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    rows = question_rows(4)
    rows[2]["answer"] = r"\sqrt{2} + 1"
    questions(place / "algebra.jsonl", rows)
    close_workers()
    assert main([*train_words(questions="algebra.jsonl"), "--dry-run"]) == 0
    assert worker_status().pids


def test_flags_come_before_the_file(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "flags.yaml").write_text("learning_rate: 1e-6\nbeta: 0.5\ntrl:\n  top_p: 0.5\n")
    words = train_words(config="flags.yaml", beta="0.25", trl__top_k="7")
    assert main([*words, "--dry-run", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["beta"], settings["learning_rate"]) == (0.25, 1e-6)
    assert settings["trl"] == {"top_p": 0.5, "top_k": 7}


@pytest.mark.parametrize(
    "batch",
    [
        {"questions_per_step": "3", "max_steps": None, "trl__num_train_epochs": None},
        {"questions_per_step": None, "gradient_accumulation_steps": "2", "max_steps": None},
        {"questions_per_step": "2", "num_iterations": "2", "max_steps": None},
        {"questions_per_step": None, "gradient_accumulation_steps": "2", "trl__steps_per_generation": "4"},
        {"questions_per_step": "2", "max_steps": "7"},
    ],
    ids=str,
)
def test_the_arithmetic_is_the_trainers_own(place, monkeypatch, capsys, tmp_path, batch):
    """What --dry-run foretells is what a run then does."""
    monkeypatch.chdir(place)
    questions(tmp_path / "many.jsonl", question_rows(11))
    words = train_words(
        questions=str(tmp_path / "many.jsonl"), output_dir=str(tmp_path / "run"), num_train_epochs="2", **batch
    )
    (tmp_path / "counting.py").write_text(
        "calls = []\ndef count(completions, **columns):\n"
        "    calls.append(len(completions))\n    return [i % 2 / 1 for i in range(len(completions))]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words += ["--reward", "counting:count"]
    assert main([*words, "--dry-run", "--json"]) == 0
    foretold = json.loads(capsys.readouterr().out)["batch"]
    assert main([*words, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    import counting  # pyright: ignore[reportMissingImports]

    calls = list(counting.calls)
    counting.calls.clear()
    assert done["steps"] == foretold["updates"]
    assert sum(calls) == foretold["completions"]
    assert set(calls) == {foretold["completions_per_generation"]}
    assert foretold["questions"] == 11


def test_a_run_leaves_the_run_directory_of_the_contract(place, monkeypatch, capsys, tmp_path):
    import pyarrow.parquet

    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    run = tmp_path / "run"
    words = train_words(output_dir=str(run), max_steps="2", per_device_train_batch_size="4")
    assert main(words) == 0
    shown = capsys.readouterr()
    assert str(run) in shown.out.replace("\n", "")
    assert "step 2/2" in shown.err
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "manifest.json", "metrics.jsonl", "rollouts", "checkpoint-2"} <= names
    assert "completions" not in names
    config = json.loads((run / "config.json").read_text())
    assert config["num_rephrasings"] == 3
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["finished"]
    assert len(manifest["data"]["questions"]) == 64
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    assert {"reward", "questions/joint/mixed", "verifier/no_answer"} <= metrics[0].keys()
    rollouts = pyarrow.parquet.read_table(run / "rollouts" / "step_00001.parquet").to_pylist()
    assert [row["phrasing_index"] for row in rollouts] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {row["verdict"] for row in rollouts} <= {"right", "wrong", "no_answer"}
    lengths = [row["completion_tokens"] for row in rollouts]
    assert sum(lengths) / 8 == pytest.approx(metrics[0]["completions/mean_length"])
    cut = [row["completion_truncated"] for row in rollouts]
    assert sum(cut) / 8 == pytest.approx(metrics[0]["completions/clipped_ratio"])
    assert all(row["id"] == rollouts[0]["id"] for row in rollouts)
    assert rollouts[0]["sampled_prompt"] == rollouts[0]["prompt"] != rollouts[7]["sampled_prompt"]
    written = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    assert not any(b"hf_secret" in content for content in written)


def test_prompts_as_text_for_a_model_without_a_chat_template(place, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(place)
    words = train_words(model="base-model", output_dir=str(tmp_path / "run"), prompt_format="text")
    assert main(words) == 0


def test_lora_from_the_command_line(place, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    assert main([*train_words(output_dir=str(tmp_path / "run"), lora_r="2"), "--use-peft"]) == 0
    assert (tmp_path / "run" / "checkpoint-1" / "adapter_model.safetensors").exists()


def test_env_tells_what_is_installed_against_the_tested_versions(capsys):
    assert main(["env", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    packages = {package["name"]: package for package in shown["packages"]}
    assert packages["trl"]["state"] == "ok"
    assert packages["trl"]["tested"] == "<1.17,>=1.16"
    assert "pytest" not in packages
    assert main(["env"]) == 0
    assert "transformers" in capsys.readouterr().out


def test_an_interruption_exits_130_and_a_failure_1(place, tmp_path):
    (tmp_path / "breaking.py").write_text(
        "def stop(**columns):\n    raise KeyboardInterrupt\n"
        "def fail(**columns):\n    raise RuntimeError('broken reward')\n"
    )
    for function, code in (("stop", 130), ("fail", 1)):
        words = train_words(output_dir=str(tmp_path / function), reward=f"breaking:{function}")
        done = subprocess.run(
            [sys.executable, "-m", "ta_grpo.cli", *words],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("broken reward" in done.stderr) == (code == 1)
        manifest = json.loads((tmp_path / function / "manifest.json").read_text())
        assert manifest["attempts"][0]["outcome"] in ("interrupted", "failed: RuntimeError")
        assert not manifest["finished"]


def test_help_imports_no_torch():
    script = (
        "import sys; from ta_grpo.cli import main; main(['--help']); main(['train', '--help']);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--num-rephrasings" in done.stdout
    for verb in ("demo", "train", "env"):
        assert verb in done.stdout
