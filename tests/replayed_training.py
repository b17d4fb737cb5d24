"""Trains on completions replayed by (question id, slot), in as many processes as it is launched in.

Run: python replayed_training.py OUT_DIR NAME..., names of ``VARIANTS``. The first process writes NAME.pt with the
groups as they were trained, the logged losses and the final weights.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from fake_vllm import RecordingEngine, fake_vllm
from tiny_models import tokenizer
from trl_runs import EOS, question_rows, ta_trainer, vowel_reward

K, QUESTIONS_PER_STEP, STEPS = 8, 3, 3
LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "bnpo"]


def half_uniform(completions: list[Any], **columns: Any) -> list[float]:
    """Every second question is right whatever is answered."""
    rewards = vowel_reward(completions)
    return [1.0 if int(id_[2:]) % 2 else reward for id_, reward in zip(columns["id"], rewards, strict=True)]


VARIANTS: dict[str, dict[str, Any]] = {
    **{loss_type: {"loss_type": loss_type} for loss_type in LOSS_TYPES},
    "importance": {"ratio_anchor": "importance"},
    "sampled": {"ratio_anchor": "sampled", "advantage_scope": "per_phrasing"},
    "drop": {"off_prompt_negatives": "drop"},
    "pull": {"ratio_anchor": "sampled", "pull_to_original": 0.5},
    "dynamic": {"dynamic_sampling": 3.0, "reward": half_uniform},
    "adaptive": {"adaptive_rephrasings": True, "reward": half_uniform},
    "compact": {"compact_passes": True, "off_prompt_negatives": "drop"},
    "server": {},  # through TRL's client of a vLLM server, instead of replayed
    "compact rows": {"compact_passes": True, "off_prompt_negatives": "drop", "loss_type": "grpo"},
}


def replay(trainer: Any, prompt_ids: list[list[int]], *rest: Any) -> tuple[list[list[int]], None]:
    """The completion of a row is drawn from its question's number and its slot in the group, and nothing else."""
    first_row = trainer.accelerator.process_index * len(prompt_ids)
    texts = [tokenizer().decode(ids, skip_special_tokens=True) for ids in prompt_ids]
    completions = []
    for i, text in enumerate(texts):
        rng = random.Random(f"{text.split()[0]} {(first_row + i) % K}")
        completions.append([*(rng.choice(range(14, 40)) for _ in range(rng.randint(2, 5))), EOS])
    return completions, None


def run(out_dir: Path, name: str) -> None:
    """One training run, its completions replayed, or drawn in order by a recording server in the first process."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "server":
            engine = RecordingEngine()
            with fake_vllm("server", engine, patch) as vllm:
                train(out_dir, name, engine, **vllm)
            return
        patch.setattr(GRPOTrainer, "_generate_single_turn", replay)
        train(out_dir, name)


def train(out_dir: Path, name: str, engine: RecordingEngine | None = None, **settings: Any) -> None:
    """K rows of each pass are dealt over the processes."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = ta_trainer(
        out_dir / name,
        question_rows(QUESTIONS_PER_STEP * STEPS),
        num_generations=K,
        per_device_train_batch_size=K // processes,
        gradient_accumulation_steps=QUESTIONS_PER_STEP,
        max_steps=STEPS,
        **VARIANTS[name],
        **settings,
    )
    groups: list[dict[str, Any]] = []

    def collect(trainer: Any) -> None:
        logs = trainer._logs
        columns = {
            "id": logs["extra"]["id"],
            "phrasing": logs["extra"]["phrasing_index"],
            "sampled_prompt": logs["extra"]["sampled_prompt"],
            "completion": logs["completion"],
            "reward": next(iter(logs["rewards"].values())),
            "advantage": logs["advantages"],
        }
        groups.append({column: list(values)[-K * QUESTIONS_PER_STEP :] for column, values in columns.items()})

    trainer.on_rollouts = collect
    trainer.train()
    assert trainer.accelerator.num_processes == processes
    if trainer.accelerator.is_main_process:
        torch.save(
            {
                "processes": processes,
                "asked": engine.asked if engine else None,
                "groups": groups,
                "logs": [log for log in trainer.state.log_history if "loss" in log],
                "weights": trainer.accelerator.unwrap_model(trainer.model).state_dict(),
            },
            out_dir / f"{name}.pt",
        )


def main() -> None:
    """The runs that the command line names, one after another in the same processes."""
    for name in sys.argv[2:]:
        run(Path(sys.argv[1]), name)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
