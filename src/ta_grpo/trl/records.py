"""What a training run leaves to read: ``metrics.jsonl``, one line a step, and ``rollouts/step_00010.parquet``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..model_card import write_model_card
from ..rundir import (
    CHECKPOINT_PREFIX,
    append_metrics,
    read_rollouts,
    rollouts_file,
    rollouts_files,
    write_parquet_atomic,
)
from .trainer import TAGRPOTrainer


class RunRecords(TrainerCallback):
    """Writes the metrics and the rollouts of a trainer into a run directory.

    A rollouts file holds the completions generated for a step, a row each: ``id`` of the question, ``phrasing_index``,
    ``prompt`` (q_0), ``sampled_prompt``, ``completion``, ``reward`` (null: none), ``reward/NAME`` of each reward
    function, ``advantage`` as used, ``completion_tokens``, ``completion_truncated`` (cut at the longest length), and
    what the reward functions log (``verdict``, ``extracted``).

    With ``max_responses`` training ends at the step that comes nearest to so many completions.
    """

    def __init__(self, run_dir: Path, trainer: TAGRPOTrainer, max_responses: int | None = None) -> None:
        self.run_dir = run_dir
        self.trainer = trainer
        self.max_responses = max_responses
        self.responses = 0
        self._rollouts: list[dict[str, Any]] = []
        trainer.on_rollouts = self._collect
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count what a resumed run has sampled."""
        done = [path for step, path in rollouts_files(self.run_dir).items() if step <= state.global_step]
        self.responses = sum(read_rollouts(path, ["phrasing_index"]).num_rows for path in done)

    def _collect(self, trainer: TAGRPOTrainer) -> None:
        self.responses += len(trainer._logs["prompt"])
        if trainer.accelerator.is_main_process:
            self._rollouts.extend(_rollout_rows(trainer))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._rollouts:
            write_parquet_atomic(rollouts_file(self.run_dir, state.global_step), self._rollouts)
            self._rollouts = []
        spent = self.max_responses is not None and self.max_responses - self.responses < args.generation_batch_size / 2
        if spent and not control.should_training_stop:  # the last of max_steps is saved as it is
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint = self.run_dir / f"{CHECKPOINT_PREFIX}{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            write_model_card(checkpoint)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        append_metrics(self.run_dir, state.global_step, logs)


def _rollout_rows(trainer: TAGRPOTrainer) -> Iterator[dict[str, Any]]:
    """One row a completion of the generation batch that the trainer's logs hold."""
    logs: Any = trainer._logs
    rewards: dict[str, list[float]] = {name: list(values) for name, values in logs["rewards"].items()}
    weights = trainer.reward_weights.tolist()
    extra = {name: list(values) for name, values in logs["extra"].items()}
    for i, (prompt, completion, advantage) in enumerate(
        zip(logs["prompt"], logs["completion"], logs["advantages"], strict=True)
    ):
        columns = {name: values[i] for name, values in extra.items()}
        scores = [values[i] for values in rewards.values()]
        scored = [weight * score for weight, score in zip(weights, scores, strict=True) if not math.isnan(score)]
        yield {
            "id": columns.pop("id", None),
            "phrasing_index": columns.pop("phrasing_index"),
            "prompt": _text(prompt),
            "sampled_prompt": _text(columns.pop("sampled_prompt")),
            "completion": _text(completion),
            "reward": math.fsum(scored) if scored else None,
            **{
                f"reward/{name}": None if math.isnan(score) else score
                for name, score in zip(rewards, scores, strict=True)
            },
            "advantage": advantage,
            **{
                name: value if isinstance(value, str | int | float) else _text(value) for name, value in columns.items()
            },
        }


def _text(content: Any) -> str | None:
    """A prompt or completion as text: a single message's content, several messages as JSON."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0].get("content"), str):
        content = content[0]["content"]
    if content is None:
        return None
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text.encode("utf-8", errors="replace").decode("utf-8")  # Parquet refuses lone surrogates
