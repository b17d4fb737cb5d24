"""verl's synchronous trainer with the figures of expanded groups, and the Ray actor that runs it.

What verl's trainer does stays: grouping by question, normalisation, loss, checkpoints. Added, after it has computed the
advantages: those of groups that teach nothing are exactly 0, off-prompt negatives are dropped if asked for, the
metrics by TRL's names, and the run directory's records.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainerSync

from ..group import drop_off_prompt_negatives, phrasing_of_slot, signal_metrics, uniform_groups
from ..rundir import CHECKPOINT_PREFIX, COMPLETE_MARK, append_metrics, cut_records, rollouts_file, write_parquet_atomic
from ..verifier import OUTCOMES
from .nodes import check_nodes

FIELDS = ("rm_scores", "advantages", "responses", "entropy", "old_log_probs", "extra_fields")
# verl's figures that TRL has too, by TRL's names in the run directory.
TRL_NAMES = {
    "actor/loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "actor/entropy": "entropy",
    "actor/kl_loss": "kl",
    "actor/pg_clipfrac": "clip_ratio/region_mean",
}


class TAGRPOTrainer(PPOTrainerSync):
    """``PPOTrainerSync`` with two hooks: after the advantages, and after a step."""

    def on_train_begin(self) -> None:
        super().on_train_begin()
        # verl counts the step to come; what a killed attempt recorded after its checkpoint is done again.
        cut_records(Path(self.config.ta_grpo.run_dir), self.global_steps - 1)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        settings, size = self.config.ta_grpo, self.config.actor_rollout_ref.rollout.n
        fields = [*FIELDS, "ref_log_prob"] if self.use_reference_policy else FIELDS
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))
        rows = Rows.of(batch, data)
        groups = rows.groups(size, settings.num_rephrasings + 1)
        advantages = rows.corrected(groups, drop=settings.off_prompt_negatives == "drop")
        nested = torch.nested.as_nested_tensor(advantages, layout=torch.jagged)
        tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict({"advantages": nested}, batch_size=len(batch)),
        )
        asked = self.config.data.train_batch_size * size
        metrics["completions/failed"] = 1 - len(groups.place) / asked
        metrics.update(groups.metrics())
        metrics.update(rows.metrics(self.tokenizer.eos_token_id))
        write_parquet_atomic(
            rollouts_file(Path(settings.run_dir), self.global_steps), rows.records(self.tokenizer, advantages)
        )
        return batch

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        started = time.perf_counter()
        batch = super().step(metrics, timing_raw)
        # verl's own figure holds the checkpoint too, and comes after this is written.
        numbers = {"step_time": time.perf_counter() - started}
        numbers |= {name: float(value) for name, value in metrics.items() if not isinstance(value, dict)}
        numbers |= {f"timing_s/{name}": float(value) for name, value in timing_raw.items()}
        numbers |= {theirs: numbers[name] for name, theirs in TRL_NAMES.items() if name in numbers}
        # Before the checkpoint of this step: a run that is killed and resumed has a line for each step.
        append_metrics(Path(self.config.ta_grpo.run_dir), self.global_steps, numbers)
        return batch


@dataclass
class Groups:
    """The rewards of a batch's questions, slot by slot; shapes as in ``group``.

    ``rewards_QK`` is NaN where a completion failed; ``place`` maps a row of the batch to its (question, slot).
    """

    rewards_QK: Tensor
    phrasing_QK: Tensor
    available_Q: Tensor
    num_phrasings: int
    place: dict[int, tuple[int, int]]

    def metrics(self) -> dict[str, float]:
        """The training signal."""
        shares = signal_metrics(self.rewards_QK, self.phrasing_QK, self.available_Q, self.num_phrasings)
        scored = self.rewards_QK[~torch.isnan(self.rewards_QK)]
        return {
            "reward": scored.mean().item(),
            "reward_std": scored.std().item(),
            "frac_reward_zero_std": uniform_groups(self.rewards_QK).float().mean().item(),
        } | shares


@dataclass
class Rows:
    """The rows of a batch as verl's queue holds them; padding rows, which verl adds, are told apart.

    ``keys`` are verl's ``{question}_{slot}_{output}``.
    """

    keys: list[str]
    real: list[bool]
    fields: dict[str, Any]

    @staticmethod
    def of(batch: Any, data: Any) -> Rows:
        """The rows of verl's batch; ``data`` holds FIELDS, each a nested tensor or a list."""
        fields = {name: list(data[name].unbind() if data[name].is_nested else data[name]) for name in tensors_of(data)}
        fields["extra_fields"] = [getattr(extra, "data", extra) for extra in data["extra_fields"]]
        return Rows(list(batch.keys), [not tag.get("is_padding", False) for tag in batch.tags], fields)

    @cached_property
    def rewards(self) -> list[float]:
        return [scores.sum().item() for scores in self.fields["rm_scores"]]

    @cached_property
    def phrasings(self) -> list[int]:
        return [extra["phrasing_index"] for extra in self.fields["extra_fields"]]

    def groups(self, size: int, num_phrasings: int) -> Groups:
        """The rows laid out as (question, slot); a slot without a row has no reward."""
        questions: dict[str, int] = {}
        place, available = {}, {}
        for row, key in enumerate(self.keys):
            if self.real[row]:
                uid, slot, _ = key.rsplit("_", 2)
                place[row] = (questions.setdefault(uid, len(questions)), int(slot))
                available[questions[uid]] = self.fields["extra_fields"][row]["phrasings_available"]
        rewards_QK = torch.full((len(questions), size), torch.nan)
        for row, at in place.items():
            rewards_QK[at] = self.rewards[row]
        phrasing_QK = torch.tensor(
            [
                [phrasing_of_slot(slot, size, num_phrasings, available[question]) for slot in range(size)]
                for question in range(len(questions))
            ]
        )
        available_Q = torch.tensor([available[question] for question in range(len(questions))])
        return Groups(rewards_QK, phrasing_QK, available_Q, num_phrasings, place)

    def corrected(self, groups: Groups, drop: bool) -> list[Tensor]:
        """The advantages of each row's tokens, as the update is to use them.

        verl gives the one completion left of a group its raw reward, and groups of equal rewards the rounding of their
        mean over 1e-6: both are 0 here. ``drop``: negative off-prompt advantages are 0 as well.
        """
        teaches_nothing_Q = uniform_groups(groups.rewards_QK)
        advantages = list(self.fields["advantages"])
        for row, (question, slot) in groups.place.items():
            if teaches_nothing_Q[question]:
                advantages[row] = torch.zeros_like(advantages[row])
            elif drop:
                phrasing = groups.phrasing_QK[question, slot].expand_as(advantages[row])
                advantages[row] = drop_off_prompt_negatives(advantages[row], phrasing)
        return advantages

    def truncated(self, row: int, end_token: int) -> bool:
        """Whether a completion was cut before its end."""
        return self.fields["responses"][row][-1].item() != end_token

    def metrics(self, end_token: int) -> dict[str, float]:
        """Lengths, verdicts, and entropy and KL term of on-prompt and off-prompt completions."""
        real = [row for row, is_real in enumerate(self.real) if is_real]
        lengths = [len(self.fields["responses"][row]) for row in real]
        figures = {
            "completions/mean_length": _mean(lengths),
            "completions/min_length": min(lengths),
            "completions/max_length": max(lengths),
            "completions/clipped_ratio": _mean([self.truncated(row, end_token) for row in real]),
        }
        verdicts = [self.fields["extra_fields"][row].get("reward_extra_info", {}).get("verdict") for row in real]
        if None not in verdicts:
            figures |= {f"verifier/{outcome}": verdicts.count(outcome) / len(real) for outcome in OUTCOMES}
        for name, values in (("entropy", self.fields["entropy"]), ("kl", self._kl())):
            for side, off_prompt in (("on", False), ("off", True)):
                tokens = [values[row] for row in real if (self.phrasings[row] > 0) is off_prompt] if values else []
                if tokens:
                    figures[f"{name}/{side}_prompt"] = torch.cat(tokens).mean().item()
        return figures

    def _kl(self) -> list[Tensor]:
        """k3 at each token, as verl estimates it."""
        if "ref_log_prob" not in self.fields:
            return []
        both = zip(self.fields["old_log_probs"], self.fields["ref_log_prob"], strict=True)
        return [kl_penalty(old, reference, "low_var_kl") for old, reference in both]

    def records(self, tokenizer: Any, advantages: Sequence[Tensor]) -> list[dict[str, Any]]:
        """One row a completion, as the run directory keeps them."""

        def place(row: int) -> tuple[str, int]:
            uid, slot, _ = self.keys[row].rsplit("_", 2)
            return uid, int(slot)

        rows = sorted((row for row, is_real in enumerate(self.real) if is_real), key=place)
        return [
            {
                "id": self.fields["extra_fields"][row]["question_id"],
                "phrasing_index": self.phrasings[row],
                "prompt": self.fields["extra_fields"][row]["prompt"],
                "sampled_prompt": self.fields["extra_fields"][row]["sampled_prompt"],
                "completion": tokenizer.decode(self.fields["responses"][row], skip_special_tokens=True),
                "completion_tokens": len(self.fields["responses"][row]),
                "completion_truncated": self.truncated(row, tokenizer.eos_token_id),
                "reward": self.rewards[row],
                "advantage": advantages[row][0].item(),
                **{
                    name: self.fields["extra_fields"][row].get("reward_extra_info", {}).get(name)
                    for name in ("verdict", "extracted")
                },
            }
            for row in rows
        ]


