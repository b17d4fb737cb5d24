"""An experiment's settings, and one arm with one seed of it: trained, evaluated, and put down in one small file.

DIR/config.json, manifest.json        the experiment
DIR/data/rephrased-data.jsonl         questions of arms that change them
DIR/runs/ARM/seed_S/                  a run directory each, with its evaluations
DIR/results/ARM_seed_S.json           what counts as done, also when it was copied from another machine
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from ..errors import UserError
from ..rundir import (
    RunDir,
    is_begun,
    is_finished,
    read_json,
    read_metrics,
    read_rollouts,
    rollouts_file,
    write_json_atomic,
)
from ..settings import check_names, setting, typed_settings
from ..trl.train_settings import TrainSettings
from .arms import ARMS, CHAIN, Arm, Shape

# What may be asked for later without changing what is done.
FREE_TO_CHANGE = ("arms", "seeds")
_ROWS_A_PASS = 8
_NUMBER = (int, float)
_OURS = ("num_rephrasings", "num_generations", "questions_per_step", "max_steps", "seed", "output_dir", "resume", "trl")


@dataclass
class ExperimentSettings:
    """Settings of the verb ``compare``; any other of the verb train, or of TRL, holds for all arms (``train``)."""

    model: str = setting("", "Base model of all arms: id, directory, GGUF file or tiny.")
    questions: str = setting("", "Training questions with rephrasings: a file or a named set.")
    output_dir: Path = setting(Path(), "Directory of the experiment.")
    arms: str | list[str] = setting(",".join(CHAIN), f"Arms, with commas, of: {', '.join(ARMS)}.")
    seeds: str | list[int] = setting("0,1,2", "Seeds, with commas; the seed is the unit of the test between arms.")
    num_rephrasings: int = setting(3, "N, rephrasings of a question.")
    generations_per_phrasing: int = setting(8, "G, completions of a phrasing; matched arms: (N + 1) * G a question.")
    questions_per_step: int = setting(8, "Questions of one optimiser step.")
    max_steps: int = setting(50, "Optimiser steps.")
    limit: int | None = setting(None, "Train on the first questions only.")
    benchmarks: str | list[str] = setting("", "Sets to evaluate on, with commas, as for eval.")
    num_samples: int = setting(32, "Samples of each question of an evaluation.")
    eval_limit: int | None = setting(None, "The first questions of each evaluation set only.")
    eval_batch_size: int | None = setting(None, "Completions that an evaluation draws together. Default: as for eval.")
    only: str | list[str] = setting("", "Run these alone, with commas: ARM, or ARM:SEED. The others may run elsewhere.")
    resume: bool = setting(False, "Go on with an experiment, or add arms and seeds to it.")
    train: dict[str, Any] = setting({}, "Any other setting of train or TRL, for all arms: --train.KEY VALUE.")

    def __post_init__(self) -> None:
        for name in ("model", "questions", "benchmarks"):
            if not getattr(self, name):
                raise UserError(f"--{name} is missing; an experiment names it in its YAML file or as a flag")
        if self.output_dir == Path():
            raise UserError("--output-dir is missing: name the directory of the experiment, such as runs/controls")
        self.arms, self.benchmarks, self.only = (_words(x) for x in (self.arms, self.benchmarks, self.only))
        check_names(self.arms, ARMS, where="arms")
        try:
            self.seeds = [int(seed) for seed in _words(self.seeds)]
        except ValueError:
            raise UserError(f"seeds must be whole numbers with commas between them; got {self.seeds!r}") from None
        for name in ("arms", "seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)) or not getattr(self, name):
                raise UserError(f"{name} must be at least one, each named once; got {getattr(self, name)}")
        for name in ("num_rephrasings", "generations_per_phrasing", "questions_per_step", "max_steps", "num_samples"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be 1 or more")
        if fixed := sorted(set(self.train) & set(_OURS)):
            raise UserError(f"train.{fixed[0]}: the arms decide this; use the experiment's own settings")
        hints = get_type_hints(TrainSettings)
        ours = {name: value for name, value in self.train.items() if name in hints}
        self.train = self.train | typed_settings(ours, hints, where="settings of train")
        for name in self.only:
            arm, _, seed = str(name).partition(":")
            if arm not in self.arms or (seed and seed not in map(str, self.seeds)):
                raise UserError(f"only: {name!r} is no arm, or ARM:SEED, of this experiment")

    @property
    def shape(self) -> Shape:
        return Shape(self.num_rephrasings, self.generations_per_phrasing, self.questions_per_step, self.max_steps)

    def record(self) -> dict[str, Any]:
        """What ``config.json`` holds."""
        settings = asdict(self)
        for name in ("output_dir", "only", "resume"):
            del settings[name]
        return settings

    def digest(self) -> str:
        """Of all settings that a result depends on beside its arm and seed."""
        kept = {name: value for name, value in self.record().items() if name not in FREE_TO_CHANGE}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

    def jobs(self) -> Iterator[tuple[str, int]]:
        """Arm and seed of what is to run here; a seed of all arms before the next seed."""
        for seed in self.seeds:
            for arm in self.arms:
                if not self.only or arm in self.only or f"{arm}:{seed}" in self.only:
                    yield str(arm), int(seed)

    def result_file(self, arm: str, seed: int) -> Path:
        return self.output_dir / "results" / f"{arm}_seed_{seed}.json"


def open_experiment(settings: ExperimentSettings) -> RunDir:
    """The experiment's directory, held by this process until its ``with`` block ends.

    Raises:
        UserError: as ``RunDir.open``.
    """
    return RunDir(settings.output_dir, settings.record()).open(settings.resume, FREE_TO_CHANGE)


def run_arm(settings: ExperimentSettings, name: str, seed: int) -> dict[str, Any]:
    """Train and evaluate one arm with one seed, or what is left of it; returns its result.

    Raises:
        UserError: what training or evaluation refuse; a result file of another experiment.
    """
    from ..evaluation.jobs import evaluate_target
    from ..evaluation.settings import EvalSettings
    from ..trl.training import train

    path = settings.result_file(name, seed)
    if path.exists():
        return read_result(settings, name, seed)
    run_dir = settings.output_dir / "runs" / name / f"seed_{seed}"
    if not is_finished(run_dir):
        train(train_settings(settings, name, seed, run_dir))
    place = run_dir / "eval"
    asked = EvalSettings(
        benchmarks=[str(spec) for spec in settings.benchmarks],
        output_dir=place,
        num_samples=settings.num_samples,
        limit=settings.eval_limit,
        seed=seed,
        batch_size=settings.eval_batch_size,
        resume=place.is_dir() and any(is_begun(folder) for folder in place.iterdir()),
    )
    (sets,) = evaluate_target(str(run_dir), asked).values()
    result = {
        "experiment": settings.digest(),
        "arm": name,
        "seed": seed,
        "budget": asdict(budget(run_dir)),
        "evaluations": {
            benchmark: {"num_samples": evaluation.num_samples, "correct": dict(evaluation.correct)}
            for benchmark, evaluation in sets.items()
        },
    }
    write_json_atomic(path, result)
    return result


def read_result(settings: ExperimentSettings, name: str, seed: int) -> dict[str, Any]:
    """The result file of an arm and seed.

    Raises:
        UserError: it is damaged, or belongs to an experiment with other settings.
    """
    path = settings.result_file(name, seed)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        theirs = result["experiment"]
        Budget(**result["budget"])
        for evaluation in result["evaluations"].values():
            if not all(0 <= correct <= evaluation["num_samples"] for correct in evaluation["correct"].values()):
                raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged; remove it to run this arm again") from None
    if theirs != settings.digest():
        raise UserError(f"{path} comes from an experiment with other settings; remove it, or use its experiment's file")
    return result


def train_settings(
    settings: ExperimentSettings, name: str, seed: int, run_dir: Path, write: bool = True
) -> TrainSettings:
    """What the verb train is asked for one arm and seed; an arm's own question file is written if need be.

    With ``write`` off nothing is, and the original file stands for it.
    """
    arm = ARMS[name]
    own = {field.name for field in fields(TrainSettings)}
    values: dict[str, Any] = {
        "model": settings.model,
        "questions": settings.questions,
        "questions_per_step": settings.questions_per_step,
        "max_steps": settings.max_steps,
        **settings.train,
        **arm.settings(settings.shape),
    }
    if settings.limit is not None:
        values["limit"] = round(settings.limit * arm.more_questions)
    if arm.questions is not None and write:
        values |= _changed_questions(settings, name, arm)
    # A pass holds what divides a step of every arm; its size is a matter of memory alone.
    rows = values["questions_per_step"] * values["num_generations"]
    values["per_device_train_batch_size"] = math.gcd(rows, values.get("per_device_train_batch_size", _ROWS_A_PASS))
    other = {key: values.pop(key) for key in list(values) if key not in own}
    return TrainSettings(**values, trl=other, seed=seed, output_dir=run_dir, resume=is_begun(run_dir))


def _changed_questions(settings: ExperimentSettings, name: str, arm: Arm) -> dict[str, Any]:
    """The arm's own question file, written once, and the template of the set it was made from."""
    from ..questions import load_questions, save_questions

    assert arm.questions is not None  # noqa: S101 - the caller's condition
    questions = load_questions(settings.questions)
    path = settings.output_dir / "data" / f"{name}.jsonl"
    if not path.exists():
        kept = questions[: settings.limit] if settings.limit is not None else questions
        # N rephrasings, as the other arms use.
        first = (replace(question, rephrasings=question.rephrasings[: settings.num_rephrasings]) for question in kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_questions([new for question in first for new in arm.questions(question)], path)
    template = settings.train.get("prompt_template", questions.prompt_template)
    return {"questions": str(path), "prompt_template": template, "limit": None}


@dataclass(frozen=True)
class Budget:
    """What an arm with a seed has spent on training.

    Attributes:
        questions: different ones that were sampled from.
        responses: completions sampled.
        tokens_generated: their tokens.
        tokens_trained: their tokens in the batches that are trained on; more than generated with several iterations
            or ``pull_to_original``, fewer with ``dynamic_sampling``.
        updates: optimiser steps.
        seconds: of the steps, as measured on the machine they ran on.
    """

    questions: int
    responses: int
    tokens_generated: int
    tokens_trained: int
    updates: int
    seconds: float


def budget(run_dir: Path) -> Budget:
    """What a finished run has spent, from its metrics and rollouts."""
    iterations = read_json(run_dir / "config.json").get("num_iterations") or 1
    steps = read_metrics(run_dir, {"completions/mean_length": _NUMBER, "step_time": _NUMBER})
    ids: set[Any] = set()
    responses, generated, trained = 0, 0.0, 0.0
    for step in steps:
        path = rollouts_file(run_dir, step["step"])
        if not path.exists():  # a further update on the same completions
            continue
        column = read_rollouts(path, ["id"])["id"]
        ids.update(column.to_pylist())
        responses += len(column)
        tokens = len(column) * step["completions/mean_length"]
        generated += tokens
        kept = 1 - step.get("dynamic_sampling/thrown_away", 0.0)
        trained += tokens * kept * (1 + step.get("completions/pulled_share", 0.0)) * iterations
    return Budget(
        questions=len(ids),
        responses=responses,
        tokens_generated=round(generated),
        tokens_trained=round(trained),
        updates=len(steps),
        seconds=round(sum(step["step_time"] for step in steps), 1),
    )


def _words(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return list(value) if isinstance(value, list) else [value]
