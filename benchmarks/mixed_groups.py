"""Responses for each group with a gradient: matched GRPO, dynamic sampling, the joint group, adaptive phrasings.

The trainers themselves sample from one policy (learning rate 0) on the embedded world's questions, each as many steps
of ``--questions-per-step`` x (N + 1) * G completions, with the same seed. Of each step: the completions sampled, what
was thrown away included, over the mixed groups among those that are trained on. Intervals are of the ratio over steps,
95 %, percentile bootstrap. ``--model RUN/checkpoint-50`` looks at a trained policy, with fewer mixed groups.

    python benchmarks/mixed_groups.py [--model tiny] [--steps 20]
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from step_profile import training_rows
from transformers import PrinterCallback

from ta_grpo.models import load_model, resolve_model
from ta_grpo.rundir import read_jsonl
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer
from ta_grpo.trl.records import RunRecords
from ta_grpo.verifier import accuracy_reward

NUM_REPHRASINGS, GENERATIONS_PER_PHRASING = 3, 8
GROUP = (NUM_REPHRASINGS + 1) * GENERATIONS_PER_PHRASING
WAYS: dict[str, dict[str, Any]] = {
    "matched GRPO": {"num_rephrasings": 0},
    "matched GRPO, dynamic sampling": {"num_rephrasings": 0, "dynamic_sampling": 3.0},
    "joint": {},
    "joint, dynamic sampling": {"dynamic_sampling": 3.0},
    "joint, adaptive phrasings": {"adaptive_rephrasings": True},
}


def steps_of(way: dict[str, Any], options: argparse.Namespace) -> list[tuple[float, float]]:
    """Completions sampled, and mixed groups trained on, of each step."""
    model, tokenizer = load_model(resolve_model(options.model))
    questions = options.questions_per_step
    with tempfile.TemporaryDirectory() as folder:
        args = TAGRPOConfig(
            **{"num_rephrasings": NUM_REPHRASINGS} | way,
            output_dir=folder,
            num_generations=GROUP,
            per_device_train_batch_size=GROUP,
            gradient_accumulation_steps=questions,
            max_completion_length=options.max_completion_length,
            max_steps=options.steps,
            learning_rate=0.0,
            seed=options.seed,
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=False,
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            report_to="none",
        )
        rows = training_rows(tokenizer)
        trainer = TAGRPOTrainer(model, accuracy_reward, args, Dataset.from_list(rows), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        RunRecords(Path(folder), trainer)
        trainer.train()
        lines = read_jsonl(Path(folder) / "metrics.jsonl")
    steps = []
    for line in lines:
        sampled = line.get("dynamic_sampling/sampled", 1.0) * questions * GROUP
        trained = line.get("adaptive_rephrasings/questions", 1.0) * questions
        mixed = 1 - line["dynamic_sampling/unfilled"] if "dynamic_sampling/unfilled" in line else None
        steps.append((sampled, trained * (line["questions/joint/mixed"] if mixed is None else mixed)))
    return steps


def ratio(steps: list[tuple[float, float]]) -> float:
    return sum(sampled for sampled, _ in steps) / max(sum(mixed for _, mixed in steps), 1e-9)


def interval(steps: list[tuple[float, float]], resamples: int = 10_000) -> tuple[float, float]:
    rng = random.Random(0)
    ratios = sorted(ratio(rng.choices(steps, k=len(steps))) for _ in range(resamples))
    return ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--questions-per-step", type=int, default=8)
    parser.add_argument("--max-completion-length", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| sampling | responses a mixed group | mixed groups a step | responses a step |")
    print("|---|---|---|---|")
    for name, way in WAYS.items():
        steps = steps_of(way, options)
        low, high = interval(steps)
        sampled, mixed = (sum(column) / len(steps) for column in zip(*steps, strict=True))
        print(f"| {name} | {ratio(steps):.1f} [{low:.1f}, {high:.1f}] | {mixed:.1f} | {sampled:.0f} |", flush=True)


if __name__ == "__main__":
    main()
