"""Run directories and experiments to report on, in the form that training and compare leave them."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet

from ta_grpo.controls.experiment import ExperimentSettings
from ta_grpo.rundir import append_metrics, rollouts_file, write_json_atomic, write_parquet_atomic

HOSTILE = (
    "</script><script>window.broken=1</script>",
    "<img src=x onerror='window.broken=1'>",
    "\u2028]]>--><!--{{ 7*7 }}{% raw %}",
    "\\(\\href{javascript:window.broken=1}{click}\\) $\\includegraphics{http://localhost/x.png}$",
    "$\\frac{1}{$ and \\boxed{\\undefinedthing{2}}",
    "\\[\\label{rollout-index} x \\tag{1}\\]",
    "$\\def\\a{\\a\\a}\\a$",
    "'\"><svg onload=window.broken=1>&lt;b&gt;",
)


def completion(rng: random.Random, right: bool) -> str:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    return f"First, \\(\\frac{{{a}}}{{{b}}}\\) of them are left.\n\nSo the answer is \\boxed{{{a if right else b}}}"


def group_rows(
    rng: random.Random, question: str, text: Callable[[random.Random, bool], str], state: str, phrasings: int, each: int
) -> list[dict[str, Any]]:
    """The rows of one group: ``state`` is mixed, right, wrong, timed_out, truncated or none (no rewards at all)."""
    chance = {"right": 1.0, "wrong": 0.0}.get(state, 0.5)
    rows = []
    for slot in range(phrasings * each):
        phrasing, right = slot // each, rng.random() < chance
        verdict = "right" if right else "wrong"
        if state == "timed_out" and slot == 1:
            right, verdict = False, "timed_out"
        if state == "truncated" and slot == 2:
            right, verdict = False, "no_answer"
        if slot in (0, 3) and state not in ("right", "wrong"):  # both kinds, whatever chance gives
            right, verdict = slot == 0, "right" if slot == 0 else "wrong"
        rows.append(
            {
                "id": question,
                "phrasing_index": phrasing,
                "prompt": f"{question}: how many are left of \\(n\\)?",
                "sampled_prompt": f"{question}: how many are left of \\(n\\)?"
                if phrasing == 0
                else f"Rephrasing {phrasing} of {question}: what is left of $n$?",
                "completion": text(rng, right),
                "reward": None if state == "none" else float(right),
                "reward/accuracy_reward": None if state == "none" else float(right),
                "verdict": verdict,
                "extracted": None if verdict == "no_answer" else str(rng.randint(1, 99)),
                "completion_tokens": rng.randint(8, 48),
                "completion_truncated": state == "truncated" and slot == 2,
            }
        )
    rewards = [row["reward"] or 0.0 for row in rows]
    mean, spread = statistics.fmean(rewards), statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    for row, reward in zip(rows, rewards, strict=True):
        row["advantage"] = (reward - mean) / (spread + 1e-4)
    return rows


def write_run(
    path: Path,
    *,
    steps: int = 4,
    questions: int = 6,
    phrasings: int = 4,
    each: int = 4,
    text: Callable[[random.Random, bool], str] = completion,
    name: Callable[[int], str] = lambda number: f"set/{number}",
    seed: int = 0,
) -> Path:
    """A finished training run without evaluations, whose groups go through all states."""
    rng = random.Random(seed)
    states = ("mixed", "right", "wrong", "timed_out", "truncated", "mixed")
    path.mkdir(parents=True, exist_ok=True)
    write_json_atomic(
        path / "config.json",
        {
            "model": "tiny",
            "questions": "tiny/train",
            "num_rephrasings": phrasings - 1,
            "num_generations": phrasings * each,
            "questions_per_step": questions,
            "num_iterations": None,
            "seed": seed,
        },
    )
    attempt = {"command": ["ta-grpo", "train"], "versions": {"ta-grpo": "1", "trl": "1.16.0"}, "outcome": "finished"}
    write_json_atomic(path / "manifest.json", {"attempts": [attempt], "finished": True})
    for step in range(1, steps + 1):
        rows = [
            row
            for place in range(questions)
            for row in group_rows(
                rng, name((step - 1) * questions + place), text, states[(step + place) % 6], phrasings, each
            )
        ]
        write_parquet_atomic(rollouts_file(path, step), rows)
        reward = statistics.fmean(row["reward"] for row in rows)
        told = {
            "reward": reward,
            "questions/joint/mixed": rng.random(),
            "step_time": 1.0,
            "completions/mean_length": 20,
        }
        phrased = {f"reward/phrasing_{phrasing}": reward for phrasing in range(phrasings)} if phrasings > 1 else {}
        append_metrics(path, step, told | phrased)
    return path


def write_results(path: Path, arms: list[str], seeds: int, sets: tuple[str, ...] = ("tiny_test",)) -> Path:
    """An experiment of which only the results are there: of each arm a chance of its own."""
    settings = ExperimentSettings(
        model="tiny",
        questions="tiny/train",
        benchmarks="tiny/test",
        output_dir=path,
        arms=",".join(arms),
        seeds=",".join(map(str, range(seeds))),
        num_samples=4,
    )
    path.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path / "config.json", json.loads(json.dumps(settings.record())))
    for place, arm in enumerate(arms):
        for seed in range(seeds):
            rng = random.Random(f"{arm} {seed}")
            chance = 0.3 + 0.08 * place + 0.01 * rng.random()
            spent = {"questions": 400, "responses": 12_800, "tokens_generated": 358_000, "tokens_trained": 358_000}
            result = {
                "experiment": settings.digest(),
                "arm": arm,
                "seed": seed,
                "budget": {**spent, "updates": 50, "seconds": 150.0},
                "evaluations": {
                    name: {
                        "num_samples": 4,
                        "correct": {
                            f"q{number}": sum(rng.random() < chance * (0.2 + 1.6 * number / 20) for _ in range(4))
                            for number in range(20)
                        },
                    }
                    for name in sets
                },
            }
            write_json_atomic(settings.result_file(arm, seed), result)
    return path


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [
        row for path in sorted((run / "rollouts").iterdir()) for row in pyarrow.parquet.read_table(path).to_pylist()
    ]
