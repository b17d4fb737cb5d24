"""A killed run goes on and ends as an unbroken one: the same questions, completions, numbers and weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from ta_grpo.errors import UserError
from ta_grpo.rundir import COMPLETE_MARK, checkpoints, last_complete_checkpoint
from ta_grpo.trl.resume import check_checkpoint
from tiny_models import save_model
from trl_runs import question_rows, ta_trainer

# Ten questions, two a step: an epoch is five steps.
SETTINGS = {
    "num_generations": 8,
    "questions_per_step": 2,
    "max_completion_length": 8,
    "learning_rate": 0.001,
    "max_steps": 12,
    "save_steps": 4,
    "reward": "letters_reward:letters",
}

# A reward that kills its own process, in the middle of a step, in the call that KILL_AT names.
REWARD = """
import os, signal
calls = 0

def letters(completions, **columns):
    global calls
    calls += 1
    if str(calls) == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [sum("a" <= letter < "n" for letter in c[0]["content"]) / 8 for c in completions]
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("resume")
    save_model(place / "model")
    with open(place / "questions.jsonl", "w") as file:
        for row in question_rows(10):
            record = {
                "id": row["id"],
                "question": row["prompt"],
                "answer": row["answer"],
                "rephrasings": row["rephrasings"],
            }
            file.write(json.dumps(record) + "\n")
    (place / "letters_reward.py").write_text(REWARD)
    (place / "run.yaml").write_text(json.dumps(SETTINGS | {"model": "model", "questions": "questions.jsonl"}))
    return place


def train(place: Path, run: str, *flags: str, kill_at: int | None = None) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "ta_grpo.cli", "train", "--config", "run.yaml", "--output-dir", run, *flags],
        cwd=place,
        env=os.environ | ({"KILL_AT": str(kill_at)} if kill_at else {}),
        capture_output=True,
        text=True,
        check=False,
    )


def what_happened(run: Path) -> dict[str, Any]:
    """Everything that must not differ between two runs."""
    times = ("step_time",)
    return {
        "rollouts": {
            path.name: pyarrow.parquet.read_table(path).to_pylist() for path in sorted((run / "rollouts").iterdir())
        },
        "metrics": [
            {k: v for k, v in json.loads(line).items() if k not in times}
            for line in (run / "metrics.jsonl").read_text().splitlines()
        ],
    }


@pytest.fixture(scope="module")
def unbroken(workplace) -> Path:
    done = train(workplace, "unbroken")
    assert done.returncode == 0, done.stderr
    return workplace / "unbroken"


def assert_equal_runs(run: Path, unbroken: Path) -> None:
    assert what_happened(run) == what_happened(unbroken)
    for name, weights in load_file(unbroken / "checkpoint-12" / "model.safetensors").items():
        assert torch.equal(load_file(run / "checkpoint-12" / "model.safetensors")[name], weights), name


def test_a_run_killed_twice_ends_as_an_unbroken_one(workplace, unbroken):
    """Killed in step 7 (from checkpoint 4, within epoch 1, over the border at 5) and in step 11 (from checkpoint 8)."""
    assert train(workplace, "killed", kill_at=7).returncode == -9
    run = workplace / "killed"
    assert [path.name for path in checkpoints(run)] == ["checkpoint-4"]
    # Half a checkpoint, as a kill in the middle of writing leaves it: whole files, but not all, and no mark.
    shutil.copytree(run / "checkpoint-4", run / "checkpoint-6")
    (run / "checkpoint-6" / COMPLETE_MARK).unlink()
    (run / "checkpoint-6" / "optimizer.pt").unlink()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "los')
    assert train(workplace, "killed", "--resume", kill_at=7).returncode == -9
    assert not (run / "checkpoint-6").exists()
    resumed = train(workplace, "killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "after step 8" in resumed.stderr
    assert_equal_runs(run, unbroken)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["finished"]
    assert [attempt.get("outcome") for attempt in manifest["attempts"]] == [None, None, "finished"]


def test_a_run_killed_before_its_first_checkpoint_begins_again(workplace, unbroken):
    assert train(workplace, "early", kill_at=3).returncode == -9
    resumed = train(workplace, "early", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "begins again" in resumed.stderr
    assert_equal_runs(workplace / "early", unbroken)


def test_resuming_a_finished_run_or_with_other_settings_is_told(workplace, unbroken):
    again = train(workplace, "unbroken", "--resume")
    assert again.returncode == 0
    assert "already finished" in again.stderr
    other = train(workplace, "unbroken", "--resume", "--learning-rate", "0.5")
    assert other.returncode == 2
    assert "learning_rate: 0.001 -> 0.5" in other.stderr
    used = train(workplace, "unbroken")
    assert used.returncode == 2
    assert "--resume" in used.stderr
    assert "Traceback" not in used.stderr


class StopAfter(TrainerCallback):
    """Ends the process of training the hard way, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "settings",
    [
        {"num_iterations": 2},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 12},
    ],
    ids=str,
)
@pytest.mark.parametrize("stop", [3, 5, 7])
def test_a_save_waits_until_the_generations_are_used_up(tmp_path, settings, stop):
    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, **settings}
    whole = ta_trainer(tmp_path / "whole", question_rows(10), **settings)
    whole.train()
    broken = ta_trainer(tmp_path / "broken", question_rows(10), **settings)
    broken.add_callback(StopAfter(stop))
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    saved = last_complete_checkpoint(tmp_path / "broken")
    assert len(checkpoints(tmp_path / "broken")) <= 2
    resumed = ta_trainer(tmp_path / "broken", question_rows(10), **settings)
    if saved is None:  # the first generation was not used up
        with pytest.raises(UserError, match="no complete checkpoint"):
            resumed.train(resume_from_checkpoint=True)
        return
    resumed.train(resume_from_checkpoint=True)
    step = int(saved.name.rpartition("-")[2])
    assert 0 < step <= stop
    assert len(resumed.recorder.updates) == settings["max_steps"] - step
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weights), name


def test_the_newest_checkpoint_is_the_last_complete_one(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11", "checkpoint-x"):
        (tmp_path / name).mkdir()
    for name in ("checkpoint-9", "checkpoint-10"):
        (tmp_path / name / COMPLETE_MARK).touch()
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert last_complete_checkpoint(tmp_path / "nowhere") is None


def test_a_damaged_checkpoint_is_named_before_anything_is_loaded(workplace, unbroken, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    checkpoint, metrics = run / "checkpoint-4", run / "metrics.jsonl"
    check_checkpoint(checkpoint, metrics)
    for name in ("model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"):
        path, content = checkpoint / name, (checkpoint / name).read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match=rf"{name} is damaged .*; restore it, or remove .*checkpoint-4 to go on"):
            check_checkpoint(checkpoint, metrics)
        path.write_bytes(content)
    path, content = checkpoint / "optimizer.pt", bytearray((checkpoint / "optimizer.pt").read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"optimizer\.pt is damaged"):
        check_checkpoint(checkpoint, metrics)
    shutil.copy(unbroken / "checkpoint-4/optimizer.pt", path)
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(UserError, match=r"metrics\.jsonl lacks step 3, which was trained"):
        check_checkpoint(checkpoint, metrics)
