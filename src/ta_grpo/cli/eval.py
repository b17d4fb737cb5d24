"""``ta-grpo eval``: pass@k of a model or a run's checkpoints on sets of questions."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..errors import UserError
from ..rundir import RunDir, is_begun, is_finished
from ..settings import setting
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table
from .progress import SamplingProgress

if TYPE_CHECKING:
    from ..evaluation import Evaluation, Mean
    from ..evaluation.targets import Target
    from ..questions import QuestionSet
    from ..sampling import Sampler, SamplingSettings
    from ..statistics import PairedComparison

DEFAULTS = {"num_samples": 32, "temperature": 1.0, "top_p": 1.0, "seed": 0}
DEFAULT_MAX_NEW_TOKENS = 1024
PRESETS = {
    # arXiv 2601.22478: the authors' evaluation.
    "paper": {
        "num_samples": 128,
        "temperature": 0.6,
        "top_p": 0.95,
        "max_new_tokens": 3072,
        "ks": [1, 2, 4, 8, 16, 32, 64, 128],
    }
}
# Completions of a planned batch. vLLM packs a batch itself, and an endpoint waits for the last of one.
BATCH_SIZES = {"transformers": 64, "vllm": 2048, "endpoint": 1024}
# What may differ between an evaluation and its resumption without changing a sample.
FREE_TO_CHANGE = ("ks", "base_url", "concurrency")
_NOT_OF_RESCORE = (
    *("preset", "num_samples", "temperature", "top_p", "max_new_tokens", "seed", "batch_size", "limit", "base_url"),
    *("chat_template", "prompt_template"),
)


@dataclass
class EvalSettings:
    """Settings of the verb ``eval``."""

    benchmarks: str | list[str] = setting(
        "", "Sets, with commas: a named set (math500, tiny/test), one from a file (aime24=FILE) or a question file."
    )
    output_dir: Path | None = setting(
        None, "Where the evaluations go, a folder a set. Default for a run: its own folder eval."
    )
    preset: str | None = setting(
        None, "paper: 128 samples, temperature 0.6, top_p 0.95, 3072 tokens, k up to 128, the paper's six sets."
    )
    num_samples: int | None = setting(None, "n, completions of each question. Default: 32.")
    ks: str | list[int] | None = setting(None, "The k of pass@k, with commas. Default: 1, 2, 4 and so on up to n.")
    temperature: float | None = setting(None, "Sampling temperature; 0 is greedy, with one sample. Default: 1.0.")
    top_p: float | None = setting(None, "Nucleus sampling. Default: 1.0.")
    max_new_tokens: int | None = setting(
        None, "Longest completion, in tokens. Default: the run's or the model directory's own, else 1024."
    )
    seed: int | None = setting(None, "Seed of sampling. Default: 0.")
    batch_size: int | None = setting(
        None, "Completions drawn together, and kept together. Default: 64; vllm 2048; endpoint 1024."
    )
    limit: int | None = setting(None, "The first questions of each set only.")
    backend: str = setting("transformers", "transformers, vllm (in this process) or endpoint (OpenAI-compatible).")
    base_url: str | None = setting(
        None, "Address of the endpoint, such as http://localhost:8000/v1. Its key: the variable OPENAI_API_KEY."
    )
    concurrency: int = setting(16, "Requests to the endpoint under way at a time.")
    chat_template: bool | None = setting(
        None, "Ask by a chat message, or with plain text. Default: as the run was trained, else by message."
    )
    prompt_template: str | None = setting(
        None, "How a question becomes a prompt; holds {question} once. Default: the run's, else the set's own."
    )
    every_checkpoint: bool = setting(False, "Evaluate every checkpoint of a run.")
    against: Path | None = setting(
        None, "Compare, paired by question, with another evaluation: its directory, a run or a summary.json."
    )
    rescore: bool = setting(False, "Verify the stored samples again; sample nothing.")
    resume: bool = setting(False, "Go on with an unfinished evaluation.")
    vllm: dict[str, Any] = setting({}, "Arguments of vllm.LLM: --vllm.KEY VALUE.")

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise UserError(f"preset={self.preset!r} is not a choice; there is: {', '.join(PRESETS)}")
        if self.backend not in BATCH_SIZES:
            raise UserError(f"backend={self.backend!r} is not a choice; use {', '.join(BATCH_SIZES)}")
        if self.base_url is not None and self.backend != "endpoint":
            raise UserError("--base-url is for --backend endpoint; add that, or leave the address out")
        if self.vllm and self.backend != "vllm":
            raise UserError("--vllm.* is for --backend vllm; add that, or leave them out")
        for name in ("limit", "concurrency"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be 1 or more")
        if self.rescore:
            given = [name for name in _NOT_OF_RESCORE if getattr(self, name) is not None]
            if given or self.backend != "transformers":
                flag = (given or ["backend"])[0].replace("_", "-")
                raise UserError(f"--rescore samples nothing; leave --{flag} out, the stored samples have their own")
        self.ks = _numbers(self.ks)
        chosen = PRESETS.get(self.preset or "", {})
        if not self.rescore:
            for name, default in (DEFAULTS | chosen).items():
                if getattr(self, name) is None:
                    setattr(self, name, default)
        self.benchmarks = _words(self.benchmarks) or _benchmarks_of(self.preset)

    def sampling(self, target: Target) -> SamplingSettings:
        """How completions of a target are drawn."""
        from ..sampling import SamplingSettings

        return SamplingSettings(
            num_samples=self.num_samples or 0,
            max_new_tokens=self.max_new_tokens or target.max_new_tokens or DEFAULT_MAX_NEW_TOKENS,
            temperature=self.temperature or 0.0,
            top_p=self.top_p or 0.0,
            seed=self.seed or 0,
            batch_size=BATCH_SIZES[self.backend] if self.batch_size is None else self.batch_size,
        )


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
    jobs = _rescore_jobs(target, settings) if settings.rescore else _jobs(target, settings)
    if dry_run:
        _dry_run(jobs, settings, json)
        return
    other = {} if settings.against is None else _other(settings.against, jobs)
    if settings.resume and not any(is_begun(job.output_dir) for job in jobs):
        raise UserError(f"{jobs[0].output_dir} holds no evaluation to resume; leave --resume out to start one")
    for job in jobs:
        if not is_begun(job.output_dir) and (job.output_dir / "samples.meta.json").exists():
            raise UserError(f"{job.output_dir} holds samples that this verb has not drawn; choose another --output-dir")
        if is_begun(job.output_dir):
            job.run.check(True, _free_to_change(settings))  # other settings are the first thing to tell
        job.run.check(_goes_on(job, settings), _free_to_change(settings))
    evaluations: dict[str, dict[str, Evaluation]] = {}
    samplers: dict[str, Sampler] = {}
    for job in jobs:
        evaluation = _rescored(job) if settings.rescore else _evaluated(job, settings, samplers)
        evaluations.setdefault(job.target.name, {})[job.name] = evaluation
    _show(jobs, evaluations, _compared(evaluations, other), json)


# What there is to do.


def _jobs(target: str, settings: EvalSettings) -> list[Job]:
    """Every target on every set, with nothing touched yet.

    Raises:
        UserError: what cannot be evaluated.
    """
    from ..evaluation import checked_ks

    targets = _targets(target, settings)
    sets = _question_sets(settings)
    jobs = []
    for each in targets:
        sampling = settings.sampling(each)
        ks = checked_ks(settings.ks, sampling.num_samples)  # pyright: ignore[reportArgumentType]
        for spec, questions in sets.items():
            template = settings.prompt_template or each.prompt_template or questions.prompt_template
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


def _rescore_jobs(target: str, settings: EvalSettings) -> list[Job]:
    """The same from what the stored evaluations say of themselves.

    Raises:
        UserError: an evaluation that is not there.
    """
    from ..sampling import SamplingSettings

    jobs = []
    for each in _targets(target, settings):
        for questions in _question_sets(settings).values():
            output_dir = _place(each, settings) / _folder(questions)
            if not is_begun(output_dir):
                raise UserError(f"{output_dir} holds no evaluation to rescore; sample first, without --rescore")
            stored = json_module.loads((output_dir / "config.json").read_text("utf-8"))
            questions = questions[: stored["limit"]] if stored["limit"] else questions
            record = stored | {"ks": settings.ks or stored["ks"]}
            run = RunDir(output_dir, record, {} if questions.path is None else {"questions": questions.path})
            sampling = SamplingSettings(**{field.name: stored[field.name] for field in fields(SamplingSettings)})
            asked = stored["prompt_template"], stored["prompt_format"] == "messages"
            jobs.append(Job(each, questions, output_dir, run, sampling, *asked))
    return jobs


def _targets(name: str, settings: EvalSettings) -> list[Target]:
    from ..evaluation.targets import Target, find_targets, is_run

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
    return json_module.loads(job.run.config_file.read_text("utf-8")).get("ks") == job.run.config["ks"]


def _goes_on(job: Job, settings: EvalSettings) -> bool:
    """Whether the job may find its directory used; of several sets, the later ones may not be begun yet."""
    return (settings.resume and is_begun(job.output_dir)) or settings.rescore or _is_done(job)


def _free_to_change(settings: EvalSettings) -> Sequence[str]:
    """Rescoring is what one does after answers were corrected."""
    return (*FREE_TO_CHANGE, "data") if settings.rescore else FREE_TO_CHANGE


# Doing it.


def _evaluated(job: Job, settings: EvalSettings, samplers: dict[str, Sampler]) -> Evaluation:
    from ..evaluation import evaluate_sampler, load_evaluation

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


def _rescored(job: Job) -> Evaluation:
    from ..evaluation import rescore

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


# Telling.


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


def _words(value: str | list[str]) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else list(value)


def _numbers(value: Any) -> list[int] | None:
    if value is None:
        return None
    try:
        return [int(word) for word in _words(value)] if isinstance(value, str) else value
    except ValueError:
        raise UserError(f"ks must be whole numbers with commas between them, such as 1,8,32; got {value!r}") from None


def _benchmarks_of(preset: str | None) -> list[str]:
    if preset != "paper":
        return []
    from ..benchmarks import PAPER_BENCHMARKS

    return list(PAPER_BENCHMARKS)
