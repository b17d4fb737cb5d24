"""verl configurations, composed as verl's own command line composes them."""

from __future__ import annotations

from typing import Any

from ta_grpo.tiny import POLICY_DIR


def compose(*overrides: str) -> Any:
    """verl's defaults with overrides."""
    import verl
    from hydra import compose, initialize_config_module

    assert verl.__version__
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", list(overrides))


def with_accuracy_reward(*overrides: str) -> Any:
    return compose(
        f"actor_rollout_ref.model.path={POLICY_DIR}",
        "reward.custom_reward_function.path=pkg://ta_grpo.verl.reward",
        "reward.custom_reward_function.name=compute_score",
        *overrides,
    )
