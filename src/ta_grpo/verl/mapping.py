"""What a setting in TRL's words is in verl's: the table of mapped settings.

The defaults are TRL's, so that one settings file asks both back ends for the same training. A setting that is not in
the table is refused: nothing is left out in silence. What only verl has is passed through as verl's own overrides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..settings import check_names, typed_settings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"

# TRL has no second clip; verl's, 3 by default, is out of the way at this ratio.
_NO_SECOND_CLIP = 1e6
_LOSSES = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}


@dataclass(frozen=True)
class Mapped:
    """One setting of TRL's: its type, default, verl's keys that take the value as it is, or what makes overrides."""

    kind: Any
    default: Any
    keys: tuple[str, ...] = ()
    make: Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None = None

    def overrides(self, value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self.make(value, settings) if self.make else dict.fromkeys(self.keys, value)


def _choice(name: str, choices: Mapping[Any, dict[str, Any]], why: str = "") -> Callable[..., dict[str, Any]]:
    def make(value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        if value not in choices:
            usable = ", ".join(map(str, choices))
            raise UserError(f"{name}={value!r} has no counterpart in verl; use {usable}{why}")
        return choices[value]

    return make


def _loss(value: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if value not in _LOSSES:
        raise UserError(f"loss_type={value!r} has no counterpart in verl; use {', '.join(_LOSSES)}")
    factor = settings["max_completion_length"] if value == "dr_grpo" else None
    return {f"{ACTOR}.loss_agg_mode": _LOSSES[value], f"{ACTOR}.loss_scale_factor": factor}


def _epsilon(value: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    high = settings["epsilon_high"]
    return {
        f"{ACTOR}.clip_ratio": value,
        f"{ACTOR}.clip_ratio_low": value,
        f"{ACTOR}.clip_ratio_high": value if high is None else high,
    }


def _beta(value: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The k3 estimate in the loss, as in TRL."""
    return {
        f"{ACTOR}.use_kl_loss": value > 0,
        f"{ACTOR}.kl_loss_coef": value,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
    }


