"""What is wrong with a rephrased file: rephrasings, answers, duplicates, and overlap with benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..questions import Question
from ..verifier import verify_many
from .checks import check_rephrasing
from .overlap import DEFAULT_NGRAM, DEFAULT_SHARE, OverlapIndex
from .texts import normalised_words


@dataclass
class Audit:
    """Findings, each a mapping that can be written as JSON. ``rephrasing`` counts from 1; 0 is the original."""

    questions: int = 0
    rephrasings: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    overlaps: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    benchmarks: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.rejected or self.answers or self.duplicates or self.overlaps or self.problems)

    @property
    def num_rejected(self) -> int:
        """Rephrasings that at least one check rejects."""
        return len({(finding["id"], finding["rephrasing"]) for finding in self.rejected})

    def by_check(self) -> Counter[str]:
        """Rephrasings that each check rejects."""
        return Counter(finding["check"] for finding in self.rejected)


def audit(
    questions: Sequence[Question],
    skip: Collection[str] = (),
    against: Mapping[str, Sequence[Question]] | None = None,
    ngram: int = DEFAULT_NGRAM,
    share: float = DEFAULT_SHARE,
) -> Audit:
    """Check all rephrasings, whether each answer can be verified, duplicates, and overlap with benchmarks.

    Args:
        questions: with their rephrasings.
        skip: checks of rephrasings to leave out.
        against: benchmark name -> its questions.
        ngram: words of a run that counts as shared.
        share: share of the shorter text's runs from which on two texts overlap.

    Raises:
        UserError: ``skip`` names no check.
    """
    index = OverlapIndex(ngram)
    found = Audit(benchmarks={name: len(of_one) for name, of_one in (against or {}).items()})
    for name, of_one in (against or {}).items():
        index.add(name, of_one)
    first_with: dict[int, tuple[str, int]] = {}
    for question in questions:
        found.questions += 1
        found.rephrasings += len(question.rephrasings)
        for number, text in enumerate((question.question, *question.rephrasings)):
            if number:
                siblings = question.rephrasings[: number - 1]
                reasons = check_rephrasing(question.question, text, question.answer, siblings, skip)
                found.rejected += [
                    {
                        "id": question.id,
                        "rephrasing": number,
                        "check": reason.check,
                        "reason": reason.reason,
                        "text": text,
                    }
                    for reason in reasons
                ]
            _note_duplicate(found, first_with, question.id, number, text)
            found.overlaps += [
                {
                    "id": question.id,
                    "rephrasing": number,
                    "text": text,
                    "benchmark": shared.benchmark,
                    "benchmark_id": shared.id,
                    "benchmark_text": shared.text,
                    "share": shared.share,
                }
                for shared in index.find(text, share)
            ]
    verdicts = verify_many([(f"\\boxed{{{question.answer}}}", question.answer) for question in questions])
    found.answers = [
        {"id": question.id, "answer": question.answer, "outcome": verdict.outcome}
        for question, verdict in zip(questions, verdicts, strict=True)
        if not verdict.correct
    ]
    return found


def _note_duplicate(found: Audit, first_with: dict[int, tuple[str, int]], name: str, number: int, text: str) -> None:
    """Note a text that another question has too; copies within a question are the checks' to reject."""
    key = hash(tuple(normalised_words(text)))
    other, other_number = first_with.setdefault(key, (name, number))
    if other != name:
        found.duplicates.append(
            {"id": name, "rephrasing": number, "other_id": other, "other_rephrasing": other_number, "text": text}
        )
