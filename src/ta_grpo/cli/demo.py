"""``ta-grpo demo``: the whole way on the embedded default, in minutes on two CPU cores.

The base policy is trained twice with equal numbers of completions, by GRPO and by TA-GRPO, and all three are evaluated
on questions with numbers that training did not show. The sizes are what ten CPU-minutes allow; nothing here was chosen
by what the arms score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..rundir import is_begun, is_finished
from ..settings import setting
from ..trl.train_settings import TrainSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from ..evaluation import Evaluation

BASE = "base"
ARMS = {"GRPO": ("grpo", 0), "TA-GRPO": ("ta-grpo", 3)}
"""Arm -> (folder, num_rephrasings). The number of completions a question is the same."""

KS = (1, 2, 4, 8, 16, 32)
NUM_GENERATIONS = 32
QUESTIONS_PER_STEP = 8
MAX_COMPLETION_LENGTH = 48
TEST_SET = "tiny/test"


@dataclass
class DemoSettings:
    """Settings of the verb ``demo``."""

    output_dir: Path = setting(Path("runs/demo"), "Where the runs go. A used directory is never overwritten.")
    steps: int = setting(50, "Optimiser steps of each arm.")
    test_questions: int = setting(150, "Questions of the evaluation.")
    seed: int = setting(0, "Seed of training and sampling.")
    resume: bool = setting(False, "Go on with an interrupted demo.")

    def __post_init__(self) -> None:
        if self.steps < 1 or self.test_questions < 2 or self.seed < 0:
            raise UserError("demo needs --steps of at least 1, --test-questions of at least 2 and --seed of at least 0")


def demo(
    flags: flags_of(DemoSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Train the embedded policy with GRPO and with TA-GRPO, evaluate base and both, and show the result."""
    settings = resolve(DemoSettings, flags, config)
    output_dir = settings.output_dir
    if not settings.resume and output_dir.exists() and any(output_dir.iterdir()):
        raise UserError(
            f"{output_dir} is already in use and is never overwritten; add --resume to go on with it, or choose "
            "another --output-dir"
        )
    from ..trl.training import train

    runs = {BASE: output_dir / BASE} | {arm: output_dir / folder for arm, (folder, _) in ARMS.items()}
    for arm, (_, num_rephrasings) in ARMS.items():
        if not is_finished(runs[arm]):
            train(_arm(runs[arm], num_rephrasings, settings))
    evaluations = {name: _evaluate(name, run_dir, settings) for name, run_dir in runs.items()}
    if json:
        print_json(
            {
                "runs": runs,
                "pass_at_k": {
                    name: {k: vars_of(interval) for k, interval in evaluation.pass_at_k.items()}
                    for name, evaluation in evaluations.items()
                },
                "verdict": verdict(evaluations),
            }
        )
        return
    from ..evaluation import render_table

    print_table(render_table(evaluations, KS))
    print_pairs("\nRun directories", runs.items())
    print_pairs("", [(verdict(evaluations), "")])


def _arm(run_dir: Path, num_rephrasings: int, settings: DemoSettings) -> TrainSettings:
    return TrainSettings(
        model="tiny",
        questions="tiny",
        output_dir=run_dir,
        num_rephrasings=num_rephrasings,
        num_generations=NUM_GENERATIONS,
        questions_per_step=QUESTIONS_PER_STEP,
        per_device_train_batch_size=NUM_GENERATIONS * 2,
        max_steps=settings.steps,
        max_completion_length=MAX_COMPLETION_LENGTH,
        learning_rate=2e-4,
        save_steps=10,
        seed=settings.seed,
        resume=is_begun(run_dir),
        trl={"gradient_checkpointing": False},
    )


def _evaluate(name: str, run_dir: Path, settings: DemoSettings) -> Evaluation:
    from ..evaluation import evaluate
    from ..models import load_model
    from ..questions import load_questions
    from ..sampling import SamplingSettings
    from ..trl.resume import last_complete_checkpoint

    model, tokenizer = load_model("tiny" if name == BASE else str(last_complete_checkpoint(run_dir)))
    return evaluate(
        model,
        tokenizer,
        load_questions(TEST_SET)[: settings.test_questions],
        run_dir / "eval" / TEST_SET.replace("/", "_"),
        settings=SamplingSettings(
            num_samples=max(KS),
            max_new_tokens=MAX_COMPLETION_LENGTH,
            temperature=1.0,
            seed=settings.seed,
            batch_size=512,
        ),
        ks=KS,
    )


def verdict(evaluations: Mapping[str, Evaluation]) -> str:
    """One plain sentence or two: whether the arms can be told apart, and how far that goes."""
    from ..evaluation import compare

    grpo, ta_grpo = (evaluations[arm] for arm in ARMS)
    told_apart = [
        f"pass@{k} by {100 * gap.difference:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
        for k, gap in compare(ta_grpo, grpo, KS).items()
        if gap.low > 0 or gap.high < 0
    ]
    if not told_apart:
        return (
            "TA-GRPO and GRPO cannot be told apart: every interval of their paired difference holds 0. The run is too "
            "short, on too few questions, for that."
        )
    return (
        f"TA-GRPO differs from GRPO in {'; '.join(told_apart)} (paired by question). That is one seed and a short run: "
        "a lead, not a result."
    )


def vars_of(record: Any) -> dict[str, Any]:
    """A frozen record as a mapping."""
    from dataclasses import asdict

    return asdict(record)
