"""CPU time of a training step of TAGRPOTrainer over one of stock GRPOTrainer with as many completions.

Both do the same work: N = 3 rephrasings equal to the question, and completions of one fixed length. The two trainers
take turns in one process, a pair at a time, and each pair's order is drawn at random; the ratio of a pair is its CPU
time under TAGRPOTrainer divided by that under GRPOTrainer.

    python benchmarks/step_ratio.py [--pairs 40]

Aim: a median of at most 1.10.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ta_grpo.tiny import load_policy, questions
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer

QUESTIONS_PER_STEP, NUM_GENERATIONS, NUM_REPHRASINGS, LENGTH = 4, 32, 3, 24


class StepTimes(TrainerCallback):
    """CPU seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self._began)


def reward(completions: list[Any], **columns: Any) -> list[float]:
    """Cheap, and never uniform."""
    return [float(i % 2) for i in range(len(completions))]


def make_trainer(ours: bool, folder: str) -> Any:
    model, tokenizer = load_policy()
    rows = []
    for question in questions("train")[: 8 * QUESTIONS_PER_STEP]:
        prompt = [{"role": "user", "content": question.question}]
        rows.append({"prompt": prompt, "rephrasings": [prompt] * NUM_REPHRASINGS})
    settings: dict[str, Any] = {
        "output_dir": folder,
        "num_generations": NUM_GENERATIONS,
        "per_device_train_batch_size": NUM_GENERATIONS,
        "gradient_accumulation_steps": QUESTIONS_PER_STEP,
        "max_completion_length": LENGTH,
        "generation_kwargs": {"min_new_tokens": LENGTH},
        "learning_rate": 0.0,
        "max_steps": 1_000_000,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    if ours:
        trainer_class, args = TAGRPOTrainer, TAGRPOConfig(num_rephrasings=NUM_REPHRASINGS, **settings)
    else:
        trainer_class, args = GRPOTrainer, GRPOConfig(**settings)
    trainer = trainer_class(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def steps(trainer: Any, times: StepTimes, count: int) -> list[float]:
    """CPU seconds of ``count`` further steps."""
    before = len(times.seconds)
    trainer.args.max_steps = count
    trainer.train()
    return times.seconds[before:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {ours: make_trainer(ours, folder) for ours in (True, False)}
        times = {ours: StepTimes() for ours in trainers}
        for ours, trainer in trainers.items():
            trainer.add_callback(times[ours])
            steps(trainer, times[ours], 2)  # caches warm
        ratios, stock = [], []
        for _ in range(pairs):
            order = rng.sample((True, False), 2)
            # The first step of a call also pays for the optimiser and the loader: take the second.
            seconds = {ours: steps(trainers[ours], times[ours], 2)[1] for ours in order}
            ratios.append(seconds[True] / seconds[False])
            stock.append(seconds[False])
    low, high = interval_of_median(ratios)
    print(
        f"step ratio, {pairs} alternating pairs: median {statistics.median(ratios):.3f}, "
        f"95 % interval [{low:.3f}, {high:.3f}]; a stock step: median {statistics.median(stock):.2f} CPU-seconds"
    )


def interval_of_median(values: list[float], resamples: int = 10_000) -> tuple[float, float]:
    """95 % interval, percentile bootstrap."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


if __name__ == "__main__":
    main()
