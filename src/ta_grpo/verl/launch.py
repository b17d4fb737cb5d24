"""From settings to a training run on Ray: verl's overrides, everything that can be refused before, and the start."""
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..group import nearest_group_sizes
from ..models import load_tokenizer, resolve_model
from ..questions import QuestionSet, load_questions
from ..rundir import RunDir, is_finished
from . import TRAINING_LOOP
from .export import export_file, verl_rows
from .guard import check_config
from .mapping import ACTOR, MODEL, ROLLOUT, mapped_overrides

logger = logging.getLogger(__name__)

# What may differ between a run and its resumption.
FREE_TO_CHANGE = ("save_steps",)
CHECKPOINTS_DIR = "verl"
TRAIN_FILE = "verl/train.parquet"

# The same under verl's other engine; None: it has no such key, or sets it itself.
_MEGATRON = {
    f"{ACTOR}.optim.lr_scheduler_type": f"{ACTOR}.optim.lr_decay_style",
    f"{ACTOR}.fsdp_config.seed": f"{ACTOR}.megatron.seed",
    f"{ACTOR}.grad_clip": None,
    f"{ACTOR}.strategy": None,
}


@dataclass(frozen=True)
class VerlTraining:
    """One training run with verl. ``trl``: the other settings in TRL's words; ``overrides``: verl's own, as given."""

    model: str
    questions: str
    output_dir: Path
    num_rephrasings: int = 3
    num_generations: int = 32
    ratio_anchor: str = "original"
    advantage_scope: str = "joint"
    off_prompt_negatives: str = "keep"
    reward: str = "accuracy"
    prompt_template: str | None = None
    prompt_format: str = "messages"
    columns: dict[str, str] | None = None
    limit: int | None = None
    resume: bool = False
    trl: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    ray_address: str | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.ratio_anchor not in ("original", "sampled"):
            problems.append(
                f"ratio_anchor={self.ratio_anchor!r} is not possible: verl's loss compares log-probs of one prompt, or "
                "takes the engine's for the old ones of all rows; use original or sampled"
            )
        if self.advantage_scope != "joint":
            problems.append(
                f"advantage_scope={self.advantage_scope!r} is not possible: verl normalises over the rows of a "
                "question, and its rows are all its phrasings; use joint"
            )
        if self.off_prompt_negatives not in ("keep", "drop"):
            problems.append(f"off_prompt_negatives={self.off_prompt_negatives!r} is not a choice; use keep or drop")
        if self.num_rephrasings == 0 and self.off_prompt_negatives == "drop":
            problems.append("off_prompt_negatives='drop' has nothing to act on with num_rephrasings=0")
        if self.num_rephrasings < 0:
            problems.append(f"num_rephrasings={self.num_rephrasings} must be 0 or more")
        elif self.num_generations % (self.num_rephrasings + 1):
            near = nearest_group_sizes(self.num_generations, self.num_rephrasings + 1)
            problems.append(
                f"num_generations={self.num_generations} does not divide into num_rephrasings + 1 = "
                f"{self.num_rephrasings + 1} phrasings; use {' or '.join(map(str, near))}"
            )
        if self.prompt_format != "messages":
            problems.append(
                f"prompt_format={self.prompt_format!r} is not possible: verl applies the chat template; use messages"
            )
        if problems:
            raise UserError("not with --backend verl: " + "; ".join(problems))

    def record(self) -> dict[str, Any]:
        """The settings as ``config.json`` holds them, TRL's among the others."""
        settings = asdict(self)
        for name in ("output_dir", "resume", "ray_address", "overrides", "trl"):
            del settings[name]
        return settings | self.trl | {"backend": "verl", "verl_overrides": list(self.overrides)}


