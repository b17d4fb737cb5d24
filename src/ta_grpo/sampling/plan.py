"""What is drawn, and in which batches: all planned before the first is drawn, each with a seed of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UserError

if TYPE_CHECKING:
    from .arrived import Arrived

Prompt = str | list[dict[str, str]]


@dataclass(frozen=True)
class SamplingSettings:
    """How completions are drawn.

    ``temperature`` 0 is greedy decoding, which gives one completion a question. There is no top-k and no repetition
    penalty, whatever the model's own generation_config.json says. ``batch_size`` counts completions; with another
    value, the same seed gives other samples.

    Raises:
        UserError: a value that cannot be.
    """

    num_samples: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("num_samples", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.seed < 0:
            raise UserError(f"seed must be 0 or more; got {self.seed}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature must be 0 or more; got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1; got {self.top_p}")
        if self.temperature == 0 and self.num_samples > 1:
            raise UserError(
                f"temperature=0 gives the same completion every time, so num_samples={self.num_samples} would be "
                "copies; set num_samples=1, or a temperature above 0"
            )


@dataclass(frozen=True)
class Completion:
    """``text`` without special tokens; ``tokens`` counts the end-of-sequence token, and is None where the backend does
    not tell; not ``finished``: it was cut.
    """

    text: str
    tokens: int | None
    finished: bool


@dataclass(frozen=True)
class Batch:
    """Rows (question number, sample number) that are drawn together under one seed."""

    rows: tuple[tuple[int, int], ...]
    seed: int


class Sampler(Protocol):
    """What ``sample_to_file`` draws from."""

    settings: SamplingSettings

    def prepare(self, prompts: Mapping[str, Prompt]) -> list[Any]:
        """The prompts, which are given by question id, as ``complete`` takes them: token ids, where the backend has a
        tokenizer.
        """
        ...

    def complete(self, prompts: Sequence[Any], seed: int, arrived: Arrived) -> list[Completion]:
        """One completion of each prepared prompt; the same prompts and seed give the same completions.

        A backend that answers bit by bit puts each bit into ``arrived``, and asks only for what is not there.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What else decides the completions: a resumed run must have the same."""
        ...


def plan_batches(ids: Sequence[str], lengths: Sequence[int], settings: SamplingSettings) -> Iterator[Batch]:
    """Every sample of every question, in batches of prompts of similar length.

    The longest come first: if memory does not suffice, that shows at once. The samples of a question follow each
    other. A batch's seed comes from ``settings.seed`` and the question ids and sample numbers it holds.
    """
    by_length = sorted(range(len(ids)), key=lambda number: -lengths[number])
    rows = ((number, sample) for number in by_length for sample in range(settings.num_samples))
    while part := tuple(itertools.islice(rows, settings.batch_size)):
        yield Batch(part, seed_of([settings.seed, [[ids[number], sample] for number, sample in part]]))


def same_prompt_runs(prompts: Sequence[Any], longest: int | None = None) -> list[tuple[Any, int]]:
    """(prompt, how often it follows itself), in order; with ``longest``, a longer run is split."""
    runs = []
    for prompt, group in itertools.groupby(prompts):
        count = sum(1 for _ in group)
        size = longest or count
        runs += [(prompt, min(size, count - start)) for start in range(0, count, size)]
    return runs


def seed_of(content: Any) -> int:
    """A seed of 60 bits that depends on all of ``content``, which is JSON."""
    return int(digest_of(content)[:15], 16)


def digest_of(content: Any) -> str:
    """SHA-256 of ``content``, which is JSON."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