def _lora(value: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings["lora_dropout"] > 0:
        raise UserError("lora_dropout above 0 is not possible with verl's FSDP engine; set it to 0")
    if not value:
        return {}
    return {
        f"{MODEL}.lora_rank": settings["lora_r"],
        f"{MODEL}.lora_alpha": settings["lora_alpha"],
        f"{MODEL}.target_modules": settings["lora_target_modules"],
    }


def _epochs(value: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Steps go before epochs, as in TRL; verl stops at whichever comes first."""
    steps, per_epoch = settings["max_steps"], settings["steps_per_epoch"]
    if steps > 0:
        return {"trainer.total_epochs": math.ceil(steps / per_epoch), "trainer.total_training_steps": steps}
    if value != int(value) or value < 1:
        raise UserError(f"num_train_epochs={value} must be a whole number for verl; or set max_steps")
    return {"trainer.total_epochs": int(value), "trainer.total_training_steps": None}


def _nothing(value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Used by another setting's overrides."""
    return {}


SETTINGS: dict[str, Mapped] = {
    "questions_per_step": Mapped(int, 8, ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")),
    "per_device_train_batch_size": Mapped(
        int,
        8,
        (
            f"{ACTOR}.ppo_micro_batch_size_per_gpu",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            f"{REF}.log_prob_micro_batch_size_per_gpu",
        ),
    ),
    "num_iterations": Mapped(int, 1, (f"{ACTOR}.ppo_epochs",)),
    "num_train_epochs": Mapped(float, 3.0, make=_epochs),
    "max_steps": Mapped(int, -1, make=_nothing),
    "learning_rate": Mapped(float, 1e-6, (f"{ACTOR}.optim.lr",)),
    "lr_scheduler_type": Mapped(
        str,
        "constant",
        make=_choice(
            "lr_scheduler_type", {name: {f"{ACTOR}.optim.lr_scheduler_type": name} for name in ("constant", "cosine")}
        ),
    ),
    "warmup_steps": Mapped(int, 0, (f"{ACTOR}.optim.lr_warmup_steps",)),
    "weight_decay": Mapped(float, 0.0, (f"{ACTOR}.optim.weight_decay",)),
    "adam_beta1": Mapped(float, 0.9, make=lambda value, s: {f"{ACTOR}.optim.betas": [value, s["adam_beta2"]]}),
    "adam_beta2": Mapped(float, 0.999, make=_nothing),
    "max_grad_norm": Mapped(float, 1.0, (f"{ACTOR}.grad_clip", f"{ACTOR}.optim.clip_grad")),
    "max_completion_length": Mapped(int, 512, ("data.max_response_length",)),
    "temperature": Mapped(float, 1.0, (f"{ROLLOUT}.temperature",)),
    "top_p": Mapped(float, 1.0, (f"{ROLLOUT}.top_p",)),
    "top_k": Mapped(int, 0, make=lambda value, s: {f"{ROLLOUT}.top_k": value if value > 0 else -1}),
    "beta": Mapped(float, 0.0, make=_beta),
    "epsilon": Mapped(float, 0.2, make=_epsilon),
    "epsilon_high": Mapped(float | None, None, make=_nothing),
    "delta": Mapped(
        float | None, None, make=lambda value, s: {f"{ACTOR}.clip_ratio_c": _NO_SECOND_CLIP if value is None else value}
    ),
    "loss_type": Mapped(str, "dapo", make=_loss),
    "importance_sampling_level": Mapped(
        str,
        "token",
        make=_choice(
            "importance_sampling_level",
            {"token": {f"{ACTOR}.policy_loss.loss_mode": "vanilla"}},
            f"; for ratios of sequences, pass {ACTOR}.policy_loss.loss_mode=gspo to verl",
        ),
    ),
    "scale_rewards": Mapped(
        str,
        "group",
        make=_choice(
            "scale_rewards",
            {
                "group": {"algorithm.norm_adv_by_std_in_grpo": True},
                "none": {"algorithm.norm_adv_by_std_in_grpo": False},
            },
        ),
    ),
    "use_peft": Mapped(bool, False, make=_lora),
    "lora_r": Mapped(int, 16, make=_nothing),
    "lora_alpha": Mapped(int, 32, make=_nothing),
    "lora_dropout": Mapped(float, 0.0, make=_nothing),
    "lora_target_modules": Mapped(str, "all-linear", make=_nothing),
    "gradient_checkpointing": Mapped(bool, True, (f"{MODEL}.enable_gradient_checkpointing",)),
    "save_steps": Mapped(int, 50, ("trainer.save_freq",)),
    "save_total_limit": Mapped(int | None, None, ("trainer.max_actor_ckpt_to_keep",)),
    "seed": Mapped(int, 42, ("data.seed", f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed", f"{ACTOR}.fsdp_config.seed")),
    "shuffle_dataset": Mapped(bool, True, ("data.shuffle",)),
    "vllm_gpu_memory_utilization": Mapped(float, 0.3, (f"{ROLLOUT}.gpu_memory_utilization",)),
    "vllm_tensor_parallel_size": Mapped(int, 1, (f"{ROLLOUT}.tensor_model_parallel_size",)),
}

# What TRL's trainer does and verl's does not, with the reason.
REFUSED = {
    "gradient_accumulation_steps": "verl's batch is questions_per_step, in passes of per_device_train_batch_size",
    "pull_to_original": "verl trains a response once, under one prompt",
    "dynamic_sampling": "verl's own has no budget; ask for it with -- algorithm.filter_groups.enable=True",
    "adaptive_rephrasings": "verl samples a question's whole group at once",
    "max_responses": "verl counts steps; set max_steps",
}


def mapped_overrides(given: Mapping[str, Any], steps_per_epoch: Callable[[int], int]) -> dict[str, Any]:
    """verl's overrides, key -> value, for settings in TRL's words.

    Args:
        given: setting -> value, as far as set; the others have their defaults.
        steps_per_epoch: steps that an epoch has with so many questions a step.

    Raises:
        UserError: settings that verl has no counterpart for, or that are of the wrong type; all of them at once.
    """
    refused = [f"{name}: {why}" for name, why in REFUSED.items() if name in given]
    if refused:
        raise UserError("not with --backend verl: " + "; ".join(refused))
    check_names(given, SETTINGS, where="settings with a counterpart in verl (others: pass verl's own after --)")
    typed = typed_settings(given, {name: mapped.kind for name, mapped in SETTINGS.items()}, where="--backend verl")
    settings = {name: mapped.default for name, mapped in SETTINGS.items()} | typed
    settings["steps_per_epoch"] = steps_per_epoch(settings["questions_per_step"])
    overrides: dict[str, Any] = {}
    problems = []
    for name, mapped in SETTINGS.items():
        try:
            overrides |= mapped.overrides(settings[name], settings)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("not with --backend verl: " + "; ".join(problems))
    return overrides
