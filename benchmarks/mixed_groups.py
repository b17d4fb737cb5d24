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
from typing import Any

from embedded_training import flags, make_trainer

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
    questions = options.questions_per_step
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            options.model,
            accuracy_reward,
            folder,
            **{"num_rephrasings": NUM_REPHRASINGS} | way,
            num_generations=GROUP,
            per_device_train_batch_size=GROUP,
            gradient_accumulation_steps=questions,
            max_completion_length=options.max_completion_length,
            max_steps=options.steps,
            learning_rate=0.0,
            seed=options.seed,
        )
        trainer.train()
    return [
        (
            line.get("dynamic_sampling/sampled", 1.0) * questions * GROUP,
            _share_mixed(line) * line.get("adaptive_rephrasings/questions", 1.0) * questions,
        )
        for line in trainer.state.log_history
        if "loss" in line
    ]


def _share_mixed(line: dict[str, float]) -> float:
    """Of the groups that are trained on; ``questions/joint/mixed`` is of all that were sampled."""
    unfilled = line.get("dynamic_sampling/unfilled")
    return line["questions/joint/mixed"] if unfilled is None else 1 - unfilled


def ratio(steps: list[tuple[float, float]]) -> float:
    return sum(sampled for sampled, _ in steps) / max(sum(mixed for _, mixed in steps), 1e-9)


def interval(steps: list[tuple[float, float]], resamples: int = 10_000) -> tuple[float, float]:
    rng = random.Random(0)
    ratios = sorted(ratio(rng.choices(steps, k=len(steps))) for _ in range(resamples))
    return ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples)]


def main() -> None:
    parser = flags(__doc__, steps=20)
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
