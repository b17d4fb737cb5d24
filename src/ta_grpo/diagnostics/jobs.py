"""What there is to diagnose, one checkpoint at a time: planned, checked, then done."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..evaluation.progress import SamplingProgress
from ..evaluation.targets import Target, find_targets, is_run
from ..rundir import (
    CHECKPOINT_PREFIX,
    RunDir,
    checkpoints,
    is_begun,
    is_finished,
    read_json,
    read_jsonl,
    write_json_atomic,
)
from .settings import NO_EMBEDDER, DiagnoseSettings

if TYPE_CHECKING:
    from ..questions import Question
    from ..sampling import SamplingSettings
    from .diversity import Embedder

logger = logging.getLogger(__name__)

BASE = "base"
SAMPLES_FILE = "samples.jsonl"
RESULT_FILE = "figures.json"
# What may differ between a diagnosis and its resumption without changing a sample.
FREE_TO_CHANGE = ("embedder", "rows_a_pass")
# TRL's, for a run whose config.json leaves them open.
_MAX_COMPLETION_LENGTH = 256
_TEMPERATURE = 1.0
_EPSILON = 0.2


@dataclass(frozen=True)
class Job:
    """One checkpoint, or the base model as step 0, on the probe questions.

    Attributes:
        step: of the checkpoint.
        since: the step of the checkpoint before it; 0 if there is none.
        epsilon: the run's clipping range below and above 1.
        base_model: what the run began with.
    """

    run_dir: Path
    target: Target
    step: int
    questions: Sequence[Question]
    output_dir: Path
    run: RunDir
    sampling: SamplingSettings
    num_rephrasings: int
    template: str
    epsilon: tuple[float, float]
    base_model: str
    since: int

    @property
    def has_reference(self) -> bool:
        """Whether the base model scores too; it is its own reference, and needs no second pass."""
        return bool(self.run.config["kl"]) and self.target.name != BASE

    @property
    def place(self) -> Path:
        """Where the results of all checkpoints stand together."""
        whole = self.output_dir.parent
        return (self.run_dir if whole == self.run_dir / "diagnostics" else whole) / "diagnostics.json"


def plan_jobs(run: str, settings: DiagnoseSettings) -> list[Job]:
    """Every checkpoint of a run, with nothing touched yet.

    Raises:
        UserError: no run, no checkpoint, questions that cannot serve, counts that do not fit.
    """
    path = Path(run).expanduser()
    one_checkpoint = path.name.startswith(CHECKPOINT_PREFIX) and is_run(path.parent)
    if not is_run(path) and not one_checkpoint:
        raise UserError(f"{run} is no run directory (no config.json and manifest.json); name one that train has made")
    targets = find_targets(run, settings.every_checkpoint and not one_checkpoint)
    run_dir = path.parent if one_checkpoint else path
    config = read_json(run_dir / "config.json", ("model", "questions", "num_rephrasings", "num_generations"))
    if settings.base:
        targets = [_base(config, targets[0]), *targets]
    num_rephrasings, group_size = _counts(config, settings)
    spec, questions, data = _probe_questions(config, settings, num_rephrasings)
    sampling = _sampling(config, settings, targets[-1], group_size // (num_rephrasings + 1))
    template = targets[-1].prompt_template or questions.prompt_template
    if config.get("reward", "accuracy") != "accuracy":
        logger.warning("%s was trained with reward=%s; its diagnostics judge answers alone", run_dir, config["reward"])
    epsilon = _clipping_range(config)
    steps = [0, *(_step(path.name) for path in checkpoints(run_dir))]
    jobs = []
    for target in targets:
        step = 0 if target.name == BASE else _step(target.name)
        output_dir = (settings.output_dir or run_dir / "diagnostics") / target.name
        record = {
            "checkpoint": target.name,
            "model": config["model"] if target.name == BASE else target.name,
            "questions": spec,
            "question_ids": [question.id for question in questions],
            "num_rephrasings": num_rephrasings,
            "num_generations": group_size,
            **asdict(sampling),
            "rows_a_pass": settings.rows_a_pass,
            "epsilon": list(epsilon),
            "kl": settings.kl,
            "embedder": settings.embedder,
            "prompt_template": template,
            "prompt_format": "messages" if target.conversational else "text",
            "chat_template_kwargs": dict(target.chat_template_kwargs),
        }
        jobs.append(
            Job(
                run_dir=run_dir,
                target=target,
                step=step,
                questions=questions,
                output_dir=output_dir,
                run=RunDir(output_dir, record, data),
                sampling=sampling,
                num_rephrasings=num_rephrasings,
                template=template,
                epsilon=epsilon,
                base_model=config["model"],
                since=max((earlier for earlier in steps if earlier < step), default=0),
            )
        )
    return jobs


def _step(checkpoint: str) -> int:
    return int(checkpoint.removeprefix(CHECKPOINT_PREFIX))


def _clipping_range(config: Mapping[str, Any]) -> tuple[float, float]:
    """epsilon below and above, as TRL takes them: the upper one is the lower one where it is not set."""
    low = _EPSILON if config.get("epsilon") is None else config["epsilon"]
    high = (config.get("trl") or {}).get("epsilon_high")
    return low, low if high is None else high


def _base(config: Mapping[str, Any], like: Target) -> Target:
    return Target(
        config["model"],
        BASE,
        prompt_template=like.prompt_template,
        conversational=like.conversational,
        chat_template_kwargs=like.chat_template_kwargs,
        max_new_tokens=like.max_new_tokens,
    )


def _counts(config: Mapping[str, Any], settings: DiagnoseSettings) -> tuple[int, int]:
    """N and K, which divides into N + 1 phrasings."""
    from ..group import nearest_group_sizes

    num_rephrasings = settings.num_rephrasings or config["num_rephrasings"]
    if num_rephrasings < 1:
        raise UserError(
            "the run was trained with num_rephrasings=0: say with how many it is to be probed, such as "
            "--num-rephrasings 3"
        )
    group_size = settings.num_generations or config["num_generations"]
    if group_size % (num_rephrasings + 1):
        sizes = " or ".join(map(str, nearest_group_sizes(group_size, num_rephrasings + 1)))
        raise UserError(
            f"num_generations={group_size} does not divide into {num_rephrasings + 1} phrasings; add "
            f"--num-generations {sizes}"
        )
    return num_rephrasings, group_size


def _probe_questions(config: Mapping[str, Any], settings: DiagnoseSettings, num_rephrasings: int) -> Any:
    """The name of the set, its first questions that can serve, and the file they come from."""
    from ..questions import load_questions
    from ..verifier import with_checkable_answers

    spec = settings.questions or config["questions"]
    loaded = load_questions(spec, None if settings.questions else config.get("columns"))
    enough = [question for question in loaded if len(question.rephrasings) >= num_rephrasings]
    if not enough:
        raise UserError(
            f"{spec}: none of its {len(loaded)} questions has {num_rephrasings} rephrasings; add some (ta-grpo "
            "rephrase), name another --questions, or lower --num-rephrasings"
        )
    asked = loaded.with_questions(enough[: settings.num_questions])
    if len(asked) < settings.num_questions:
        logger.warning("%s: only %d questions have %d rephrasings", spec, len(asked), num_rephrasings)
    chosen = loaded.with_questions(with_checkable_answers(asked)[0])
    return spec, chosen, {} if loaded.path is None else {"questions": loaded.path}


def _sampling(
    config: Mapping[str, Any], settings: DiagnoseSettings, target: Target, per_phrasing: int
) -> SamplingSettings:
    from ..sampling import SamplingSettings

    lengths = (settings.max_new_tokens, target.max_new_tokens, _MAX_COMPLETION_LENGTH)
    temperature = config.get("temperature")
    return SamplingSettings(
        num_samples=per_phrasing,
        max_new_tokens=next(length for length in lengths if length is not None),
        temperature=_TEMPERATURE if temperature is None else temperature,
        seed=settings.seed,
        batch_size=settings.batch_size,
    )


def check_jobs(jobs: Sequence[Job], settings: DiagnoseSettings) -> None:
    """Refuse what cannot be done, before anything is.

    Args:
        jobs: of one run or of several.

    Raises:
        UserError: packages that are missing; a directory used for something else, or unfinished without --resume; or
            nothing to resume.
    """
    if settings.embedder != NO_EMBEDDER and not all(map(_is_done, jobs)):
        from .diversity import check_embedder

        check_embedder(settings.embedder)
    if settings.resume and not any(is_begun(job.output_dir) for job in jobs):
        raise UserError(f"{jobs[0].output_dir} holds nothing to resume; leave --resume out to start")
    for job in jobs:
        if is_begun(job.output_dir):
            job.run.check(True, FREE_TO_CHANGE)  # other settings are the first thing to tell
        job.run.check(_goes_on(job, settings), FREE_TO_CHANGE)


def _goes_on(job: Job, settings: DiagnoseSettings) -> bool:
    """What has finished is read, or summed up anew with another embedder; later checkpoints may not be begun yet."""
    return is_begun(job.output_dir) and (settings.resume or is_finished(job.output_dir))


def _is_done(job: Job) -> bool:
    """Whether there is nothing to do but to read the figures."""
    if not is_finished(job.output_dir) or not (job.output_dir / RESULT_FILE).exists():
        return False
    return read_json(job.run.config_file).get("embedder") == job.run.config["embedder"]


def diagnose_run(jobs: Sequence[Job], settings: DiagnoseSettings, embedder: Embedder | None = None) -> dict[str, Any]:
    """The results of a run's checkpoints in the order of their steps, and the findings; written to diagnostics.json.

    Args:
        jobs: of one run, which ``check_jobs`` has passed.
        embedder: instead of the one that the settings name.
    """
    from .findings import findings_of, trends

    if embedder is None and settings.embedder != NO_EMBEDDER and not all(map(_is_done, jobs)):
        from .diversity import SentenceEmbedder

        embedder = SentenceEmbedder(settings.embedder)
    results = [_do_job(job, settings, embedder) for job in jobs]
    found = [asdict(finding) for result in results for finding in findings_of(result)]
    found += [asdict(finding) for finding in trends(results)]
    told = {"run": str(jobs[0].run_dir), "checkpoints": results, "findings": found}
    write_json_atomic(jobs[0].place, _without_nan(told))
    return told


def _do_job(job: Job, settings: DiagnoseSettings, embedder: Embedder | None) -> dict[str, Any]:
    path = job.output_dir / RESULT_FILE
    if _is_done(job):
        return _read_result(path)
    with job.run.open(_goes_on(job, settings), FREE_TO_CHANGE):
        _draw(job, settings)
        result = _summed_up(job, embedder)
        write_json_atomic(path, _without_nan(result))
    return result


def _draw(job: Job, settings: DiagnoseSettings) -> None:
    from transformers.utils import logging as transformers_logging

    from ..models import choose_threads, load_model
    from .probe import count_completions, probe

    path = job.output_dir / SAMPLES_FILE
    if len(read_jsonl(path)) == count_completions(len(job.questions), job.num_rephrasings, job.sampling.num_samples):
        return
    transformers_logging.disable_progress_bar()  # one display is enough
    model, tokenizer = load_model(job.target.model)
    choose_threads(model)
    reference = load_model(job.base_model)[0] if job.has_reference else model if job.run.config["kl"] else None
    with SamplingProgress(f"{job.run_dir.name} {job.target.name}") as progress:
        probe(
            model,
            tokenizer,
            job.questions,
            path,
            num_rephrasings=job.num_rephrasings,
            settings=job.sampling,
            template=job.template,
            conversational=job.target.conversational,
            chat_template_kwargs=dict(job.target.chat_template_kwargs),
            rows_a_pass=settings.rows_a_pass,
            epsilon=job.epsilon,
            reference=reference,
            on_progress=lambda done, total: progress("sampling and scoring", done, total),
        )


def _summed_up(job: Job, embedder: Embedder | None) -> dict[str, Any]:
    from .figures import differences, per_question_figures, with_intervals
    from .recorded import recorded

    ids = [question.id for question in job.questions]
    per_phrasing = job.sampling.num_samples
    lines = read_jsonl(job.output_dir / SAMPLES_FILE)
    figures, between = per_question_figures(lines, ids, job.num_rephrasings, per_phrasing, embedder)
    return {
        "checkpoint": job.target.name,
        "step": job.step,
        "num_questions": len(ids),
        "num_rephrasings": job.num_rephrasings,
        "per_phrasing": per_phrasing,
        "group_size": per_phrasing * (job.num_rephrasings + 1),
        "embedder": job.run.config["embedder"],
        "reward_variance_between_phrasings": between,
        "training": recorded(job.run_dir, job.since, job.step),
        "figures": with_intervals(figures),
        "differences": differences(figures, job.num_rephrasings),
        "question_ids": ids,
        "per_question": figures,
    }


def _read_result(path: Path) -> dict[str, Any]:
    return _with_nan(read_json(path))


def _without_nan(content: Any) -> Any:
    """The same with None for NaN, which JSON has not."""
    from ..evaluation.summary import without_nan

    return without_nan(content)


def _with_nan(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _with_nan(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_with_nan(value) for value in content]
    return math.nan if content is None else content
