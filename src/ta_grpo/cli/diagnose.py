"""``ta-grpo diagnose``: what rephrasing does to the training signal of a run's checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..diagnostics.jobs import SAMPLES_FILE, Job, check_jobs, diagnose_run, plan_jobs
from ..diagnostics.settings import DiagnoseSettings
from ..errors import UserError
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table, print_text

if TYPE_CHECKING:
    from rich.table import Table


def diagnose(
    *runs: Annotated[str, Parameter(help="Run directories, or checkpoints in them.")],
    flags: flags_of(DiagnoseSettings, {"num_questions": "--limit"}) = None,  # pyright: ignore[reportInvalidTypeForm]
    config: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what would be done, and stop.")] = False,
    json: AsJson = False,
) -> None:
    """Measure what rephrasing does to the training signal of a run's checkpoints.

    Each probe question is asked as it is and in its rephrasings, with equal numbers of completions.
    """
    settings = resolve(DiagnoseSettings, flags, config)
    if not runs:
        raise UserError("name at least one run directory: ta-grpo diagnose runs/first")
    if len(runs) > 1 and settings.output_dir is not None:
        raise UserError("--output-dir is for one run; of several, each keeps its results in its own directory")
    plans = [plan_jobs(run, settings) for run in runs]
    if dry_run:
        _dry_run([job for jobs in plans for job in jobs], json)
        return
    check_jobs([job for jobs in plans for job in jobs], settings)
    told = [diagnose_run(jobs, settings) for jobs in plans]
    if json:
        from ..evaluation.summary import without_nan

        print_json(without_nan({"runs": [_without_questions(each) for each in told]}))
        return
    for each in told:
        _show(each)
    print_pairs("\nWritten to", [(str(jobs[0].place), "") for jobs in plans])


def _without_questions(told: Mapping[str, Any]) -> dict[str, Any]:
    """A figure a question stands in diagnostics.json."""
    checkpoints = [
        {name: value for name, value in result.items() if name not in ("per_question", "question_ids")}
        for result in told["checkpoints"]
    ]
    return {**told, "checkpoints": checkpoints}


def _show(told: Mapping[str, Any]) -> None:
    print_table(_signal_table(told))
    print_text("")
    print_table(_policy_table(told))
    print_text("")
    if not told["findings"]:
        print_text("No finding: every interval holds 0. More questions (--num-questions) would show more.")
    for finding in told["findings"]:
        print_text(f"- {finding['checkpoint']}: {finding['text']}.")


def _signal_table(told: Mapping[str, Any]) -> Table:
    from rich.table import Table

    first = told["checkpoints"][0]
    group, per_phrasing = first["group_size"], first["per_phrasing"]
    table = Table(
        title=told["run"],
        caption=f"{first['num_questions']} questions, means with 95 % intervals over questions, uncorrected for their "
        f"number. mixed: shares of questions in %, of {per_phrasing} and {group} samples on the original and of "
        f"{per_phrasing} on each of {first['num_rephrasings'] + 1} phrasings; rescued: uniform at {group} on the "
        "original, mixed jointly. right: completions of the original / of rephrasings, in %. between: share of a "
        "question's reward variance between phrasings. distance, Vendi: mean cosine distance and effective number of "
        "right completions, original / joint, of the questions that have both.",
    )
    table.add_column("checkpoint")
    for column in (f"mixed q0×{per_phrasing}", f"mixed q0×{group}", "mixed joint", "rescued", "right on / off"):
        table.add_column(column, justify="right")
    for column in ("between", "distance", "Vendi"):
        table.add_column(column, justify="right")
    for result in told["checkpoints"]:
        figures, between = result["figures"], result["reward_variance_between_phrasings"]
        table.add_row(
            result["checkpoint"],
            *(_percent(figures.get(name)) for name in ("original/mixed", "equal_budget/mixed", "joint/mixed")),
            _percent(figures.get("rescued")),
            _both(figures, "reward", ".0f", 100),
            "–" if math.isnan(between) else f"{round(100 * between)} %",
            _original_and_joint(result["differences"], "cosine_distance", ".3f"),
            _original_and_joint(result["differences"], "vendi", ".1f"),
        )
    return table


def _policy_table(told: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        caption="on / off: completions of the original / of rephrasings, each under the prompt it was sampled from. "
        "KL: to the base model, nats a token over the vocabulary; tokens: length; gap: nats a token between a "
        "rephrasing and the original; ESS: effective share of rephrasings' completions as samples of the original. "
        "clip, training: tokens in % whose gradient the clip took away since the checkpoint before, as recorded; clip, "
        "importance: tokens of rephrasings where it would, from a true importance ratio."
    )
    table.add_column("checkpoint")
    for column in ("KL on / off", "entropy on / off", "tokens on / off", "gap", "ESS", "clip, training on / off"):
        table.add_column(column, justify="right")
    table.add_column("clip, importance", justify="right")
    for result in told["checkpoints"]:
        figures = result["figures"]
        table.add_row(
            result["checkpoint"],
            _both(figures, "kl_exact", ".2g"),
            _both(figures, "entropy", ".2f"),
            _both(figures, "tokens", ".0f"),
            _plain(figures.get("off_prompt/gap")),
            _percent(figures.get("off_prompt/ess_share")),
            _clip_in_training(result["training"]),
            _percent(figures.get("off_prompt/clip_importance")),
        )
    return table


def _both(figures: Mapping[str, Any], name: str, form: str, times: float = 1.0) -> str:
    """On-prompt and off-prompt."""
    sides = (figures.get(f"{side}_prompt/{name}") for side in ("on", "off"))
    return " / ".join("–" if side is None else format(times * side["mean"], form) for side in sides)


def _percent(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "–"
    return f"{100 * figure['mean']:.0f} [{100 * figure['low']:.0f},\u00a0{100 * figure['high']:.0f}]"


def _plain(figure: Mapping[str, float] | None) -> str:
    return "–" if figure is None else f"{figure['mean']:.2f} [{figure['low']:.2f},\u00a0{figure['high']:.2f}]"


def _original_and_joint(differences: Mapping[str, Any], name: str, form: str) -> str:
    """Of right completions, over the questions that have both."""
    gap = differences.get(f"diversity/right/{name}: joint - equal_budget")
    return "–" if gap is None else f"{format(gap['mean_b'], form)} / {format(gap['mean_a'], form)}"


def _clip_in_training(training: Mapping[str, Any]) -> str:
    """Of a run without rephrasings, TRL's share over all completions, which are all on-prompt."""
    figures = training["figures"]
    on = figures.get("clip_ratio/on_prompt", figures.get("clip_ratio/region_mean"))
    shares = (on, figures.get("clip_ratio/off_prompt"))
    return " / ".join("–" if share is None else f"{100 * share:.1f}" for share in shares)


