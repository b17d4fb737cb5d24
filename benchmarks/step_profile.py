"""Where the time of a training step goes: generate, verify, old and reference log-probs, update, rest.

TAGRPOTrainer with N = 3 and G = 8 on the embedded world's questions, with the embedded policy or another model. Two
settings: one update a generation without KL (no further log-probs), and two updates with KL (old and reference ones).
Seconds are wall time of the middle (median) step; the shares are of the same steps. Next to them the tokens a second of
each phase, and the update's floating-point operations as a share of what the machine's matrix product reaches in the
same run: 6 x parameters x tokens without padding, over seconds (Kaplan et al. 2020, section 2.1; without attention).

    python benchmarks/step_profile.py [--model tiny] [--steps 12] [--questions-per-step 8] [--max-completion-length 48]

Runs on a GPU where there is one; each phase then ends when the device has done its work.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from embedded_training import flags, make_trainer
from transformers import TrainerCallback

from ta_grpo.trl import TAGRPOTrainer
from ta_grpo.verifier import accuracy_reward

NUM_REPHRASINGS, GENERATIONS_PER_PHRASING = 3, 8
WARM_UP = 1
PHASES = ("generate", "verify", "old/ref log-probs", "update", "rest")
SETTINGS = {"one update, beta 0": (1, 0.0), "two updates, beta 0.001": (2, 0.001)}


class PhaseClock:
    """Exclusive wall seconds of each phase: what a phase calls is not counted twice."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def wrap(self, owner: Any, method: str, phase: str) -> None:
        """Time ``owner.method`` as ``phase``."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return inner(*args, **kwargs)

        setattr(owner, method, timed)


class Steps(TrainerCallback):
    """The clock's readings of each optimiser step."""

    def __init__(self, clock: PhaseClock) -> None:
        self.clock, self.seconds, self.tokens = clock, [], []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.clock.seconds.clear()
        self.clock.tokens.clear()
        self._whole = self.clock.phase("rest")
        self._whole.__enter__()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._whole.__exit__(None, None, None)
        self.seconds.append(Counter(self.clock.seconds))
        self.tokens.append(Counter(self.clock.tokens))


def profiled_trainer(name: str, options: argparse.Namespace, updates: int, beta: float, folder: str) -> TAGRPOTrainer:
    group = (NUM_REPHRASINGS + 1) * GENERATIONS_PER_PHRASING
    return make_trainer(
        name,
        accuracy_reward,
        folder,
        num_rephrasings=NUM_REPHRASINGS,
        num_generations=group,
        per_device_train_batch_size=group,
        gradient_accumulation_steps=options.questions_per_step,
        steps_per_generation=options.questions_per_step * updates,
        beta=beta,
        max_completion_length=options.max_completion_length,
        max_steps=(WARM_UP + options.steps) * updates,
        learning_rate=1e-6,
    )


def instrument(trainer: TAGRPOTrainer, clock: PhaseClock) -> None:
    """Name what belongs to which phase, and count its tokens (padding left out)."""
    whole, scored = trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies

    def count_generated(inputs: Any) -> Any:
        with clock.phase("rest"):
            output = whole(inputs)
        clock.tokens["generate"] += int(output["completion_mask"].sum())
        return output

    def count_scored(*args: Any, **kwargs: Any) -> Any:
        phase = "update" if torch.is_grad_enabled() else "old/ref log-probs"
        clock.tokens[phase] += int(args[2].sum())
        with clock.phase(phase):
            return scored(*args, **kwargs)

    trainer._generate_and_score_completions = count_generated
    trainer._get_per_token_logps_and_entropies = count_scored
    clock.wrap(trainer, "_generate_single_turn", "generate")
    clock.wrap(trainer, "_calculate_rewards", "verify")
    clock.wrap(trainer, "training_step", "update")  # forward, backward; what it generates is timed inside as its own


def time_optimizer(trainer: TAGRPOTrainer, clock: PhaseClock) -> None:
    """Count the optimiser's own step as update; it exists once training has begun."""

    class Wrap(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.wrap(kwargs["optimizer"], "step", "update")

    trainer.add_callback(Wrap())


def matmul_peak(device: torch.device, size: int = 2048, repeats: int = 8) -> float:
    """Floating-point operations a second of a square product in the precision of training, the best of ``repeats``."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def profile(name: str, options: argparse.Namespace, updates: int, beta: float) -> list[str]:
    """The cells of one row: seconds a generation, the phases' shares, tokens a second, share of the matmul peak."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = profiled_trainer(name, options, updates, beta, folder)
        clock = PhaseClock()
        steps = Steps(clock)
        instrument(trainer, clock)
        time_optimizer(trainer, clock)
        trainer.add_callback(steps)
        trainer.train()
    # With two updates a generation, a generation and its updates are one unit.
    units = [
        (sum(steps.seconds[i : i + updates], Counter()), sum(steps.tokens[i : i + updates], Counter()))
        for i in range(WARM_UP * updates, len(steps.seconds), updates)
    ]
    total = statistics.median(seconds.total() for seconds, _ in units)
    shares = [statistics.median(seconds[phase] / seconds.total() for seconds, _ in units) for phase in PHASES]
    rates = [
        statistics.median(tokens[phase] / seconds[phase] for seconds, tokens in units)
        for phase in ("generate", "update")
    ]
    parameters = sum(p.numel() for p in trainer.model.parameters())
    peak = matmul_peak(trainer.accelerator.device)
    return [
        f"{total:.2f}",
        *(f"{100 * share:.0f}" if share >= 0.01 else f"{100 * share:.1f}" for share in shares),
        *(f"{rate:,.0f}" for rate in rates),
        f"{100 * 6 * parameters * rates[1] / peak:.0f}",
    ]


def main() -> None:
    parser = flags(__doc__, steps=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    head = ["model", "setting", "s", *(f"{phase} %" for phase in PHASES), "generate tok/s", "update tok/s", "peak %"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for setting, (updates, beta) in SETTINGS.items():
        print("| " + " | ".join([options.model, setting, *profile(options.model, options, updates, beta)]) + " |")


if __name__ == "__main__":
    main()
