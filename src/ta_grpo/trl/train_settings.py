"""What one training run is asked to do: our own settings, the common ones of TRL, and any other of TRL's by name.

No torch here, so that the command line can describe the settings at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..settings import help_of, setting

# Settings of TRL that the run itself decides, with what to use instead.
_MANAGED = {
    "output_dir": "use --output-dir",
    "resume_from_checkpoint": "use --resume",
    "hub_token": "set the environment variable HF_TOKEN",
    "push_to_hub_token": "set the environment variable HF_TOKEN",
    "do_train": "train always trains",
    "do_eval": "use the verb eval",
    "do_predict": "use the verb eval",
}

# What may differ between a run and its resumption without changing a number in it.
FREE_TO_CHANGE = ("save_steps", "resume")

_QUESTIONS_PER_STEP = 8


@dataclass
class TrainSettings:
    """Settings of the verb ``train``. ``None`` leaves a setting of TRL at TRL's default."""

    model: str = setting("", "Model id, directory, GGUF file, or 'tiny' for the embedded policy.")
    questions: str = setting("", "Question file (.jsonl, .json, .parquet, .csv) or a named set, such as tiny.")
    output_dir: Path = setting(Path(), "Run directory to make. A used one is never overwritten.")
    num_rephrasings: int = setting(3, "N, rephrasings of each question sampled beside the original. 0 is stock GRPO.")
    num_generations: int = setting(32, "K = (N + 1) * G, completions of a question that are normalised together.")
    ratio_anchor: str = setting("original", "Prompt of the importance ratio: original, importance or sampled.")
    advantage_scope: str = setting(
        "joint", "Rewards are normalised over the whole group (joint) or within each phrasing (per_phrasing)."
    )
    off_prompt_negatives: str = setting(
        "keep", "keep or drop the negative advantages of completions sampled under a rephrasing."
    )
    pull_to_original: float = setting(
        0.0, "With ratio_anchor=sampled: weight of off-prompt successes trained once more under the original question."
    )
    reward: str = setting("accuracy", "accuracy, or module:function with the signature of a TRL reward function.")
    prompt_template: str | None = setting(
        None, "How a question becomes a prompt; holds {question} once. Default: the question set's own."
    )
    prompt_format: str = setting("messages", "messages (the model's chat template is applied) or text.")
    columns: dict[str, str] | None = setting(
        None, "Where the question file has other column names: --columns.question problem --columns.answer solution."
    )
    limit: int | None = setting(None, "Train on the first questions only.")
    questions_per_step: int | None = setting(
        None, "Questions of one optimiser step; decides gradient_accumulation_steps. Default: 8."
    )
    per_device_train_batch_size: int | None = setting(None, "Completions of one forward and backward pass.")
    gradient_accumulation_steps: int | None = setting(
        None, "Passes of one optimiser step; instead of questions_per_step."
    )
    num_iterations: int | None = setting(None, "Updates on the same completions.")
    learning_rate: float | None = setting(None, "Initial learning rate of AdamW.")
    max_steps: int | None = setting(None, "Optimiser steps in all; instead of num_train_epochs.")
    num_train_epochs: float | None = setting(None, "Passes over the questions.")
    max_responses: int | None = setting(
        None, "Stop at about so many sampled completions, if max_steps does not come first; for dynamic sampling."
    )
    max_completion_length: int | None = setting(None, "Longest completion, in tokens.")
    temperature: float | None = setting(None, "Sampling temperature of the completions.")
    beta: float | None = setting(None, "Weight of the KL term.")
    epsilon: float | None = setting(None, "Clipping range of the ratio.")
    loss_type: str | None = setting(None, "How token losses are averaged: TRL's names.")
    use_peft: bool = setting(False, "Train LoRA adapters instead of all weights.")
    lora_r: int = setting(16, "Rank of the adapters.")
    lora_alpha: int = setting(32, "Scale of the adapters.")
    lora_dropout: float = setting(0.0, "Dropout of the adapters; above 0 the ratio is not 1 at the first update.")
    lora_target_modules: str = setting("all-linear", "Modules that get an adapter: all-linear, or a pattern.")
    save_steps: int = setting(50, "Optimiser steps between checkpoints.")
    seed: int = setting(42, "Seed of the order of questions and of sampling.")
    resume: bool = setting(False, "Go on with the run in output_dir from its last complete checkpoint.")
    trl: dict[str, Any] = setting({}, "Any other setting of TRL's GRPOConfig: --trl.KEY VALUE.")

    def __post_init__(self) -> None:
        for name in ("model", "questions"):
            if not getattr(self, name):
                raise UserError(f"--{name} is missing: {help_of(TrainSettings)[name]}")
        if self.output_dir == Path():
            raise UserError("--output-dir is missing: name the run directory to make, such as runs/first")
        if self.prompt_format not in ("messages", "text"):
            raise UserError(f"prompt_format={self.prompt_format!r} is not a choice; use messages or text")
        for name in ("limit", "questions_per_step", "max_responses", "save_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name}={value} must be 1 or more")
        managed = [f"{name} is not set this way; {instead}" for name, instead in _MANAGED.items() if name in self.trl]
        if managed:
            raise UserError("; ".join(managed))
        own = {setting.name for setting in fields(self)}
        if twice := sorted(own & self.trl.keys()):
            raise UserError(f"--trl.{twice[0]}: this setting has a flag of its own; use --{twice[0].replace('_', '-')}")
        batch = ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size")
        fixed = [name for name in batch if getattr(self, name, None) is not None or name in self.trl]
        if fixed and self.questions_per_step is not None:
            raise UserError(f"questions_per_step and {fixed[0]} both decide the batch; leave one of them out")
        if not fixed and self.questions_per_step is None:
            self.questions_per_step = _QUESTIONS_PER_STEP

    def record(self) -> dict[str, Any]:
        """The settings as ``config.json`` holds them; where the run lies and how it was started are not among them."""
        settings = asdict(self)
        del settings["output_dir"], settings["resume"]
        return settings
