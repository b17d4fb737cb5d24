"""Texts that overlap the questions of a benchmark: shared runs of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..questions import Question
from .texts import normalised_words

DEFAULT_NGRAM = 8
DEFAULT_SHARE = 0.5


@dataclass(frozen=True)
class Shared:
    """A benchmark question that a text overlaps, and the share of the shorter one's runs of words that both have."""

    benchmark: str
    id: str
    text: str
    share: float


class OverlapIndex:
    """Runs of ``ngram`` words of benchmark questions.

    Case, punctuation and spacing do not count. A text of fewer words is one run, so that only the same text matches.
    Memory: a number for each word of the benchmarks.
    """

    def __init__(self, ngram: int = DEFAULT_NGRAM) -> None:
        self.ngram = ngram
        self._questions: list[tuple[str, str, str, int]] = []
        self._where: dict[int, list[int]] = {}

    def add(self, benchmark: str, questions: Iterable[Question]) -> None:
        """Index the originals of a benchmark."""
        for question in questions:
            runs = self._runs(question.question)
            for run in runs:
                self._where.setdefault(run, []).append(len(self._questions))
            self._questions.append((benchmark, question.id, question.question, len(runs)))

    def find(self, text: str, share: float = DEFAULT_SHARE) -> list[Shared]:
        """The questions that a text overlaps by at least ``share``, the closest first."""
        runs = self._runs(text)
        common = Counter(number for run in runs for number in self._where.get(run, ()))
        found = []
        for number, count in common.items():
            benchmark, name, other, length = self._questions[number]
            overlap = count / min(len(runs), length)
            if overlap >= share:
                found.append(Shared(benchmark, name, other, overlap))
        return sorted(found, key=lambda shared: -shared.share)

    def _runs(self, text: str) -> set[int]:
        words = normalised_words(text)
        last = max(1, len(words) - self.ngram + 1)
        return {hash(tuple(words[start : start + self.ngram])) for start in range(last)} if words else set()
