"""What must hold of verl's configuration for TA-GRPO: refused before anything starts, with the reason.

Each of these runs without a complaint in verl, and trains something else.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from ..group import nearest_group_sizes
from . import TRAINING_LOOP


def check_config(config: Any, longest_prompt: int | None = None) -> None:
    """Refuse a configuration that verl would run but that is not TA-GRPO.

    Args:
        config: verl's, composed, with ``ta_grpo`` in it.
        longest_prompt: tokens of the longest prompt, rephrasings counted; None if it is not known.

    Raises:
        UserError: all problems at once, each with the override that mends it.
    """
    problems = [*_structure(config), *_batches(config), *_lengths(config, longest_prompt)]
    if config.ta_grpo.ratio_anchor == "original":
        problems += _anchoring(config)
    if problems:
        raise UserError("verl is not started:\n" + "\n".join(f"- {problem}" for problem in problems))


def _structure(config: Any) -> Iterator[str]:
    """The trainer, the loop and the estimator that the plug-in is made for."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    if not trainer.use_v1:
        yield "trainer.use_v1=False: the legacy trainer does not number a question's completions; leave it True"
    if trainer.v1.trainer_mode != "sync":
        yield (
            f"trainer.v1.trainer_mode={trainer.v1.trainer_mode}: the asynchronous trainers mix policy versions and "
            "have never been run with this plug-in; leave it sync"
        )
    if config.algorithm.adv_estimator != "grpo":
        yield (
            f"algorithm.adv_estimator={config.algorithm.adv_estimator}: rewards are normalised over a question's group "
            "by grpo; set algorithm.adv_estimator=grpo"
        )
    if config.algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward=True: groups and their figures go by the reward alone; set it to False, and "
            "beta for a KL term in the loss"
        )
    if rollout.agent.default_agent_loop != TRAINING_LOOP:
        yield (
            f"actor_rollout_ref.rollout.agent.default_agent_loop={rollout.agent.default_agent_loop}: rows that name no "
            f"loop would be sampled from the original only; set it to {TRAINING_LOOP}"
        )
    if rollout.agent.get("agent_loop_manager_class"):
        yield "actor_rollout_ref.rollout.agent.agent_loop_manager_class: another manager may not number the completions"
    if rollout.multi_turn.enable:
        yield "actor_rollout_ref.rollout.multi_turn.enable=True: rephrasings are for questions of one turn"
    if config.trainer.v1.sampler.custom_sampler.path:
        yield "trainer.v1.sampler.custom_sampler: a sampler of your own may split a question's group; leave it null"
    if config.distillation.enabled:
        yield "distillation.enabled=True: teachers have never been run with this plug-in"


def _batches(config: Any) -> Iterator[str]:
    """Whole groups, in whole batches: verl pads what does not divide with rows of its own."""
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    phrasings = config.ta_grpo.num_rephrasings + 1
    if rollout.n % phrasings:
        yield (
            f"actor_rollout_ref.rollout.n={rollout.n} does not divide into {phrasings} phrasings; use "
            f"{' or '.join(map(str, nearest_group_sizes(rollout.n, phrasings)))}"
        )
    if rollout.n < 2:
        yield f"actor_rollout_ref.rollout.n={rollout.n} must be at least 2: advantages compare completions of a group"
    questions, mini_batch = config.data.train_batch_size, actor.ppo_mini_batch_size
    if questions % mini_batch:
        yield (
            f"data.train_batch_size={questions} is no multiple of ppo_mini_batch_size={mini_batch} (both count "
            "questions), so that verl would pad the batch"
        )
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    model_parallel = 1
    if actor.strategy == "megatron":
        sizes = actor.megatron
        model_parallel = (
            sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size * sizes.context_parallel_size
        )
    elif actor.strategy in ("fsdp", "fsdp2"):
        model_parallel = actor.ulysses_sequence_parallel_size
    data_parallel = max(devices // model_parallel, 1)
    if mini_batch * rollout.n % data_parallel:
        yield (
            f"ppo_mini_batch_size={mini_batch} x rollout.n={rollout.n} completions do not divide over {data_parallel} "
            "data-parallel ranks, so that verl would pad the batch"
        )


def _lengths(config: Any, longest_prompt: int | None) -> Iterator[str]:
    limit = config.data.max_prompt_length
    if longest_prompt is not None and longest_prompt > limit:
        yield (
            f"data.max_prompt_length={limit}, and the longest prompt, rephrasings counted, has {longest_prompt} "
            "tokens: verl would cut its beginning off"
        )


def _anchoring(config: Any) -> Iterator[str]:
    """ratio_anchor=original: nothing may bring in the engine's log-probs, which are under the rephrasing."""
    rollout, correction = config.actor_rollout_ref.rollout, config.algorithm.rollout_correction
    why = "compares log-probs under the original with the engine's under the rephrasing"
    if rollout.calculate_log_probs:
        yield (
            "actor_rollout_ref.rollout.calculate_log_probs=True: the engine's log-probs are under the rephrasing and "
            "are not used; set it to False"
        )
    if correction.bypass_mode:
        yield (
            "algorithm.rollout_correction.bypass_mode=True takes the engine's log-probs, under the rephrasing, for the "
            "old ones: the ratio would not be anchored to the original; set it to False"
        )
    for name in ("rollout_is", "rollout_rs"):
        if correction[name] is not None:
            yield f"algorithm.rollout_correction.{name}={correction[name]} {why}; set it to null"
    if config.actor_rollout_ref.actor.policy_loss.loss_mode == "bypass_mode":
        yield f"actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode {why}; set it to vanilla"
    if rollout.enable_rollout_routing_replay:
        yield (
            "actor_rollout_ref.rollout.enable_rollout_routing_replay=True replays the experts chosen under the "
            "rephrasing; set it to False"
        )
    if config.actor_rollout_ref.actor.use_kl_loss and config.actor_rollout_ref.actor.strategy in ("fsdp", "fsdp2"):
        engines = [config.actor_rollout_ref[role].fsdp_config for role in ("actor", "ref")]
        for name in ("model_dtype", "dtype", "mixed_precision"):
            actor, reference = (engine.get(name) for engine in engines)
            if actor != reference:
                yield (
                    f"fsdp_config.{name} is {actor} for the actor and {reference} for the reference: the KL term would "
                    "be rounding; use one"
                )
