"""From what a user names as a target to the models to evaluate: a run's checkpoints, or one model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..models import TINY
from ..rundir import CHECKPOINT_PREFIX, checkpoints, is_finished


@dataclass(frozen=True)
class Target:
    """A model to evaluate, with how it was asked in training where that is known.

    Attributes:
        model: what ``load_model`` takes.
        name: for tables and for the record.
        output_dir: where its evaluations go by default; None: the user must say.
        max_new_tokens: longest completion by default.
    """

    model: str
    name: str
    output_dir: Path | None = None
    prompt_template: str | None = None
    conversational: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None


def find_targets(name: str, every_checkpoint: bool = False) -> list[Target]:
    """The models that a name stands for.

    =====================  ==================================================  =========================
    name                   models                                              default directory
    =====================  ==================================================  =========================
    a run directory        its last checkpoint                                 ``RUN/eval``
    the same, every one    all its complete checkpoints                        and ``RUN/eval/checkpoint-N``
    ``RUN/checkpoint-N``   that one                                            ``RUN/eval/checkpoint-N``
    anything else          a model, as ``models.resolve_model`` takes it       none
    =====================  ==================================================  =========================

    ``RUN/eval`` itself is for the last checkpoint of a run that has finished: while it goes on, the last one changes.
    A run's models are asked as in training: prompt template, format and chat template settings of its config.json.

    Raises:
        UserError: a run without a complete checkpoint, a checkpoint that is not complete, or every checkpoint of
            something that is no run.
    """
    path = Path(name).expanduser()
    if is_run(path):
        return _checkpoints_of(path, None, every_checkpoint)
    if every_checkpoint:
        raise UserError(f"{name} is no run directory: it has no checkpoints; leave --every-checkpoint out")
    if path.name.startswith(CHECKPOINT_PREFIX) and is_run(path.parent):
        return _checkpoints_of(path.parent, path, False)
    return [Target(name, name, max_new_tokens=_own_length(path, name))]


def is_run(path: Path) -> bool:
    """Whether a directory holds a training run."""
    return (path / "manifest.json").is_file() and (path / "config.json").is_file()


def _checkpoints_of(run_dir: Path, wanted: Path | None, every: bool) -> list[Target]:
    complete = checkpoints(run_dir)
    if not complete:
        raise UserError(f"{run_dir} holds no complete checkpoint; train on with --resume, or lower save_steps")
    if wanted is not None and wanted.name not in [path.name for path in complete]:
        raise UserError(f"{wanted} was not written to its end; name another checkpoint of {run_dir}")
    chosen = complete if every else complete[-1:] if wanted is None else [run_dir / wanted.name]
    last = complete[-1].name if is_finished(run_dir) else None
    asked = _as_in_training(run_dir)
    evaluations = run_dir / "eval"
    return [
        Target(
            str(path),
            path.name,
            output_dir=evaluations if path.name == last else evaluations / path.name,
            **asked,
        )
        for path in chosen
    ]


def _as_in_training(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
        return {
            "prompt_template": config.get("prompt_template"),
            "conversational": config.get("prompt_format", "messages") == "messages",
            "chat_template_kwargs": (config.get("trl") or {}).get("chat_template_kwargs") or {},
            "max_new_tokens": config.get("max_completion_length"),
        }
    except (ValueError, AttributeError):
        raise UserError(f"{path} is damaged; restore it, or name the checkpoint's directory as a copy") from None


def _own_length(path: Path, name: str) -> int | None:
    """max_new_tokens of the generation_config.json in a model's directory."""
    if name == TINY:
        from ..tiny import POLICY_DIR

        path = POLICY_DIR
    try:
        return json.loads((path / "generation_config.json").read_text("utf-8")).get("max_new_tokens")
    except (OSError, ValueError, AttributeError):
        return None
