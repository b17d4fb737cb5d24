"""Run directories and experiments as a report sees them. Only read; nothing is computed that a verb has not written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..evaluation.summary import SUMMARY_FILE, Evaluation, load_evaluation
from ..rundir import METRICS_FILE, checkpoint_dirs, read_json, read_metrics, rollouts_files

if TYPE_CHECKING:
    from ..controls.experiment import ExperimentSettings
    from ..controls.results import Results

EVALUATIONS_DIR = "eval"
DIAGNOSTICS_FILE = "diagnostics.json"
RESULTS_DIR = "results"


@dataclass(frozen=True)
class Run:
    """What a run directory holds; any part may be absent.

    Attributes:
        name: for tables and legends.
        metrics: one record a step.
        evaluations: by set, of the last checkpoint.
        diagnostics: what the verb diagnose has written, or None.
        rollouts: step -> file.
        has_checkpoints: whether there is something to evaluate or diagnose.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    evaluations: Mapping[str, Evaluation]
    diagnostics: Mapping[str, Any] | None
    rollouts: Mapping[int, Path]
    has_checkpoints: bool


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone; a run that was named on its own is an arm of one."""

    name: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class Source:
    """What a page is about: arms, and for an experiment its settings and results.

    Attributes:
        name: of the experiment, or of the runs.
        missing: what an experiment still lacks, each with the command that makes it.
    """

    name: str
    arms: Sequence[Arm]
    experiment: ExperimentSettings | None = None
    results: Results = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    missing: Sequence[tuple[str, str]] = ()

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]


def read_source(paths: Sequence[Path]) -> Source:
    """An experiment, in one directory or in several that were run apart, or one or more runs.

    Raises:
        UserError: a directory that is neither, an experiment beside something else, or a damaged file.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is no directory; name runs, or an experiment, that ta-grpo has made")
    experiments = [path for path in paths if _is_experiment(path)]
    if experiments and len(paths) > len(experiments):
        raise UserError(f"{experiments[0]} is an experiment, which is not reported with single runs; leave those out")
    if experiments:
        return _read_experiment(paths)
    for path in paths:
        if not _is_run(path):
            raise UserError(
                f"{path} is neither a run nor an experiment: it has no {METRICS_FILE}, no rollouts, no "
                f"{EVALUATIONS_DIR}/ and no {RESULTS_DIR}/; name a directory that train, eval or compare has made"
            )
    names = _short_names(paths)
    runs = [read_run(path, name) for path, name in zip(paths, names, strict=True)]
    return Source(", ".join(names), [Arm(run.name, [run]) for run in runs])


def read_run(path: Path, name: str) -> Run:
    """A run directory, complete or not.

    Raises:
        UserError: a damaged file.
    """
    diagnostics = path / DIAGNOSTICS_FILE
    places = sorted((path / EVALUATIONS_DIR).glob(f"*/{SUMMARY_FILE}"))
    return Run(
        name=name,
        path=path,
        config=_read_object(path / "config.json"),
        manifest=_read_object(path / "manifest.json"),
        metrics=read_metrics(path),
        evaluations={place.parent.name: load_evaluation(place.parent) for place in places},
        diagnostics=_read_object(diagnostics) if diagnostics.exists() else None,
        rollouts=rollouts_files(path),
        has_checkpoints=bool(checkpoint_dirs(path)),
    )


def _is_run(path: Path) -> bool:
    evaluated = any((path / EVALUATIONS_DIR).glob(f"*/{SUMMARY_FILE}"))
    return evaluated or (path / METRICS_FILE).exists() or bool(rollouts_files(path))


def _is_experiment(path: Path) -> bool:
    return "arms" in _read_object(path / "config.json") and not (path / METRICS_FILE).exists()


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one if there is no such file."""
    return read_json(path) if path.exists() else {}


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as much before it as tells them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"{paths[0]} is named twice; name each run once")


# Experiments.


def _read_experiment(paths: Sequence[Path]) -> Source:
    """The parts of one experiment; each may hold other arms and seeds of it."""
    from ..controls.experiment import read_result

    parts = [_read_settings(path) for path in paths]
    settings = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if part.digest() != settings.digest():
            raise UserError(f"{path} and {paths[0]} are experiments with different settings; report them one by one")
    planned = [(str(arm), int(seed)) for part in parts for seed in part.seeds for arm in part.arms]
    done: dict[tuple[str, int], Path] = {}
    for path in paths:
        for job in _finished(path):
            if done.setdefault(job, path) != path:
                raise UserError(
                    f"{path} and {done[job]} both hold a result of {job[0]} seed {job[1]}; keep one of them"
                )
    if not done:
        raise UserError(f"{paths[0]} holds no results yet; run ta-grpo compare with --resume, and report again")
    arms, results, absent = [], {}, []
    for name in dict.fromkeys(arm for arm, _ in [*planned, *sorted(done)]):
        seeds = sorted(seed for arm, seed in done if arm == name)
        runs = []
        for seed in seeds:
            place = done[name, seed] / "runs" / name / f"seed_{seed}"
            if _is_run(place):
                runs.append(read_run(place, f"{name}, seed {seed}"))
            else:
                absent.append(f"{name} seed {seed}")
        if seeds:
            arms.append(Arm(name, runs))
            places = {seed: replace(settings, output_dir=done[name, seed]) for seed in seeds}
            results[name] = {seed: read_result(place, name, seed) for seed, place in places.items()}
    settings.arms = [arm.name for arm in arms]
    settings.seeds = sorted({seed for _, seed in done})
    unfinished = [job for job in dict.fromkeys(planned) if job not in done]
    return Source(
        name=", ".join(_short_names(paths)),
        arms=arms,
        experiment=settings,
        results=results,
        manifest=_read_object(paths[0] / "manifest.json"),
        missing=_missing(paths[0], unfinished, absent, len(done)),
    )


def _read_settings(path: Path) -> ExperimentSettings:
    from ..controls.experiment import ExperimentSettings

    try:
        return ExperimentSettings(**_read_object(path / "config.json"), output_dir=path)
    except TypeError as error:
        raise UserError(f"{path / 'config.json'} is not that of an experiment of this version: {error}") from None


def _finished(path: Path) -> list[tuple[str, int]]:
    """Arm and seed of each result file of an arm that there is, by seed."""
    from ..controls.arms import ARMS

    found = []
    for file in (path / RESULTS_DIR).glob("*_seed_*.json"):
        arm, _, seed = file.stem.rpartition("_seed_")
        if arm in ARMS and seed.isdecimal():
            found.append((arm, int(seed)))
    return sorted(found, key=lambda job: (job[1], job[0]))


def _missing(
    path: Path, unfinished: Sequence[tuple[str, int]], absent: Sequence[str], finished: int
) -> list[tuple[str, str]]:
    missing = []
    if unfinished:
        which = _some([f"{arm} seed {seed}" for arm, seed in unfinished])
        missing.append((f"results of {which}", f"ta-grpo compare EXPERIMENT.yaml --output-dir {path} --resume"))
    if absent:
        which = f"all {finished} runs" if len(absent) == finished else _some(absent)
        what = f"training records and rollouts of {which}: only their results are here"
        missing.append((what, f"Copy their directories from where they ran to {path / 'runs'}/ARM/seed_N"))
    return missing


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
