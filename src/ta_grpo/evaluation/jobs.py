"""What there is to evaluate, one target on one set at a time: planned, checked, then done."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..model_card import write_model_card
from ..rundir import RunDir, is_begun, is_finished, read_json
from .progress import SamplingProgress
from .settings import EvalSettings

if TYPE_CHECKING:
    from ..questions import QuestionSet
    from ..sampling import Sampler, SamplingSettings
    from .summary import Evaluation
    from .targets import Target

# What may differ between an evaluation and its resumption without changing a sample.
FREE_TO_CHANGE = ("ks", "base_url", "concurrency")


@dataclass(frozen=True)
class Job:
    """One target on one set."""

    target: Target
    questions: QuestionSet
    output_dir: Path
    run: RunDir
    sampling: SamplingSettings
    template: str
    conversational: bool

    @property
    def name(self) -> str:
        return self.output_dir.name


def plan_jobs(target: str, settings: EvalSettings) -> list[Job]:
    """Every target on every set, with nothing touched yet.

    Raises:
        UserError: what cannot be evaluated.
    """
    from .sample_and_verify import checked_ks

    targets = _targets(target, settings)
    sets = _question_sets(settings)
    jobs = []
    for each in targets:
        sampling = settings.sampling(each)
        ks = checked_ks(settings.ks, sampling.num_samples)  # pyright: ignore[reportArgumentType]
        for spec, questions in sets.items():
            templates = (settings.prompt_template, each.prompt_template, questions.prompt_template)
            template = next(template for template in templates if template is not None)
            conversational = each.conversational if settings.chat_template is None else settings.chat_template
            output_dir = _place(each, settings) / _folder(questions)
            record = {
                "model": each.name,
                "benchmark": spec,
                "limit": settings.limit,
                "ks": ks,
                "backend": settings.backend,
                "base_url": settings.base_url,
                "concurrency": settings.concurrency if settings.backend == "endpoint" else None,
                "vllm": settings.vllm,
                **asdict(sampling),
                "prompt_template": template,
                "prompt_format": "messages" if conversational else "text",
                "chat_template_kwargs": dict(each.chat_template_kwargs),
            }
            run = RunDir(output_dir, record, {} if questions.path is None else {"questions": questions.path})
            jobs.append(Job(each, questions, output_dir, run, sampling, template, conversational))
    return jobs


def plan_rescoring(target: str, settings: EvalSettings) -> list[Job]:
    """The same from what the stored evaluations say of themselves.

    Raises:
        UserError: an evaluation that is not there.
    """
    from ..sampling import SamplingSettings

    sampled = [field.name for field in fields(SamplingSettings)]
    needed = ("limit", "ks", "prompt_template", "prompt_format", *sampled)
    jobs = []
    for each in _targets(target, settings):
        for questions in _question_sets(settings).values():
            output_dir = _place(each, settings) / _folder(questions)
            if not is_begun(output_dir):
                raise UserError(f"{output_dir} holds no evaluation to rescore; sample first, without --rescore")
            stored = read_json(output_dir / "config.json", needed)
            questions = questions[: stored["limit"]] if stored["limit"] else questions
            record = stored | {"ks": settings.ks or stored["ks"]}
            run = RunDir(output_dir, record, {} if questions.path is None else {"questions": questions.path})
            sampling = SamplingSettings(**{name: stored[name] for name in sampled})
            asked = stored["prompt_template"], stored["prompt_format"] == "messages"
            jobs.append(Job(each, questions, output_dir, run, sampling, *asked))
    return jobs


def _targets(name: str, settings: EvalSettings) -> list[Target]:
    from .targets import Target, find_targets, is_run

    if settings.backend == "endpoint":
        if is_run(Path(name)):
            raise UserError(f"{name} is a run; for --backend endpoint, name the model as the server does")
        if settings.every_checkpoint:
            raise UserError("an endpoint serves one model; leave --every-checkpoint out")
        if not Path(name).is_dir():  # many servers know a model by its directory
            return [Target(name, name)]
    return find_targets(name, settings.every_checkpoint)


def _question_sets(settings: EvalSettings) -> dict[str, QuestionSet]:
    from ..benchmarks import load_benchmark

    if not settings.benchmarks:
        raise UserError("--benchmarks is missing: name sets of questions, such as tiny/test,math500; or --preset paper")
    sets: dict[str, QuestionSet] = {}
    for spec in settings.benchmarks:
        questions = load_benchmark(spec)[: settings.limit]
        if _folder(questions) in map(_folder, sets.values()):
            raise UserError(f"--benchmarks: two sets are called {_folder(questions)}; evaluate them one by one")
        sets[spec] = questions
    return sets


def _place(target: Target, settings: EvalSettings) -> Path:
    if settings.output_dir is None:
        if target.output_dir is None:
            raise UserError(f"--output-dir is missing: {target.name} is no run, so say where its evaluations go")
        return target.output_dir
    return settings.output_dir / target.name if settings.every_checkpoint else settings.output_dir


def _folder(questions: QuestionSet) -> str:
    return re.sub(r"[^\w.-]+", "_", questions.name).strip(".") or "questions"


def _is_done(job: Job) -> bool:
    """Whether there is nothing to do but to read the summary."""
    if not is_finished(job.output_dir) or not (job.output_dir / "summary.json").exists():
        return False
    return read_json(job.run.config_file).get("ks") == job.run.config["ks"]


def check_jobs(jobs: Sequence[Job], settings: EvalSettings) -> None:
    """Refuse what cannot be done, before anything is.

    Raises:
        UserError: a directory that is used for something else, or unfinished without --resume; or nothing to resume.
    """
    if settings.resume and not any(is_begun(job.output_dir) for job in jobs):
        raise UserError(f"{jobs[0].output_dir} holds no evaluation to resume; leave --resume out to start one")
    for job in jobs:
        if not is_begun(job.output_dir) and (job.output_dir / "samples.meta.json").exists():
            raise UserError(f"{job.output_dir} holds samples that this verb has not drawn; choose another --output-dir")
        if is_begun(job.output_dir):
            job.run.check(True, _free_to_change(settings))  # other settings are the first thing to tell
        job.run.check(_goes_on(job, settings), _free_to_change(settings))


def _goes_on(job: Job, settings: EvalSettings) -> bool:
    """Whether the job may find its directory used; of several sets, the later ones may not be begun yet."""
    return (settings.resume and is_begun(job.output_dir)) or settings.rescore or _is_done(job)


def _free_to_change(settings: EvalSettings) -> Sequence[str]:
    """Rescoring is what one does after answers were corrected."""
    return (*FREE_TO_CHANGE, "data") if settings.rescore else FREE_TO_CHANGE


# Doing it.


def evaluate_target(target: str, settings: EvalSettings) -> dict[str, dict[str, Evaluation]]:
    """Target -> set -> evaluation: of one model, or of the checkpoints of a run; finished ones are read.

    Raises:
        UserError: what cannot be evaluated.
    """
    jobs = plan_rescoring(target, settings) if settings.rescore else plan_jobs(target, settings)
    check_jobs(jobs, settings)
    return do_jobs(jobs, settings)


def do_jobs(jobs: Sequence[Job], settings: EvalSettings) -> dict[str, dict[str, Evaluation]]:
    """Target -> set -> evaluation, of jobs that ``check_jobs`` has passed."""
    evaluations: dict[str, dict[str, Evaluation]] = {}
    samplers: dict[str, Sampler] = {}
    for job in jobs:
        evaluation = rescore_job(job) if settings.rescore else do_job(job, settings, samplers)
        evaluations.setdefault(job.target.name, {})[job.name] = evaluation
    for checkpoint, run in _of_runs(jobs).items():
        if any(run in job.output_dir.resolve().parents for job in jobs):  # the card tells what lies in the run
            write_model_card(checkpoint)
    return evaluations


def _of_runs(jobs: Sequence[Job]) -> dict[Path, Path]:
    """Checkpoint -> run directory, of the targets that are checkpoints of a run."""
    found = (Path(job.target.model) for job in jobs if job.target.output_dir is not None)
    return {checkpoint: checkpoint.parent.resolve() for checkpoint in found}


def do_job(job: Job, settings: EvalSettings, samplers: dict[str, Sampler]) -> Evaluation:
    from .sample_and_verify import evaluate_sampler
    from .summary import load_evaluation

    if _is_done(job):
        return load_evaluation(job.output_dir)
    if job.target.model not in samplers:
        samplers.clear()  # the last model leaves memory before the next comes
        samplers[job.target.model] = _sampler(job, settings)
    with (
        job.run.open(_goes_on(job, settings), FREE_TO_CHANGE),
        SamplingProgress(f"{job.target.name} {job.name}") as progress,
    ):
        return evaluate_sampler(
            samplers[job.target.model],
            job.questions,
            job.output_dir,
            ks=job.run.config["ks"],
            template=job.template,
            conversational=job.conversational,
            on_progress=progress,
        )


def rescore_job(job: Job) -> Evaluation:
    from .sample_and_verify import rescore

    with job.run.open(True, (*FREE_TO_CHANGE, "data")), SamplingProgress(f"{job.target.name} {job.name}") as progress:
        return rescore(job.questions, job.output_dir, ks=job.run.config["ks"], on_progress=progress)


def _sampler(job: Job, settings: EvalSettings) -> Sampler:
    from ..models import choose_threads, load_model, load_tokenizer, resolve_model
    from ..sampling import EndpointSampler, TransformersSampler, VLLMSampler

    kwargs = job.target.chat_template_kwargs
    if settings.backend == "endpoint":
        return EndpointSampler(job.target.model, job.sampling, settings.base_url, settings.concurrency, kwargs)
    if settings.backend == "vllm":
        import yaml

        model = resolve_model(job.target.model)
        engine = {
            name.replace("-", "_"): yaml.safe_load(value) if isinstance(value, str) else value
            for name, value in settings.vllm.items()
        }
        return VLLMSampler(model, load_tokenizer(model), job.sampling, kwargs, engine)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # one display is enough
    model, tokenizer = load_model(job.target.model)
    choose_threads(model)
    return TransformersSampler(model, tokenizer, job.sampling, kwargs)