@dataclass(frozen=True)
class Launch:
    """A run that nothing was found against. ``overrides``: all of verl's, the user's last."""

    overrides: list[str]
    config: Any
    questions: QuestionSet
    template: str
    longest_prompt: int
    short_of_rephrasings: int

    def counts(self) -> dict[str, int]:
        """What the run will do, in numbers, for people."""
        data, rollout = self.config.data, self.config.actor_rollout_ref.rollout
        phrasings = self.config.ta_grpo.num_rephrasings + 1
        an_epoch = len(self.questions) // data.train_batch_size
        steps = an_epoch * self.config.trainer.total_epochs
        return {
            "questions": len(self.questions),
            "questions short of rephrasings": self.short_of_rephrasings,
            "phrasings": phrasings,
            "completions a phrasing": rollout.n // phrasings,
            "completions a question": rollout.n,
            "questions a step": data.train_batch_size,
            "completions a step": data.train_batch_size * rollout.n,
            "updates a step": self.config.actor_rollout_ref.actor.ppo_epochs
            * (data.train_batch_size // self.config.actor_rollout_ref.actor.ppo_mini_batch_size),
            "steps an epoch": an_epoch,
            "steps in all": min(steps, self.config.trainer.total_training_steps or steps),
            "tokens of the longest prompt": self.longest_prompt,
            "tokens of the longest completion": data.max_response_length,
        }


def train(training: VerlTraining, launch: Launch | None = None) -> Path:
    """Train with verl's own trainer on Ray, here or at ``ray_address``; returns the run directory.

    The run directory must be seen from every node of a cluster, by the same path.

    Raises:
        UserError: a setting, file, model or environment that cannot work.
    """
    launch = launch or prepare(training)
    data = {"questions": launch.questions.path} if launch.questions.path is not None else {}
    run = RunDir(training.output_dir, training.record() | {"prompt_template": launch.template}, data)
    run.check(training.resume, FREE_TO_CHANGE)
    if training.resume and is_finished(training.output_dir):
        logger.warning("%s has already finished; nothing is left to do", training.output_dir)
        return training.output_dir
    with run.open(training.resume, FREE_TO_CHANGE):
        export_file(
            training.output_dir / TRAIN_FILE,
            launch.questions,
            launch.template,
            check_answers=training.reward == "accuracy",
        )
        _start(launch.config)
    return training.output_dir


def prepare(training: VerlTraining) -> Launch:
    """Everything up to the start: nothing is written, and no Ray is started.

    Raises:
        UserError: what verl would refuse, what it would run but is not TA-GRPO, or a missing package.
    """
    check_environment()
    questions = load_questions(training.questions, training.columns)[: training.limit]
    if training.num_rephrasings > 0 and not any(question.rephrasings for question in questions):
        raise UserError(
            f"{training.questions}: no question has rephrasings; make them with `ta-grpo rephrase`, or set "
            "num_rephrasings=0"
        )
    template = training.prompt_template or questions.prompt_template
    model = resolve_model(training.model)
    longest = longest_prompt(questions, template, load_tokenizer(model), training.num_rephrasings)
    words = [
        *(f"{_added(key)}={as_word(value)}" for key, value in _overrides(training, model, questions, longest).items()),
        *training.overrides,
    ]
    config = compose(words)
    check_config(config, longest)
    if len(questions) < config.data.train_batch_size:
        raise UserError(
            f"{training.questions} has {len(questions)} questions, and a step takes {config.data.train_batch_size}; "
            "set questions_per_step lower"
        )
    _validate(config)
    return Launch(
        overrides=words,
        config=config,
        questions=questions,
        template=template,
        longest_prompt=longest,
        short_of_rephrasings=sum(len(question.rephrasings) < training.num_rephrasings for question in questions),
    )


def check_environment() -> None:
    """Refuse a Python or an environment in which verl does not run, or does not find the plug-in.

    Raises:
        UserError: with what to install.
    """
    if sys.version_info >= (3, 13):
        raise UserError("verl needs Python 3.11 or 3.12; make an environment with one of them")
    missing = [name for name in ("verl", "ray", "transfer_queue") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"--backend verl needs {', '.join(missing)}; in an environment of its own, run: pip install 'ta-grpo[verl]'"
        )
    from .nodes import plugin_problem

    if problem := plugin_problem():
        raise UserError(f"verl does not find TA-GRPO's agent loop: {problem}")


def longest_prompt(questions: QuestionSet, template: str, tokenizer: Any, num_rephrasings: int) -> int:
    """Tokens of the longest prompt, the first ``num_rephrasings`` rephrasings counted.

    Raises:
        UserError: the model has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("the model has no chat template, and verl asks in messages; use an instruct model")
    longest = 0
    for row in verl_rows(questions, template, "", for_training=True):
        for messages in [row["prompt"], *row["extra_info"]["rephrasings"][:num_rephrasings]]:
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            longest = max(longest, len(tokenizer(text, add_special_tokens=False).input_ids))
    return longest


def _overrides(training: VerlTraining, model: str, questions: QuestionSet, longest: int) -> dict[str, Any]:
    run_dir = training.output_dir.resolve()
    overrides = {
        "algorithm.adv_estimator": "grpo",
        "critic.enable": False,
        f"{MODEL}.path": model,
        f"{ACTOR}.strategy": "fsdp2",
        # Each checkpoint holds a Hugging Face copy beside what verl resumes from.
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{ACTOR}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": training.num_generations,
        f"{ROLLOUT}.calculate_log_probs": False,
        f"{ROLLOUT}.agent.default_agent_loop": TRAINING_LOOP,
        "data.train_files": str(run_dir / TRAIN_FILE),
        "data.val_files": str(run_dir / TRAIN_FILE),  # verl wants one; validation is off
        "data.max_prompt_length": longest,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.logger": ["console"],
        "trainer.project_name": "ta-grpo",
        "trainer.experiment_name": run_dir.name,
        "trainer.default_local_dir": str(run_dir / CHECKPOINTS_DIR),
        "trainer.resume_mode": "auto" if training.resume else "disable",
        "trainer.checkpoint_callback_class": "ta_grpo.verl.trainer.HuggingFaceCheckpoints",
        **reward_overrides(training.reward),
        **mapped_overrides(training.trl, lambda questions_per_step: max(len(questions) // questions_per_step, 1)),
        "ta_grpo.num_rephrasings": training.num_rephrasings,
        "ta_grpo.ratio_anchor": training.ratio_anchor,
        "ta_grpo.off_prompt_negatives": training.off_prompt_negatives,
        "ta_grpo.run_dir": str(run_dir),
    }
    if training.ray_address is not None:
        overrides["ray_kwargs.ray_init.address"] = training.ray_address
    elif not _given("trainer.n_gpus_per_node", training.overrides):
        overrides["trainer.n_gpus_per_node"] = _gpus_here()
    if _given("model_engine", training.overrides) and "model_engine=dp" not in training.overrides:
        overrides = {_MEGATRON.get(key, key): value for key, value in overrides.items()}
        overrides.pop(None, None)
    return overrides


def reward_overrides(reward: str) -> dict[str, Any]:
    """The reward as verl loads it in its workers: ours, or ``module:function`` with verl's signature.

    Raises:
        UserError: not of that form.
    """
    if reward == "accuracy":
        reward = "ta_grpo.verl.reward:compute_score"
    module, separator, function = reward.partition(":")
    if not (separator and module and function):
        raise UserError(f"reward={reward!r} must be accuracy, or module:function with verl's compute_score signature")
    return {
        "reward.custom_reward_function.path": f"pkg://{module}",
        "reward.custom_reward_function.name": function,
    }


def _gpus_here() -> int:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise UserError(
            "verl trains on GPUs, and there is none here; name a cluster with --ray-address, or state "
            "-- trainer.n_gpus_per_node=N if Ray finds devices that torch.cuda does not"
        )
    return count


def _given(key: str, overrides: Iterable[str]) -> bool:
    return any(word.lstrip("+").partition("=")[0] == key for word in overrides)


def _added(key: str) -> str:
    """Keys that verl's configuration does not have are marked for Hydra as new."""
    return f"++{key}" if key.startswith(("ta_grpo.", "ray_kwargs.")) else key


def as_word(value: Any) -> str:
    """A value as Hydra's command line reads it back."""
    if isinstance(value, list):
        return "[" + ",".join(map(as_word, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_/.][\w/.:@%-]*", value):
        return '"' + value.replace('"', '\\"') + '"'
    return value if isinstance(value, str) else json.dumps(value)


def compose(words: Iterable[str]) -> Any:
    """verl's configuration with overrides.

    Raises:
        UserError: an override that verl does not know, with what Hydra says.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return hydra_compose("ppo_trainer", list(words))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"verl's configuration: {' '.join(str(error).split())}") from None


def _validate(config: Any) -> None:
    """verl's own checks."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            auto_set_device(config)
            validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except (AssertionError, ValueError) as error:
        raise UserError(f"verl refuses its configuration: {error}") from error


def _start(config: Any) -> None:
    """verl's ``run_ppo``, with our task runner; waits for the end."""
    import ray
    from verl.trainer.main_ppo import run_ppo

    from .trainer import TaskRunner

    ours = not ray.is_initialized()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints what its processes print
            run_ppo(config, task_runner_class=TaskRunner)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    finally:
        if ours:
            ray.shutdown()
