"""Training in two processes (gloo, CPU): groups straddle them, and what comes out is what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from replayed_training import VARIANTS
from test_trl_resume import REWARD, SETTINGS, assert_equal_runs
from tiny_models import save_model
from trl_runs import question_rows

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
# accelerate's own --cpu starts one process whatever --num_processes says.
ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--main_process_port", "0"),
]


def launch(command: list[str], place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=place,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(Path(__file__).parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_processes_train_one_run(tmp_path):
    save_model(tmp_path / "model")
    with open(tmp_path / "questions.jsonl", "w") as file:
        for row in question_rows(6):
            row["question"] = row.pop("prompt")
            file.write(json.dumps(row) + "\n")
    (tmp_path / "letters.py").write_text(
        "def share(completions, **columns):\n"
        "    return [sum('a' <= x < 'n' for x in c[0]['content']) / 8 for c in completions]\n"
    )
    flags = {
        "--model": "model",
        "--questions": "questions.jsonl",
        "--output-dir": "run",
        "--reward": "letters:share",
        "--num-generations": "8",
        "--questions-per-step": "1",
        "--per-device-train-batch-size": "4",
        "--max-completion-length": "8",
        "--max-steps": "3",
        "--save-steps": "1",
    }
    command = [*TORCHRUN, "-m", "ta_grpo.cli", "train", *(word for flag in flags.items() for word in flag)]
    done = launch(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained: run") == 1
    for step in (1, 2, 3):
        rows = pyarrow.parquet.read_table(tmp_path / "run" / "rollouts" / f"step_{step:05d}.parquet").to_pylist()
        # Four rows of the group in each process, in the order of the phrasings.
        assert [row["phrasing_index"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert len({row["id"] for row in rows}) == 1
        rewards = [row["reward"] for row in rows]
        mean = sum(rewards) / 8
        assert all((row["advantage"] > 0) == (row["reward"] > mean + 1e-9) for row in rows)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["finished"]
    assert launch(command, tmp_path).returncode != 0  # used


def test_processes_that_have_not_met_are_refused(tmp_path):
    """Without a GPU, accelerate joins processes only if it is told to use the CPU."""
    save_model(tmp_path / "model")
    words = ["--model", "model", "--questions", "tiny/train", "--output-dir", "run", "--dry-run"]
    done = launch([*TORCHRUN, "-m", "ta_grpo.cli", "train", *words], tmp_path, ACCELERATE_USE_CPU="false")
    assert done.returncode != 0
    assert "2 processes were launched, and accelerate has joined 1" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> Path:
    """Every variant on the same completions, in one process and in two."""
    place = tmp_path_factory.mktemp("replayed")
    script = str(Path(__file__).parent / "replayed_training.py")
    for name, launcher, variants in (
        ("one", [sys.executable], list(VARIANTS)),
        ("two", TORCHRUN, list(VARIANTS)),
        ("accelerate", ACCELERATE, ["dapo"]),
    ):
        (place / name).mkdir()
        done = launch([*launcher, script, str(place / name), *variants], place)
        assert done.returncode == 0, done.stderr
    return place


def both(replayed: Path, name: str, launcher: str = "two") -> tuple[dict[str, Any], dict[str, Any]]:
    one, two = (torch.load(replayed / processes / f"{name}.pt") for processes in ("one", launcher))
    assert (one["processes"], two["processes"]) == (1, 2)
    return one, two


@pytest.mark.slow
@pytest.mark.parametrize(("name", "launcher"), [*((name, "two") for name in VARIANTS), ("dapo", "accelerate")])
def test_two_processes_give_the_groups_of_one(replayed, name, launcher):
    """Three questions of eight slots each: the second question's group lies half in each process."""
    one, two = both(replayed, name, launcher)
    assert len(one["groups"]) > 3 if name == "dynamic" else len(one["groups"]) == 3  # rounds of sampling
    for ours, theirs in zip(two["groups"], one["groups"], strict=True):
        assert ours == theirs  # question, phrasing, prompts, completions, rewards, advantages: in slot order
    assert len({advantage for group in one["groups"] for advantage in group["advantage"]}) > 9
    for ours, theirs in zip(two["logs"], one["logs"], strict=True):
        signal = {k: v for k, v in theirs.items() if k.startswith(("questions/", "reward", "completions/"))}
        assert len(signal) > 15
        for metric, value in signal.items():
            assert ours[metric] == pytest.approx(value, abs=1e-6, nan_ok=True), metric


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launcher"), [*((name, "two") for name in VARIANTS if name != "bnpo"), ("dapo", "accelerate")]
)
def test_two_processes_give_the_losses_and_weights_of_one(replayed, name, launcher):
    one, two = both(replayed, name, launcher)
    for ours, theirs in zip(two["logs"], one["logs"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert theirs["grad_norm"] > 0.01
    for weight, value in one["weights"].items():
        # AdamW divides by the gradient's size, so where that is nearly 0, rounding shows.
        torch.testing.assert_close(two["weights"][weight], value, atol=1e-4, rtol=0, msg=weight)


@pytest.mark.slow
def test_two_processes_ask_a_vllm_server_for_what_one_asks(replayed):
    """Three questions of four phrasings, two completions each, in one request a generation batch."""
    one, two = both(replayed, "server")
    assert two["asked"] == one["asked"]
    assert len(one["asked"]) == 3 * 3 * 4
    for batch, groups in enumerate(one["groups"]):
        blocks = one["asked"][12 * batch : 12 * (batch + 1)]
        assert [prompt.removeprefix("<bos>") for prompt, _ in blocks] == groups["sampled_prompt"][::2]
        assert all(count == 2 for _, count in blocks)


@pytest.mark.slow
def test_bnpo_depends_on_how_rows_are_dealt(replayed):
    """The exception: bnpo divides each pass by that pass's own tokens, so other passes give another loss."""
    one, two = both(replayed, "bnpo")
    assert abs(one["logs"][0]["loss"] - two["logs"][0]["loss"]) > 1e-3


@pytest.mark.slow
def test_two_processes_resume_to_the_run_that_was_not_broken(tmp_path):
    """One of the two is killed in step 7 and takes the other with it; groups straddle the processes."""
    save_model(tmp_path / "model")
    with open(tmp_path / "questions.jsonl", "w") as file:
        for row in question_rows(10):
            row["question"] = row.pop("prompt")
            file.write(json.dumps(row) + "\n")
    (tmp_path / "letters_reward.py").write_text(REWARD)
    settings = SETTINGS | {"model": "model", "questions": "questions.jsonl", "questions_per_step": 3}
    (tmp_path / "run.yaml").write_text(json.dumps(settings | {"per_device_train_batch_size": 4}))
    (tmp_path / "one_is_killed.py").write_text(
        "import os, sys\n"
        "if os.environ['RANK'] == '0':\n    os.environ.pop('KILL_AT', None)\n"
        "from ta_grpo.cli import main\nsys.exit(main())\n"
    )
    command = [*TORCHRUN, "one_is_killed.py", "train", "--config", "run.yaml", "--output-dir"]
    whole = launch([*command, "whole"], tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert launch([*command, "broken"], tmp_path, KILL_AT="7").returncode != 0
    assert not (tmp_path / "broken" / "checkpoint-8").exists()
    resumed = launch([*command, "broken", "--resume"], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "after step 4" in resumed.stderr
    assert_equal_runs(tmp_path / "broken", tmp_path / "whole")


# Each process holds one row of the weight; the gradient of the second row alone is not finite.
SHARDED = """
import os
import types
import torch
from torch.distributed.fsdp import fully_shard
from ta_grpo.trl.finite import SkipNonFiniteSteps

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.Linear(3, 2, bias=False)
fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
skip = SkipNonFiniteSteps()
for scale in (1.0, float("nan")):
    (model(torch.ones(1, 3)) * torch.tensor([1.0, scale])).sum().backward()
    assert model.weight.grad.to_local().shape == (1, 3)
    assert model.weight.grad.to_local().isfinite().all() == (rank == 0 or scale == 1.0)
    skip.on_pre_optimizer_step(None, types.SimpleNamespace(global_step=0), None, model=model)
    assert (model.weight.grad is None) == (scale != 1.0), rank
    assert skip.count == (scale != 1.0)
torch.distributed.barrier()
# Not by the interpreter's end: on a busy machine gloo's threads still let go of the last tensor then, and abort.
os._exit(0)
"""


def test_a_bad_gradient_in_one_shard_is_left_out_by_all_processes(tmp_path):
    """FSDP2 itself, on CPU: accelerate does not offer it there, so training under it has not been run."""
    (tmp_path / "sharded.py").write_text(SHARDED)
    done = launch([*TORCHRUN, "sharded.py"], tmp_path)
    assert done.returncode == 0, done.stderr
