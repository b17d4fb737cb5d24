"""Settings of the verb ``eval``, with the paper's as a preset. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..settings import setting

if TYPE_CHECKING:
    from ..sampling import SamplingSettings
    from .targets import Target

DEFAULTS = {"num_samples": 32, "temperature": 1.0, "top_p": 1.0, "seed": 0}
DEFAULT_MAX_NEW_TOKENS = 1024
PRESETS = {
    # arXiv 2601.22478: the authors' evaluation.
    "paper": {
        "num_samples": 128,
        "temperature": 0.6,
        "top_p": 0.95,
        "max_new_tokens": 3072,
        "ks": [1, 2, 4, 8, 16, 32, 64, 128],
    }
}
# Completions of a planned batch. vLLM packs a batch itself, and an endpoint waits for the last of one.
BATCH_SIZES = {"transformers": 64, "vllm": 2048, "endpoint": 1024}
_NOT_OF_RESCORE = (
    *("preset", "num_samples", "temperature", "top_p", "max_new_tokens", "seed", "batch_size", "limit", "base_url"),
    *("chat_template", "prompt_template"),
)


@dataclass
class EvalSettings:
    """Settings of the verb ``eval``."""

    benchmarks: str | list[str] = setting(
        "", "Sets, with commas: a named set (math500, tiny/test), one from a file (aime24=FILE) or a question file."
    )
    output_dir: Path | None = setting(
        None, "Where the evaluations go, a folder a set. Default for a run: its own folder eval."
    )
    preset: str | None = setting(
        None, "paper: 128 samples, temperature 0.6, top_p 0.95, 3072 tokens, k up to 128, the paper's six sets."
    )
    num_samples: int | None = setting(None, "n, completions of each question. Default: 32.")
    ks: str | list[int] | None = setting(None, "The k of pass@k, with commas. Default: 1, 2, 4 and so on up to n.")
    temperature: float | None = setting(None, "Sampling temperature; 0 is greedy, with one sample. Default: 1.0.")
    top_p: float | None = setting(None, "Nucleus sampling. Default: 1.0.")
    max_new_tokens: int | None = setting(
        None, "Longest completion, in tokens. Default: the run's or the model directory's own, else 1024."
    )
    seed: int | None = setting(None, "Seed of sampling. Default: 0.")
    batch_size: int | None = setting(
        None, "Completions drawn together, and kept together. Default: 64; vllm 2048; endpoint 1024."
    )
    limit: int | None = setting(None, "The first questions of each set only.")
    backend: str = setting("transformers", "transformers, vllm (in this process) or endpoint (OpenAI-compatible).")
    base_url: str | None = setting(
        None, "Address of the endpoint, such as http://localhost:8000/v1. Its key: the variable OPENAI_API_KEY."
    )
    concurrency: int = setting(16, "Requests to the endpoint under way at a time.")
    chat_template: bool | None = setting(
        None, "Ask by a chat message, or with plain text. Default: as the run was trained, else by message."
    )
    prompt_template: str | None = setting(
        None, "How a question becomes a prompt; holds {question} once. Default: the run's, else the set's own."
    )
    every_checkpoint: bool = setting(False, "Evaluate every checkpoint of a run.")
    against: Path | None = setting(
        None, "Compare, paired by question, with another evaluation: its directory, a run or a summary.json."
    )
    rescore: bool = setting(False, "Verify the stored samples again; sample nothing.")
    resume: bool = setting(False, "Go on with an unfinished evaluation.")
    vllm: dict[str, Any] = setting({}, "Arguments of vllm.LLM: --vllm.KEY VALUE.")

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise UserError(f"preset={self.preset!r} is not a choice; there is: {', '.join(PRESETS)}")
        if self.backend not in BATCH_SIZES:
            raise UserError(f"backend={self.backend!r} is not a choice; use {', '.join(BATCH_SIZES)}")
        if self.base_url is not None and self.backend != "endpoint":
            raise UserError("--base-url is for --backend endpoint; add that, or leave the address out")
        if self.vllm and self.backend != "vllm":
            raise UserError("--vllm.* is for --backend vllm; add that, or leave them out")
        for name in ("limit", "concurrency"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be 1 or more")
        if self.rescore:
            given = [name for name in _NOT_OF_RESCORE if getattr(self, name) is not None]
            if given or self.backend != "transformers":
                flag = (given or ["backend"])[0].replace("_", "-")
                raise UserError(f"--rescore samples nothing; leave --{flag} out, the stored samples have their own")
        self.ks = _numbers(self.ks)
        chosen = PRESETS.get(self.preset or "", {})
        if not self.rescore:
            for name, default in (DEFAULTS | chosen).items():
                if getattr(self, name) is None:
                    setattr(self, name, default)
        self.benchmarks = _words(self.benchmarks) or _benchmarks_of(self.preset)

    def sampling(self, target: Target) -> SamplingSettings:
        """How completions of a target are drawn."""
        from ..sampling import SamplingSettings

        lengths = (self.max_new_tokens, target.max_new_tokens, DEFAULT_MAX_NEW_TOKENS)
        # All but the lengths are filled in by now, and a 0 is for SamplingSettings to refuse.
        return SamplingSettings(
            num_samples=self.num_samples or 0,
            max_new_tokens=next(length for length in lengths if length is not None),
            temperature=self.temperature or 0.0,
            top_p=self.top_p or 0.0,
            seed=self.seed or 0,
            batch_size=BATCH_SIZES[self.backend] if self.batch_size is None else self.batch_size,
        )


def _words(value: str | list[str]) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else list(value)


def _numbers(value: Any) -> list[int] | None:
    if value is None:
        return None
    try:
        return [int(word) for word in _words(value)] if isinstance(value, str) else value
    except ValueError:
        raise UserError(f"ks must be whole numbers with commas between them, such as 1,8,32; got {value!r}") from None


def _benchmarks_of(preset: str | None) -> list[str]:
    if preset != "paper":
        return []
    from ..benchmarks import PAPER_BENCHMARKS

    return list(PAPER_BENCHMARKS)
