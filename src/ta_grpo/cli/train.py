"""``ta-grpo train``: TA-GRPO with TRL, from a model and a question file to a run directory."""

from __future__ import annotations

import os
from typing import Annotated, Any

from cyclopts import Parameter

from ..rundir import read_jsonl
from ..trl.train_settings import TrainSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs

_SHOWN = ("reward", "questions/original/mixed", "questions/joint/mixed", "loss", "completions/mean_length")


def train(
    flags: flags_of(TrainSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print settings and batch arithmetic, and stop.")] = False,
    json: AsJson = False,
) -> None:
    """Train a model with TA-GRPO.

    Any other setting of TRL's GRPOConfig is taken in the YAML file by its name, or as --trl.KEY VALUE.
    """
    settings = resolve(TrainSettings, flags, config, also={"trl": trl_names() if config is not None else ()})
    if dry_run:
        _dry_run(settings, json)
        return
    from ..trl.training import train as run

    run_dir = run(settings)
    _leave_the_process_group()
    if os.environ.get("RANK", "0") != "0":  # of several processes, the first tells
        return
    metrics = read_jsonl(run_dir / "metrics.jsonl")
    last = metrics[-1] if metrics else {}
    if json:
        print_json({"run_dir": str(run_dir), "steps": last.get("step", 0), "last_metrics": last})
    else:
        figures = [(f"last {name}", f"{last[name]:.3g}") for name in _SHOWN if last.get(name) is not None]
        print_pairs(f"Trained: {run_dir}", [("steps", last.get("step", 0)), *figures])


def _leave_the_process_group() -> None:
    """Of several processes, the one that ends first must not tear the connections of the others."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def trl_names() -> list[str]:
    """The settings of TRL's configuration, ours among them."""
    from dataclasses import fields

    from ..trl import TAGRPOConfig

    return [field.name for field in fields(TAGRPOConfig) if field.init]


def _dry_run(settings: TrainSettings, json: bool) -> None:
    from dataclasses import asdict

    from ..trl.training import batch_arithmetic, read_questions, trainer_config, with_typed_trl

    settings = with_typed_trl(settings)
    trainer = trainer_config(settings)
    counts = batch_arithmetic(trainer, read_questions(settings))
    resolved: dict[str, Any] = settings.record() | {
        name: getattr(trainer, name) for name in settings.record() if hasattr(trainer, name)
    }
    if json:
        print_json({"settings": resolved, "batch": asdict(counts)})
        return
    print_pairs("Settings", [(name, value) for name, value in resolved.items() if value not in (None, {})])
    print_pairs("\nBatch arithmetic", counts.lines())
