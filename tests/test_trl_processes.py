"""The train verb in two processes (gloo, CPU): groups straddle them, and one run directory is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet

from tiny_models import save_model
from trl_runs import question_rows


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
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "ta_grpo.cli", "train"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*launch, *(word for flag in flags.items() for word in flag), *words],
            cwd=tmp_path,
            env=os.environ | {"ACCELERATE_USE_CPU": "true"},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run()
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
    assert run().returncode != 0  # used