def tensors_of(data: Any) -> list[str]:
    """The names of a batch's fields that are tensors."""
    return [name for name in data.keys() if name != "extra_fields"]  # noqa: SIM118 - a TensorDict is no mapping


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class HuggingFaceCheckpoints(CheckpointCallback):
    """Makes each checkpoint's Hugging Face copy the run directory's ``checkpoint-N``, for ``ta-grpo eval``."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        copy = Path(checkpoint_dir).resolve() / "actor" / "huggingface"
        if not any(copy.glob("*.safetensors")):
            return
        (copy / COMPLETE_MARK).touch()
        link = Path(trainer.config.ta_grpo.run_dir) / f"{CHECKPOINT_PREFIX}{global_step}"
        link.unlink(missing_ok=True)
        link.symlink_to(copy)


@ray.remote
class TaskRunner:
    """Runs the trainer in the cluster; verl's ``run_ppo`` starts it."""

    def run(self, config: DictConfig) -> None:
        """Train to the end.

        Raises:
            UserError: a node has not the plug-in of this version.
        """
        check_nodes()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        trainer, succeeded = None, False
        try:
            trainer = TAGRPOTrainer(config=config)
            trainer.init()
            trainer.fit(
                AgentLoopManagerTQ.create(
                    config=config,
                    llm_client=trainer.get_llm_client(),
                    teacher_client=trainer.get_teacher_client(),
                    reward_loop_worker_handles=trainer.get_reward_handles(),
                )
            )
            succeeded = True
        finally:
            try:
                if (tracking := getattr(trainer, "logger", None)) is not None:
                    tracking.finish(exit_code=0 if succeeded else 1)
            finally:
                tq.close()
