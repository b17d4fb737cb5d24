"""CPU time of a training step of TAGRPOTrainer over one of stock GRPOTrainer with as many completions.

Both do the same work on the same questions. The two trainers take turns in one process, a pair at a time, and each
pair's order is drawn at random; a ratio is the CPU time of TAGRPOTrainer over that of GRPOTrainer, of the whole step
and of its update (forward and backward passes) alone.

| scenario | groups | lengths | aim |
|---|---|---|---|
| rephrasings | N = 3, all mixed | equal | step at most 1.10 |
| worst | N = 0, all mixed: nothing can be left out | equal | step at most 1.05 |
| uniform | N = 3, 60 % uniform | equal | update at most 0.5 |
| lengths | N = 3, all mixed | 1 : 8 | update at most 0.8 |

Lengths are up to ``--max-completion-length`` tokens. The longer completions are against the prompts, which are padded
alike in both, the more of a pass is their own padding.

    python benchmarks/step_ratio.py [--scenario uniform] [--pairs 40] [--max-completion-length 32]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ta_grpo.tiny import load_policy, questions
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer

QUESTIONS_PER_STEP, NUM_GENERATIONS = 5, 32


@dataclass(frozen=True)
class Scenario:
    num_rephrasings: int
    uniform_questions: int = 0
    longest_over_shortest: int = 1


SCENARIOS = {
    "rephrasings": Scenario(3),
    "worst": Scenario(0),
    "uniform": Scenario(3, uniform_questions=3),
    "lengths": Scenario(3, longest_over_shortest=8),
}


class StepTimes(TrainerCallback):
    """CPU seconds of each step, and of its update."""

    def __init__(self, trainer: Any) -> None:
        self.step: list[float] = []
        self.update: list[float] = []
        self._in_update = 0.0
        prepare, train = trainer._prepare_inputs, trainer.training_step

        def timed_prepare(*args: Any) -> Any:
            began = time.process_time()
            inputs = prepare(*args)
            self._in_update -= time.process_time() - began
            return inputs

        def timed_train(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            loss = train(*args, **kwargs)
            self._in_update += time.process_time() - began
            return loss

        trainer._prepare_inputs, trainer.training_step = timed_prepare, timed_train
        trainer.add_callback(self)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._began, self._in_update = time.process_time(), 0.0

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.step.append(time.process_time() - self._began)
        self.update.append(self._in_update)


def reward(completions: list[Any], **columns: Any) -> list[float]:
    """Cheap: all alike for a uniform question, and otherwise never."""
    return [1.0 if uniform else float(i % 2) for i, uniform in enumerate(columns["uniform"])]


def make_trainer(ours: bool, scenario: Scenario, length: int, folder: str) -> Any:
    model, tokenizer = load_policy()
    rows = []
    for i, question in enumerate(questions("train")[:QUESTIONS_PER_STEP]):
        prompt = [{"role": "user", "content": question.question}]
        uniform = i < scenario.uniform_questions
        rows.append({"prompt": prompt, "rephrasings": [prompt] * scenario.num_rephrasings, "uniform": uniform})
    settings: dict[str, Any] = {
        "output_dir": folder,
        "num_generations": NUM_GENERATIONS,
        "per_device_train_batch_size": NUM_GENERATIONS,
        "gradient_accumulation_steps": QUESTIONS_PER_STEP,
        "max_completion_length": length,
        "generation_kwargs": {"min_new_tokens": length},
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
        trainer_class, args = TAGRPOTrainer, TAGRPOConfig(num_rephrasings=scenario.num_rephrasings, **settings)
    else:
        trainer_class, args = GRPOTrainer, GRPOConfig(**settings)
    trainer: Any = trainer_class(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    cut_completions(trainer, length // scenario.longest_over_shortest, length)
    return trainer


def cut_completions(trainer: Any, shortest: int, longest: int) -> None:
    """End completions after lengths drawn evenly between the two; all of them are generated in full."""
    generate, rng = trainer._generate_single_turn, random.Random(0)

    def cut(*args: Any) -> Any:
        ids, logps = generate(*args)
        return [row[: rng.randint(shortest, longest)] for row in ids], logps

    if shortest < longest:
        trainer._generate_single_turn = cut


def next_step(trainer: Any, times: StepTimes) -> tuple[float, float]:
    """CPU seconds of a further step and of its update.

    The first step of a call also pays for the optimiser and the loader: the second is taken.
    """
    trainer.args.max_steps = 2
    trainer.train()
    return times.step[-1], times.update[-1]


def compare(scenario: Scenario, length: int, pairs: int) -> tuple[list[float], list[float]]:
    """The ratios of whole steps and of updates, one of each a pair."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {ours: make_trainer(ours, scenario, length, folder) for ours in (True, False)}
        times = {ours: StepTimes(trainer) for ours, trainer in trainers.items()}
        for ours, trainer in trainers.items():
            next_step(trainer, times[ours])  # caches warm
        taken = []
        for _ in range(pairs):
            seconds = {ours: next_step(trainers[ours], times[ours]) for ours in rng.sample((True, False), 2)}
            taken.append([our / stock for our, stock in zip(seconds[True], seconds[False], strict=True)])
    steps, updates = zip(*taken, strict=True)
    return list(steps), list(updates)


def interval_of_median(values: list[float], resamples: int = 10_000) -> tuple[float, float]:
    """95 % interval, percentile bootstrap."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=SCENARIOS, help="one alone")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--max-completion-length", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.scenario] if options.scenario else SCENARIOS:
        taken = compare(SCENARIOS[name], options.max_completion_length, options.pairs)
        for what, ratios in zip(("step", "update"), taken, strict=True):
            low, high = interval_of_median(ratios)
            print(
                f"{name}: {what} ratio, {options.pairs} alternating pairs: median {statistics.median(ratios):.3f}, "
                f"95 % interval [{low:.3f}, {high:.3f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
