"""``ta-grpo eval``: pass@k of a model or a run's checkpoints on sets of questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..errors import UserError
from ..evaluation.jobs import Job, check_jobs, do_jobs, plan_jobs, plan_rescoring
from ..evaluation.settings import EvalSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from ..evaluation import Evaluation, Mean
    from ..statistics import PairedComparison


def eval_(
    target: Annotated[
        str, Parameter(help="A run directory, a checkpoint, a model (id, directory, .gguf, tiny), or a served model.")
    ],
    /,
    flags: flags_of(EvalSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what would be done, and stop.")] = False,
    json: AsJson = False,
) -> None:
    """Estimate pass@k of a model, or of a run's checkpoints, on sets of questions."""
    settings = resolve(EvalSettings, flags, config)
    jobs = plan_rescoring(target, settings) if settings.rescore else plan_jobs(target, settings)
    if dry_run:
        _dry_run(jobs, settings, json)
        return
    other = {} if settings.against is None else _other(settings.against, jobs)
    check_jobs(jobs, settings)
    evaluations = do_jobs(jobs, settings)
    _show(jobs, evaluations, _compared(evaluations, other), json)


def _other(path: Path, jobs: Sequence[Job]) -> dict[str, Evaluation]:
    """The evaluations of ``--against`` by set; a single one is compared with a single set of any name.

    Raises:
        UserError: there are none, or of other questions.
    """
    from ..evaluation import load_evaluation

    names = list(dict.fromkeys(job.name for job in jobs))
    path = path.parent if path.name == "summary.json" else path
    root = path / "eval" if (path / "eval").is_dir() else path
    if (path / "summary.json").is_file():
        name = path.name if path.name in names or len(names) > 1 else names[0]
        there = {name: load_evaluation(path)}
    else:
        there = {name: load_evaluation(root / name) for name in names if (root / name / "summary.json").is_file()}
    if not there.keys() & set(names):
        raise UserError(
            f"--against {path}: no finished evaluation of {', '.join(names)} lies there; name an evaluation's "
            "directory, a run or a summary.json"
        )
    for job in jobs:
        theirs = there.get(job.name)
        asked = {question.id for question in job.questions}
        if theirs is not None and asked != theirs.correct.keys() | set(theirs.unusable_gold):
            raise UserError(
                f"--against {path}: its {job.name} has {theirs.num_questions} questions and this one {len(asked)}, not "
                "the same ones; a paired comparison needs the same set and --limit"
            )
    return there


def _compared(
    evaluations: Mapping[str, Mapping[str, Evaluation]], other: Mapping[str, Evaluation]
) -> dict[str, dict[str, dict[int, PairedComparison]]]:
    from ..evaluation import compare

    return {
        target: {
            name: compare(ours, other[name], [k for k in ours.pass_at_k if k in other[name].pass_at_k])
            for name, ours in sets.items()
            if name in other
        }
        for target, sets in evaluations.items()
    }


def _show(
    jobs: Sequence[Job],
    evaluations: Mapping[str, Mapping[str, Evaluation]],
    compared: Mapping[str, Mapping[str, Mapping[int, PairedComparison]]],
    json: bool,
) -> None:
    from ..evaluation import comparison_table, mean_of, render_table

    means = {target: mean_of(list(sets.values())) for target, sets in evaluations.items() if len(sets) > 1}
    if json:
        places = {(job.target.name, job.name): job.output_dir for job in jobs}
        shown = [_as_json(target, sets, means.get(target), compared, places) for target, sets in evaluations.items()]
        print_json({"evaluations": shown})
        return
    rows: dict[str, Evaluation | Mean] = {}
    gaps: dict[str, Mapping[int, PairedComparison]] = {}
    for target, sets in evaluations.items():
        prefix = f"{target} " if len(evaluations) > 1 else ""
        rows |= {f"{prefix}{name}": evaluation for name, evaluation in sets.items()}
        if target in means:
            rows[f"{prefix}mean"] = means[target]
        gaps |= {f"{prefix}{name}": gap for name, gap in compared.get(target, {}).items()}
    ks = sorted({k for row in rows.values() for k in row.pass_at_k})
    print_table(render_table(rows, ks))
    if gaps:
        print_table(comparison_table(gaps, ks))
    print_pairs("\nWritten to", [(str(job.output_dir), "") for job in jobs])


def _as_json(
    target: str,
    sets: Mapping[str, Evaluation],
    mean: Mean | None,
    compared: Mapping[str, Mapping[str, Mapping[int, PairedComparison]]],
    places: Mapping[tuple[str, str], Path],
) -> dict[str, Any]:
    from ..evaluation.summary import without_nan

    benchmarks = {
        name: {
            field: value
            for field, value in (asdict(evaluation) | {"num_questions": evaluation.num_questions}).items()
            if field not in ("correct", "vote_right")  # a figure a question: those stand in summary.json
        }
        | {"directory": str(places[target, name])}
        for name, evaluation in sets.items()
    }
    gaps = {name: {k: asdict(gap) for k, gap in by_k.items()} for name, by_k in compared.get(target, {}).items()}
    return without_nan(
        {
            "model": target,
            "benchmarks": benchmarks,
            "mean": None if mean is None else asdict(mean),
            "against": gaps or None,
        }
    )


def _dry_run(jobs: Sequence[Job], settings: EvalSettings, json: bool) -> None:
    plans = []
    for job in jobs:
        completions = len(job.questions) * job.sampling.num_samples
        stored = _lines(job.output_dir / "samples.jsonl")
        to_draw = 0 if settings.rescore else max(completions - stored, 0)
        plans.append(
            {
                "directory": str(job.output_dir),
                "questions": len(job.questions),
                "completions": completions,
                "stored": stored,
                "to_draw": to_draw,
                "tokens_at_most": to_draw * job.sampling.max_new_tokens,
                "settings": job.run.config,
            }
        )
    if json:
        print_json({"evaluations": plans})
        return
    for plan in plans:
        pairs = {**plan["settings"], **{name: value for name, value in plan.items() if name != "settings"}}
        print_pairs(f"\n{plan['directory']}", [(k, v) for k, v in pairs.items() if v not in (None, {})])


def _lines(path: Path) -> int:
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        return sum(line.endswith(b"\n") for line in file)
