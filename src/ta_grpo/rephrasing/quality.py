"""What became of the rephrasings of a file: how many were accepted, of which kind, and why others were not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GIVEN = "given"
"""The transformation of a rephrasing that the question came with."""
SHORTFALL = "rephrasing_shortfall"
"""The column of the rephrasings that could not be made, with what was wrong with each attempt."""


@dataclass
class Spread:
    """Mean and range of figures, without keeping them."""

    count: int = 0
    total: float = 0.0
    lowest: float = float("inf")
    highest: float = float("-inf")

    def add(self, figure: float) -> None:
        self.count, self.total = self.count + 1, self.total + figure
        self.lowest, self.highest = min(self.lowest, figure), max(self.highest, figure)

    def figures(self) -> dict[str, float] | None:
        """None where nothing was added."""
        if not self.count:
            return None
        return {"mean": self.total / self.count, "lowest": self.lowest, "highest": self.highest}


@dataclass
class QualityReport:
    """Sums over question records, as ``rephrase`` writes them.

    Attributes:
        given: rephrasings that the questions came with; they are not among ``accepted``.
        missing: rephrasings that could not be made; ``short_questions`` have fewer than were wanted.
        attempts, accepted: by transformation.
        rejections: by check. One attempt may fail several.
        similarity: share of words (repeats counted) that a new rephrasing and its original have in common.
        length: characters of a new rephrasing over those of its original.
    """

    questions: int = 0
    given: int = 0
    missing: int = 0
    short_questions: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    similarity: Spread = field(default_factory=Spread)
    length: Spread = field(default_factory=Spread)

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> QualityReport:
        report = cls()
        for record in records:
            report.add(record)
        return report

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one question."""
        self.questions += 1
        original = record["question"]
        for text, info in zip(record["rephrasings"], record["rephrasing_info"], strict=True):
            if not isinstance(info, Mapping) or not isinstance(info.get("attempts"), int):  # it came with the question
                self.given += 1
                continue
            self.accepted[info["transformation"]] += 1
            self._count_attempts(info)
            self.similarity.add(words_in_common(original, text))
            self.length.add(len(text) / len(original))
        shortfall = record.get(SHORTFALL) or ()
        for slot in shortfall:
            self._count_attempts(slot)
        self.missing += len(shortfall)
        self.short_questions += bool(shortfall)

    def _count_attempts(self, slot: Mapping[str, Any]) -> None:
        self.attempts[slot["transformation"]] += slot["attempts"]
        self.rejections.update(rejection["check"] for rejection in slot["rejected"])

    @property
    def num_accepted(self) -> int:
        return self.accepted.total()

    @property
    def num_rejected(self) -> int:
        """Attempts that were not accepted."""
        return self.attempts.total() - self.accepted.total()

    def figures(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        return {
            "questions": self.questions,
            "given": self.given,
            "accepted": self.num_accepted,
            "rejected": self.num_rejected,
            "missing": self.missing,
            "short_questions": self.short_questions,
            "transformations": {
                name: {
                    "attempts": count,
                    "accepted": self.accepted[name],
                    "acceptance": _share(self.accepted[name], count),
                }
                for name, count in sorted(self.attempts.items())
            },
            "checks": {
                name: {"rejected": count, "share": _share(count, self.attempts.total())}
                for name, count in self.rejections.most_common()
            },
            "similarity": self.similarity.figures(),
            "length": self.length.figures(),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def words_in_common(one: str, other: str) -> float:
    """Words that two texts share, repeats counted, over the mean of their numbers: 1 for equal ones, 0 for none."""
    first, second = (Counter(re.findall(r"\w+", text.casefold())) for text in (one, other))
    whole = first.total() + second.total()
    return 2 * (first & second).total() / whole if whole else 1.0
