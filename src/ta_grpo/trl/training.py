"""One training run, from settings to a finished run directory."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import os
import sys
import typing
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from ..errors import UserError
from ..models import cannot_load, choose_threads, load_tokenizer, resolve_model
from ..questions import QuestionSet, as_train_rows, load_questions
from ..rundir import METRICS_FILE, RunDir, cut_records, is_finished
from ..settings import check_names, help_of, typed_settings
from ..verifier import accuracy_reward, with_checkable_answers
from .config import TAGRPOConfig
from .progress import TrainingProgress
from .records import RunRecords
from .resume import check_checkpoint, last_complete_checkpoint, remove_incomplete_checkpoints
from .train_settings import FREE_TO_CHANGE, TrainSettings
from .trainer import TAGRPOTrainer

logger = logging.getLogger(__name__)

# Those of the extra "trackers".
_TRACKERS = ("tensorboard", "trackio", "wandb")


def train(settings: TrainSettings) -> Path:
    """Train as asked; returns the run directory.

    Everything that can be refused is refused before the directory is made. A killed run goes on with
    ``settings.resume`` from its last complete checkpoint and ends with the weights of an unbroken one.

    Raises:
        UserError: a setting, file or model that cannot work.
    """
    settings = with_typed_trl(settings)
    config = trainer_config(settings)
    questions = read_questions(settings)
    if settings.prompt_template is None:  # config.json says what was asked, so that eval asks the same way
        settings = dataclasses.replace(settings, prompt_template=questions.prompt_template)
    run = RunDir(
        settings.output_dir,
        settings.record(),
        {"questions": questions.path} if questions.path is not None else {},
    )
    first_process = int(os.environ.get("RANK", "0")) == 0  # of several, it alone holds the directory
    if first_process:
        run.check(settings.resume, FREE_TO_CHANGE)
    if settings.resume and is_finished(settings.output_dir):
        logger.warning("%s has already finished; nothing is left to do", settings.output_dir)
        return settings.output_dir
    model = resolve_model(settings.model)
    dataset = training_rows(settings, questions, load_tokenizer(model))
    transformers_logging.disable_progress_bar()  # one display is enough
    # TRL gives each process its seed after the model is made; adapters are random.
    torch.manual_seed(settings.seed)
    reward = load_reward(settings.reward)
    try:
        trainer = TAGRPOTrainer(
            model=model, reward_funcs=reward, args=config, train_dataset=dataset, peft_config=_lora(settings)
        )
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) is not None:  # of a file to write
            raise
        raise cannot_load(model, error) from error
    choose_threads(trainer.model)
    trainer.remove_callback(PrinterCallback)
    RunRecords(settings.output_dir, trainer, settings.max_responses)
    progress = TrainingProgress(settings.output_dir.name)
    trainer.add_callback(progress)
    with run.open(settings.resume, FREE_TO_CHANGE) if first_process else nullcontext():
        try:
            checkpoint = _last_checkpoint(settings.output_dir, first_process) if settings.resume else None
            trainer.train(resume_from_checkpoint=checkpoint)
        finally:
            progress.close()
    return settings.output_dir


def _last_checkpoint(run_dir: Path, first_process: bool) -> str | None:
    """The checkpoint to go on from, with everything newer cut; None to begin again."""
    checkpoint = last_complete_checkpoint(run_dir)
    if not first_process:
        return None if checkpoint is None else str(checkpoint)
    remove_incomplete_checkpoints(run_dir)
    if checkpoint is not None:
        check_checkpoint(checkpoint, run_dir / METRICS_FILE)
    step = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    cut_records(run_dir, step)
    if checkpoint is None:
        logger.warning("%s has no complete checkpoint: the run begins again at its first step", run_dir)
        return None
    logger.warning("resuming %s after step %d", run_dir, step)
    return str(checkpoint)


def with_typed_trl(settings: TrainSettings) -> TrainSettings:
    """The settings with those of TRL checked and of the declared types: ``--trl.top_k 5`` is text at first.

    Raises:
        UserError: an unknown setting or a wrong type.
    """
    known = [field.name for field in dataclasses.fields(TAGRPOConfig) if field.init]
    check_names(settings.trl, [*known, *help_of(TrainSettings)], where="settings of TRL")
    typed = typed_settings(settings.trl, typing.get_type_hints(TAGRPOConfig), where="settings of TRL")
    return dataclasses.replace(settings, trl=typed)


def trainer_config(settings: TrainSettings) -> TAGRPOConfig:
    """The trainer's configuration: TRL's defaults, and what the settings (``with_typed_trl``) say.

    Without a GPU, bf16 is off: TRL's default would run a CPU at half its speed.

    Raises:
        UserError: a batch that does not hold whole groups, a tracker that is not there, or what else TRL refuses.
    """
    known = {field.name for field in dataclasses.fields(TAGRPOConfig) if field.init}
    own = set(help_of(TrainSettings)) - {"trl"}
    values = dict(settings.trl)
    values |= {name: getattr(settings, name) for name in own & known if getattr(settings, name) is not None}
    values["output_dir"] = str(settings.output_dir)
    values.setdefault("logging_steps", 1)
    values.setdefault("disable_tqdm", True)
    values["report_to"] = values.get("report_to") or "none"  # --trl.report_to none is read as null
    if not torch.cuda.is_available():
        values.setdefault("bf16", False)
        values.setdefault("dataloader_pin_memory", False)
    whole_phrasings = settings.num_generations % (settings.num_rephrasings + 1) == 0  # else TAGRPOConfig refuses it
    if settings.questions_per_step is not None and whole_phrasings:
        values["gradient_accumulation_steps"] = _passes_of_a_step(settings, values)
    try:
        config = TAGRPOConfig(**values)
    except UserError:
        raise
    except (ValueError, TypeError) as error:  # TRL's own checks
        raise UserError(f"settings of TRL: {error}") from error
    assert isinstance(config.report_to, list)  # noqa: S101 - transformers has made it one
    _check_trackers(config.report_to)
    return config


def _check_trackers(names: Sequence[str]) -> None:
    """Refuse what transformers would refuse with a traceback, once the model is loaded."""
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise UserError(f"report_to={name!r} is no tracker; use one of {known}")
        if name not in (*get_available_reporting_integrations(), "flyte"):  # which is never said to be available
            how = "run: pip install 'ta-grpo[trackers]'" if name in _TRACKERS else "install its package"
            raise UserError(f"report_to={name!r} needs a package that is not installed; {how}")


def _passes_of_a_step(settings: TrainSettings, values: dict[str, Any]) -> int:
    """gradient_accumulation_steps = questions_per_step * num_generations / completions of one pass."""
    assert settings.questions_per_step is not None  # noqa: S101 - the caller's condition
    rows = settings.questions_per_step * settings.num_generations
    a_pass = values.get("per_device_train_batch_size", TAGRPOConfig.per_device_train_batch_size)
    a_pass *= int(os.environ.get("WORLD_SIZE", "1"))
    if a_pass < 1 or rows % a_pass:
        raise UserError(
            f"questions_per_step={settings.questions_per_step} x num_generations={settings.num_generations} = {rows} "
            f"completions do not divide into passes of {a_pass} (per_device_train_batch_size x processes); set "
            f"per_device_train_batch_size to a divisor of {rows}, such as {math.gcd(rows, max(a_pass, 1))}"
        )
    return rows // a_pass


def read_questions(settings: TrainSettings) -> QuestionSet:
    """The questions to train on, with what was dropped at load told.

    With the accuracy reward, a question whose reference answer the verifier cannot check is left out and named: no
    completion of it could earn a reward. References that need algebra start the verifier's workers, before anything is
    sampled.
    """
    questions = load_questions(settings.questions, settings.columns, settings.limit)
    if settings.reward == "accuracy":
        questions = questions.with_questions(with_checkable_answers(questions)[0])
    return questions


def training_rows(settings: TrainSettings, questions: QuestionSet, tokenizer: Any) -> Dataset:
    """The questions as TRL takes them: ``id``, ``prompt``, ``rephrasings``, ``answer``.

    Raises:
        UserError: messages are asked for and the model has no chat template.
    """
    conversational = settings.prompt_format == "messages"
    if conversational and not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"model {settings.model} has no chat template, and prompts are messages; use an instruct model, or add "
            "--prompt-format text"
        )
    template = questions.prompt_template if settings.prompt_template is None else settings.prompt_template
    return Dataset.from_list(as_train_rows(questions, template, conversational))


def load_reward(name: str) -> Callable[..., Any]:
    """``accuracy``, or the function that ``module:function`` names, imported also from the working directory.

    Raises:
        UserError: there is no such module or function.
    """
    if name == "accuracy":
        return accuracy_reward
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UserError(f"reward={name!r} must be accuracy or module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"reward={name!r}: {error}; it is looked for on the Python path and here") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"reward={name!r}: module {module_name} has no function {function_name}")
    return function


def _lora(settings: TrainSettings) -> Any:
    if not settings.use_peft:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=settings.lora_target_modules,
        task_type="CAUSAL_LM",
    )


@dataclass(frozen=True)
class BatchArithmetic:
    """What a run will do, in numbers; all of them over all processes."""

    questions: int
    completions_per_question: int
    phrasings: int
    completions_per_phrasing: int
    questions_per_generation: int
    completions_per_generation: int
    updates_per_generation: float
    questions_per_update: float
    updates_per_epoch: int
    questions_dropped_per_epoch: int
    short_of_rephrasings: int
    updates: int
    completions: int
    longest_completion: int

    def lines(self) -> list[tuple[str, str]]:
        """Label and value, for people."""
        return [
            ("questions", f"{self.questions:,}"),
            (
                "group",
                f"{self.completions_per_question} completions a question = {self.phrasings} phrasings x "
                f"{self.completions_per_phrasing}",
            ),
            (
                "generation batch",
                f"{self.questions_per_generation:,} questions = {self.completions_per_generation:,} completions, of at "
                f"most {self.longest_completion:,} tokens",
            ),
            ("updates on a generation batch", f"{self.updates_per_generation:g}"),
            ("questions an update", f"{self.questions_per_update:g}"),
            ("updates an epoch", f"{self.updates_per_epoch:,}"),
            ("questions left out of each epoch", f"{self.questions_dropped_per_epoch:,}"),
            ("questions short of rephrasings", f"{self.short_of_rephrasings:,}"),
            ("updates in all", f"{self.updates:,}"),
            ("completions in all", f"{self.completions:,}"),
        ]


def batch_arithmetic(config: TAGRPOConfig, questions: QuestionSet) -> BatchArithmetic:
    """The counts of a run, as the trainer will have them."""
    generation_batch, passes = config.generation_batch_size, config.steps_per_generation
    assert generation_batch is not None and passes is not None and config.num_generations is not None  # noqa: S101, PT018
    per_generation = config.questions_per_generation
    generations_per_epoch = len(questions) // per_generation
    passes_per_generation = passes * config.num_iterations
    passes_per_epoch = generations_per_epoch * passes_per_generation
    # A last update of an epoch may have fewer passes.
    updates_per_epoch = max(math.ceil(passes_per_epoch / config.gradient_accumulation_steps), 1)
    updates = config.max_steps if config.max_steps > 0 else math.ceil(config.num_train_epochs * updates_per_epoch)
    whole_epochs, rest = divmod(updates, updates_per_epoch)
    generations = whole_epochs * generations_per_epoch + math.ceil(
        rest * config.gradient_accumulation_steps / passes_per_generation
    )
    return BatchArithmetic(
        questions=len(questions),
        completions_per_question=config.num_generations,
        phrasings=config.num_phrasings,
        completions_per_phrasing=config.generations_per_phrasing,
        questions_per_generation=per_generation,
        completions_per_generation=generation_batch,
        updates_per_generation=passes_per_generation / config.gradient_accumulation_steps,
        questions_per_update=config.gradient_accumulation_steps * per_generation / passes,
        updates_per_epoch=updates_per_epoch,
        questions_dropped_per_epoch=len(questions) % per_generation,
        short_of_rephrasings=sum(len(q.rephrasings) < config.num_rephrasings for q in questions),
        updates=updates,
        completions=generations * generation_batch,
        longest_completion=config.max_completion_length or 0,
    )