def _dry_run(jobs: Sequence[Job], json: bool) -> None:
    from ..diagnostics.probe import count_completions, count_off_prompt
    from ..rundir import read_jsonl

    plans = []
    for job in jobs:
        completions = count_completions(len(job.questions), job.num_rephrasings, job.sampling.num_samples)
        lines = read_jsonl(job.output_dir / SAMPLES_FILE)
        stored = len(lines)
        # Those of rephrasings are scored under q_0 as well.
        twice = count_off_prompt(len(job.questions), job.num_rephrasings, job.sampling.num_samples)
        twice -= sum(line["phrasing"] > 0 for line in lines)
        plans.append(
            {
                "directory": str(job.output_dir),
                "completions": completions,
                "stored": stored,
                "to_draw": completions - stored,
                "tokens_at_most": (completions - stored) * job.sampling.max_new_tokens,
                "completions_scored": (completions - stored + twice) * (1 + job.has_reference),
                "settings": {name: value for name, value in job.run.config.items() if name != "question_ids"},
                "questions": len(job.questions),
            }
        )
    if json:
        print_json({"diagnostics": plans})
        return
    for plan in plans:
        pairs = {**plan["settings"], **{name: value for name, value in plan.items() if name != "settings"}}
        print_pairs(f"\n{plan['directory']}", [(k, v) for k, v in pairs.items() if v not in (None, {})])
