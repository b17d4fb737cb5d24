"""What the launcher asks verl for, what it refuses, and that the plug-in is where verl looks for it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ta_grpo.cli import main
from ta_grpo.errors import UserError
from ta_grpo.questions import Question, load_questions, save_questions
from ta_grpo.verl.launch import VerlTraining, compose, prepare
from ta_grpo.verl.mapping import SETTINGS

RECIPES = Path(__file__).parents[2] / "recipes"
DEVICES = ("trainer.n_gpus_per_node=8", "trainer.nnodes=2")


def training(**changes: Any) -> VerlTraining:
    asked: dict[str, Any] = {"model": "tiny", "questions": "tiny", "output_dir": Path("run"), "limit": 32}
    asked |= changes
    return VerlTraining(**asked | {"overrides": (*DEVICES, *asked.get("overrides", ()))})


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as refused:
        prepare(training(**changes))
    return str(refused.value)


def test_verl_finds_the_plug_in() -> None:
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    assert _agent_loop_registry["ta_grpo"]["_target_"] == "ta_grpo.verl.agent_loop.TAGRPOAgentLoop"


def test_a_plug_in_that_verl_does_not_load_is_told() -> None:
    """verl itself says so at DEBUG only."""
    command = [sys.executable, "-c", "from ta_grpo.verl.launch import check_environment; check_environment()"]
    ended = subprocess.run(command, capture_output=True, text=True, env={"VERL_USE_EXTERNAL_PLUGINS": "none"})
    assert ended.returncode == 1
    assert "VERL_USE_EXTERNAL_PLUGINS=none keeps the plug-in from loading" in ended.stderr


def test_defaults_are_trls_and_anchored() -> None:
    config = prepare(training()).config
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (rollout.n, rollout.calculate_log_probs, rollout.agent.default_agent_loop) == (32, False, "ta_grpo")
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs) == (8, 8, 1)
    assert (actor.optim.lr, actor.optim.weight_decay, actor.loss_agg_mode, actor.use_kl_loss) == (
        1e-6,
        0.0,
        "token-mean",
        False,
    )
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2)
    assert config.algorithm.adv_estimator == "grpo"
    assert config.algorithm.rollout_correction.bypass_mode is False
    assert config.data.max_prompt_length == 50  # of the longest rephrasing
    assert config.ta_grpo.ratio_anchor == "original"


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"questions_per_step": 4}, "data.train_batch_size", 4),
        ({"num_iterations": 2}, "actor_rollout_ref.actor.ppo_epochs", 2),
        ({"learning_rate": "3e-6"}, "actor_rollout_ref.actor.optim.lr", 3e-6),
        ({"beta": 0.04}, "actor_rollout_ref.actor.use_kl_loss", True),
        ({"beta": 0.04}, "actor_rollout_ref.actor.kl_loss_coef", 0.04),
        ({"epsilon_high": 0.28}, "actor_rollout_ref.actor.clip_ratio_high", 0.28),
        ({"delta": 4.0}, "actor_rollout_ref.actor.clip_ratio_c", 4.0),
        ({"loss_type": "dr_grpo"}, "actor_rollout_ref.actor.loss_scale_factor", 512),
        ({"loss_type": "grpo"}, "actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-mean"),
        ({"scale_rewards": "none"}, "algorithm.norm_adv_by_std_in_grpo", False),
        ({"max_steps": 9}, "trainer.total_epochs", 3),  # 32 questions are 4 steps
        ({"max_steps": 9}, "trainer.total_training_steps", 9),
        ({"num_train_epochs": 2}, "trainer.total_epochs", 2),
        ({"max_completion_length": 3072}, "actor_rollout_ref.rollout.response_length", 3072),
        ({"top_k": 50}, "actor_rollout_ref.rollout.top_k", 50),
        ({"adam_beta2": 0.95}, "actor_rollout_ref.actor.optim.betas", [0.9, 0.95]),
        ({"lr_scheduler_type": "cosine"}, "actor_rollout_ref.actor.optim.lr_scheduler_type", "cosine"),
        ({"save_total_limit": 2}, "trainer.max_actor_ckpt_to_keep", 2),
        ({"seed": 7}, "actor_rollout_ref.actor.fsdp_config.seed", 7),
    ],
    ids=str,
)
def test_settings_in_trls_words_reach_verl(settings: dict[str, Any], key: str, value: Any) -> None:
    from omegaconf import OmegaConf

    assert OmegaConf.select(prepare(training(trl=settings)).config, key) == value


def test_adapters_reach_verl() -> None:
    """With vLLM, verl asks the installed one for its largest rank, so another engine is named here."""
    settings = {"use_peft": True, "lora_r": 8, "lora_alpha": 16}
    model = prepare(
        training(trl=settings, overrides=("actor_rollout_ref.rollout.name=sglang",))
    ).config.actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha, model.target_modules) == (8, 16, "all-linear")


def test_every_mapped_key_is_verls() -> None:
    """Each composes on its own, under both engines; a key that upstream renames fails here by its name."""
    for engine in ("dp", "megatron"):
        prepare(training(overrides=(f"model_engine={engine}",)))
    assert len(SETTINGS) > 30


REFUSED = {
    "importance ratio": ({"ratio_anchor": "importance"}, "use original or sampled"),
    "advantages of a phrasing": ({"advantage_scope": "per_phrasing"}, "use joint"),
    "plain text": ({"prompt_format": "text"}, "chat template"),
    "group not divisible": ({"num_generations": 30}, "use 28 or 32"),
    "unmapped setting of TRL": ({"trl": {"logging_steps": 5}}, "unknown setting 'logging_steps'"),
    "pull": ({"trl": {"pull_to_original": 0.5}}, "under one prompt"),
    "accumulation": ({"trl": {"gradient_accumulation_steps": 2}}, "questions_per_step"),
    "wrong type": ({"trl": {"top_k": 2.5}}, "top_k must be a whole number"),
    "loss without a counterpart": ({"trl": {"loss_type": "bnpo"}}, "use dapo, grpo, dr_grpo"),
    "linear schedule": ({"trl": {"lr_scheduler_type": "linear"}}, "use constant, cosine"),
    "half an epoch": ({"trl": {"num_train_epochs": 1.5}}, "whole number"),
    "dropout": ({"trl": {"use_peft": True, "lora_dropout": 0.1}}, "lora_dropout"),
    "reward of no form": ({"reward": "exact"}, "module:function"),
    "too few questions": ({"limit": 4}, "has 4 questions, and a step takes 8"),
    "unknown key of verl": ({"overrides": ("data.nothing=1",)}, "data.nothing"),
    "engine's log-probs": (
        {"overrides": ("actor_rollout_ref.rollout.calculate_log_probs=True",)},
        "under the rephrasing and are not used",
    ),
    "bypass": ({"overrides": ("algorithm.rollout_correction.bypass_mode=True",)}, "would not be anchored"),
    "bypass loss": ({"overrides": ("actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode",)}, "loss_mode"),
    "correction": ({"overrides": ("algorithm.rollout_correction.rollout_is=token",)}, "rollout_is=token compares"),
    "rejection": ({"overrides": ("algorithm.rollout_correction.rollout_rs=seq_max_k2",)}, "rollout_rs"),
    "routing replay": (
        {"overrides": ("actor_rollout_ref.rollout.enable_rollout_routing_replay=True",)},
        "replays the experts",
    ),
    "n of its own": ({"overrides": ("actor_rollout_ref.rollout.n=30",)}, "does not divide into 4 phrasings"),
    "legacy trainer": ({"overrides": ("trainer.use_v1=False",)}, "leave it True"),
    "asynchronous trainer": ({"overrides": ("trainer.v1.trainer_mode=colocate_async",)}, "leave it sync"),
    "other estimator": ({"overrides": ("algorithm.adv_estimator=rloo",)}, "set algorithm.adv_estimator=grpo"),
    "KL in the reward": ({"overrides": ("algorithm.use_kl_in_reward=True",)}, "set it to False, and beta"),
    "dynamic sampling by its TRL name": ({"trl": {"dynamic_sampling": 3}}, "algorithm.filter_groups.enable=True"),
    "other loop": (
        {"overrides": ("actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",)},
        "set it to ta_grpo",
    ),
    "turns": ({"overrides": ("actor_rollout_ref.rollout.multi_turn.enable=True",)}, "one turn"),
    "padded batch": ({"overrides": ("actor_rollout_ref.actor.ppo_mini_batch_size=3",)}, "pad the batch"),
    "ranks that do not divide": (
        {"overrides": ("trainer.n_gpus_per_node=3", "trainer.nnodes=1")},
        "data-parallel ranks",
    ),
    "short prompts": ({"overrides": ("data.max_prompt_length=20",)}, "cut its beginning off"),
    "dtypes": (
        {"trl": {"beta": 0.1}, "overrides": ("actor_rollout_ref.ref.fsdp_config.model_dtype=bf16",)},
        "would be rounding",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str) -> None:
    changes, reason = REFUSED[case]
    assert reason in refusal(**changes)


def test_the_sampled_anchor_may_use_the_engines_log_probs() -> None:
    launch = prepare(
        training(ratio_anchor="sampled", overrides=("actor_rollout_ref.rollout.calculate_log_probs=True",))
    )
    assert launch.config.actor_rollout_ref.rollout.calculate_log_probs is True


def test_without_a_gpu_and_a_cluster_nothing_starts() -> None:
    with pytest.raises(UserError, match="--ray-address"):
        prepare(VerlTraining(model="tiny", questions="tiny", output_dir=Path("run"), limit=32))


def test_a_cluster_is_named_to_ray() -> None:
    launch = prepare(VerlTraining(model="tiny", questions="tiny", output_dir=Path("run"), limit=32, ray_address="auto"))
    assert launch.config.ray_kwargs.ray_init.address == "auto"


def test_dry_run_prints_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "model: tiny\nquestions: tiny\nbackend: verl\noutput_dir: run\nepsilon_high: 0.28\n", encoding="utf-8"
    )
    assert main(["train", "--config", "run.yaml", "--dry-run", "--", *DEVICES]) == 0
    printed = capsys.readouterr().out
    assert "actor_rollout_ref.actor.clip_ratio_high=0.28" in printed
    assert "trainer.nnodes=2" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_questions_without_rephrasings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    save_questions([q.__class__(q.id, q.question, q.answer) for q in load_questions("tiny")[:8]], path)
    assert "num_rephrasings=0" in refusal(questions=str(path))


def test_upstream_has_not_moved() -> None:
    """The names that the plug-in uses of verl, one by one."""
    from verl.experimental.agent_loop import AgentLoopOutput, SingleTurnAgentLoop
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ, PPOTrainerSync

    moved = []
    parameters = inspect.signature(SingleTurnAgentLoop.run).parameters
    if list(parameters)[:2] != ["self", "sampling_params"] or "kwargs" not in parameters:
        moved.append("SingleTurnAgentLoop.run(self, sampling_params, ..., **kwargs)")
    fields = ("prompt_ids", "response_ids", "response_logprobs", "extra_fields")
    moved += [f"AgentLoopOutput.{name}" for name in fields if name not in AgentLoopOutput.model_fields]
    if not hasattr(SingleTurnAgentLoop, "ct_build_initial_tokens"):
        moved.append("AgentLoopBase.ct_build_initial_tokens")
    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    if "session_id=i" not in inspect.getsource(worker._run_prompt):
        moved.append("AgentLoopWorkerTQ._run_prompt no longer passes session_id")
    hooks = ("step", "_compute_advantage", "on_train_begin", "init", "fit", "get_llm_client", "get_reward_handles")
    moved += [f"PPOTrainerSync.{name}" for name in hooks if not hasattr(PPOTrainerSync, name)]
    if not hasattr(AgentLoopManagerTQ, "create"):
        moved.append("AgentLoopManagerTQ.create")
    if list(inspect.signature(run_ppo).parameters) != ["config", "task_runner_class"]:
        moved.append("run_ppo(config, task_runner_class)")
    config = compose(["actor_rollout_ref.rollout.name=vllm"])
    if "checkpoint_callback_class" not in config.trainer:
        moved.append("trainer.checkpoint_callback_class")
    assert not moved, f"verl has moved: {moved}"


def test_every_node_is_asked_for_the_plug_in(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from ta_grpo.verl import nodes

    nodes.check_nodes()
    here = nodes.installed() | {"verl": "0.9.2"}
    monkeypatch.setattr(nodes, "_version", lambda package: here[package])
    with pytest.raises(UserError, match=r"verl 0\.9\.1, here 0\.9\.2"):
        nodes.check_nodes()


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*/verl.yaml")), ids=lambda path: path.parent.name)
def test_the_recipes_are_composed_and_validated_by_verl(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the model itself, which is the embedded one here."""
    questions = str(tmp_path / "questions.jsonl")
    texts = tuple(f"What is {i} + 1?" for i in range(6))
    save_questions([Question(f"q{i}", f"What is {i} plus one?", str(i + 1), texts) for i in range(720)], questions)
    words = ["--model", "tiny", "--questions", questions, "--output-dir", str(tmp_path / "run"), "--dry-run", "--json"]
    mini_batch = "actor_rollout_ref.actor.ppo_mini_batch_size=18"  # as the recipe's head says
    assert main(["train", "--config", str(recipe), *words, "--", "trainer.n_gpus_per_node=8", mini_batch]) == 0
    batch = json.loads(capsys.readouterr().out)["batch"]
    assert 0 < batch.pop("tokens of the longest prompt") < 100
    assert batch == {
        "questions": 720,
        "questions short of rephrasings": 0,
        "phrasings": 7,
        "completions a phrasing": 8,
        "completions a question": 56,
        "questions a step": 36,
        "completions a step": 2016,
        "updates a step": 2,
        "steps an epoch": 20,
        "steps in all": 40,
        "tokens of the longest completion": 3072,
    }
