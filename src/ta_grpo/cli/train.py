"""``ta-grpo train``: TA-GRPO with TRL or verl, from a model and a question file to a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..errors import UserError
from ..rundir import METRICS_FILE, read_jsonl
from ..settings import read_settings_file, setting
from ..trl.train_settings import TrainSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_text

_SHOWN = ("reward", "questions/original/mixed", "questions/joint/mixed", "loss", "completions/mean_length")


@dataclass
class CommandSettings(TrainSettings):
    """The settings of a run, and which back end runs it, where."""

    backend: str = setting("trl", "trl (this machine, or accelerate's processes) or verl (Ray).")
    ray_address: str | None = setting(
        None,
        "With --backend verl: the Ray cluster to train on, such as auto or HOST:PORT. Default: a Ray of its own here.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend not in ("trl", "verl"):
            raise UserError(f"backend={self.backend!r} is not a choice; use trl or verl")
        if self.ray_address is not None and self.backend != "verl":
            raise UserError("--ray-address is for --backend verl")

    def record(self) -> dict[str, Any]:
        settings = super().record()
        del settings["backend"], settings["ray_address"]
        return settings


def train(
    *verl: Annotated[str, Parameter(help="With --backend verl, after --: overrides of verl's own, KEY=VALUE.")],
    flags: flags_of(CommandSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    config: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print settings and batch arithmetic, and stop.")] = False,
    json: AsJson = False,
) -> None:
    """Train a model with TA-GRPO.

    Any other setting of TRL's GRPOConfig is taken in the YAML file by its name, or as --trl.KEY VALUE; with --backend
    verl, those that have a counterpart in verl.
    """
    settings = resolve(CommandSettings, flags, config, also={"trl": _names_of_backend(flags, config)})
    if settings.backend == "verl":
        run_dir = _train_with_verl(settings, verl, dry_run, json)
        if run_dir is not None:
            _tell(run_dir, json)
        return
    if verl:
        raise UserError(f"{verl[0]!r} is no setting; overrides after -- are for --backend verl")
    if dry_run:
        _dry_run(settings, json)
        return
    from ..trl.training import train as run

    run_dir = run(settings)
    _leave_the_process_group()
    if os.environ.get("RANK", "0") != "0":  # of several processes, the first tells
        return
    _tell(run_dir, json)


def _tell(run_dir: Path, json: bool) -> None:
    metrics = read_jsonl(run_dir / METRICS_FILE)
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


def _names_of_backend(flags: Any, config: Path | None) -> Iterable[str]:
    """The settings of TRL that the YAML file may hold."""
    if config is None:
        return ()
    backend = getattr(flags, "backend", None) or read_settings_file(config).get("backend")
    if backend == "verl":
        from ..verl.mapping import SETTINGS

        return SETTINGS
    return trl_names()


def _train_with_verl(settings: CommandSettings, overrides: tuple[str, ...], dry_run: bool, json: bool) -> Path | None:
    """Print verl's overrides and train; with ``dry_run`` stop there."""
    from ..verl.launch import VerlTraining, prepare
    from ..verl.launch import train as run

    ours = {field.name for field in fields(VerlTraining)} - {"trl", "overrides"}
    given = {
        field.name: getattr(settings, field.name)
        for field in fields(TrainSettings)
        if field.name not in {*ours, "trl"} and getattr(settings, field.name) != field.default
    }
    training = VerlTraining(
        **{name: getattr(settings, name) for name in ours}, trl=given | settings.trl, overrides=overrides
    )
    launch = prepare(training)
    if dry_run and json:
        print_json({"settings": training.record(), "batch": launch.counts(), "verl": launch.overrides})
    elif not json:
        print_text("verl's overrides:\n" + "\n".join(f"  {word}" for word in launch.overrides))
        print_pairs("\nBatch arithmetic", launch.counts().items())
    return None if dry_run else run(training, launch)


def trl_names() -> list[str]:
    """The settings of TRL's configuration, ours among them."""
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
