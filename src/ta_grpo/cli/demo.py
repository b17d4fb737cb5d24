"""``ta-grpo demo``: the whole way on the embedded default, in minutes on two CPU cores.

The base policy is trained twice with equal numbers of completions, by GRPO and by TA-GRPO, and all three are evaluated
on questions with numbers that training did not show. The sizes are what ten CPU-minutes allow; nothing here was chosen
by what the arms score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..rundir import is_begun, read_jsonl
from ..settings import setting
from ..trl.train_settings import TrainSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table, print_text

if TYPE_CHECKING:
    from rich.table import Table

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
    """Train the embedded policy with GRPO and with TA-GRPO, evaluate base and both, and show the result as a page."""
    settings = resolve(DemoSettings, flags, config)
    output_dir = settings.output_dir
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"{output_dir} is a file; choose another --output-dir")
    if not settings.resume and output_dir.exists() and any(output_dir.iterdir()):
        raise UserError(
            f"{output_dir} is already in use and is never overwritten; add --resume to go on with it, or choose "
            "another --output-dir"
        )
    runs = {BASE: output_dir / BASE} | {arm: output_dir / folder for arm, (folder, _) in ARMS.items()}
    evaluations = {}
    for name, run_dir in runs.items():
        if name in ARMS:  # a finished run is left as it is, if it was asked for the same
            from ..trl.training import train

            train(_arm(run_dir, ARMS[name][1], settings))
        evaluations[name] = _evaluate(name, run_dir, settings)
    told = verdict(evaluations)
    if json:
        figures = {
            name: {k: asdict(interval) for k, interval in evaluation.pass_at_k.items()}
            for name, evaluation in evaluations.items()
        }
        mixed = {arm: mixed_share(runs[arm]) for arm in ARMS}
        shown = {"runs": runs, "pass_at_k": figures, "mixed_groups_in_training": mixed, "verdict": told}
        print_json(shown | {"report": _report(runs, settings)})
        return
    print_table(_table(evaluations, runs))
    print_pairs("\nRun directories", runs.items())
    print_text(f"\n{told}")
    print_text(f"\n{_where(_report(runs, settings))}")


def _report(runs: Mapping[str, Path], settings: DemoSettings) -> Path | None:
    """The page of all runs; None where the packages that draw it are not installed."""
    from ..report.page import check_packages, write_report
    from ..report.settings import ReportSettings

    try:
        check_packages()
    except UserError:
        return None
    # The first is the one that the others are compared with.
    return write_report([runs[name] for name in (*ARMS, BASE)], ReportSettings(settings.output_dir)).page


def _where(page: Path | None) -> str:
    if page is None:
        return "No page was made of it: run pip install 'ta-grpo[report]', then this again with --resume."
    return f"Figures, budgets and every rollout: open {page} in a browser."


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
    """As the verb eval does it, so that it can be asked for more."""
    from ..evaluation.jobs import evaluate_target
    from ..evaluation.settings import EvalSettings

    place = run_dir / "eval"
    asked = EvalSettings(
        benchmarks=TEST_SET,
        output_dir=place,
        num_samples=max(KS),
        max_new_tokens=MAX_COMPLETION_LENGTH,
        limit=settings.test_questions,
        seed=settings.seed,
        batch_size=512,
        resume=is_begun(place / TEST_SET.replace("/", "_")),
    )
    (sets,) = evaluate_target("tiny" if name == BASE else str(run_dir), asked).values()
    (evaluation,) = sets.values()
    return evaluation


def mixed_share(run_dir: Path) -> float:
    """Share of the groups of a run, over all its steps, that were neither all right nor all wrong."""
    steps = read_jsonl(run_dir / "metrics.jsonl")
    return sum(step["questions/joint/mixed"] for step in steps) / len(steps)


def _table(evaluations: Mapping[str, Evaluation], runs: Mapping[str, Path]) -> Table:
    """Arms and their difference as rows; pass@k and the share of mixed groups as columns. Intervals stand below."""
    from rich.table import Table

    from ..evaluation import compare

    some = evaluations[BASE]
    table = Table(
        caption=f"pass@k in % on {some.num_questions} test questions × {some.num_samples} samples, with 95 % intervals "
        "over questions; the difference is paired by question. mixed: groups in training that gave a gradient, in %.",
        show_lines=True,
    )
    for column in ("", *(f"pass@{k}" for k in KS), "mixed"):
        table.add_column(column, justify="right" if column else "left")
    for name, evaluation in evaluations.items():
        intervals = [evaluation.pass_at_k[k] for k in KS]
        cells = [f"{100 * i.mean:.1f}\n{100 * i.low:.1f}–{100 * i.high:.1f}" for i in intervals]
        table.add_row(name, *cells, f"{100 * mixed_share(runs[name]):.0f}" if name in ARMS else "")
    grpo, ta_grpo = (evaluations[arm] for arm in ARMS)
    gaps = compare(ta_grpo, grpo, KS).values()
    cells = [f"{100 * gap.difference:+.1f}\n{100 * gap.low:+.1f} to {100 * gap.high:+.1f}" for gap in gaps]
    table.add_row("difference", *cells, "")
    return table


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
        f"TA-GRPO differs from GRPO in {'; '.join(told_apart)} (paired by question, {len(KS)} comparisons, "
        "uncorrected). That is one seed and a short run: a lead, not a result."
    )
