"""For tests alone: what a step of verl's trainer was trained on, kept beside its checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq

from ta_grpo.verl.trainer import HuggingFaceCheckpoints

FIELDS = ("prompts", "responses", "old_log_probs", "ref_log_prob", "advantages", "rm_scores", "extra_fields")


class RecordingCheckpoints(HuggingFaceCheckpoints):
    """Keeps the batch that verl's queue still holds and what the engine was asked; dies after step KILL_AFTER_STEP."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        super().on_save(trainer, global_step, checkpoint_dir, **kwargs)
        tags = {key: tag for key, tag in tq.kv_list("train")["train"].items() if not tag.get("is_prompt", False)}
        data = tq.kv_batch_get(keys=list(tags), partition_id="train", select_fields=list(FIELDS))
        rows = {name: [row.clone() for row in data[name].unbind()] for name in FIELDS if name != "extra_fields"}
        rows["phrasing"] = [getattr(extra, "data", extra)["phrasing_index"] for extra in data["extra_fields"]]
        asked = ray.get(ray.get_actor("cpu_server_0").everything_asked.remote())
        record = {
            "keys": list(tags),
            "padding": [tag.get("is_padding", False) for tag in tags.values()],
            "asked": asked,
        }
        torch.save(record | rows, Path(trainer.config.ta_grpo.run_dir) / f"recorded_{global_step}.pt")
        if os.environ.get("KILL_AFTER_STEP") == str(global_step):
            os.kill(os.getpid(), signal.SIGKILL)
