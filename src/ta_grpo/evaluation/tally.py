"""From samples and verdicts on disk to counts, question by question: one question's samples are in memory at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..rundir import iter_jsonl
from ..sampling.files import SAMPLE_FIELDS
from ..verifier import OUTCOMES
from ..verifier.notation import normalise

_RIGHT = "right"
VERDICT_FIELDS = {"id": str, "outcome": str, "extracted": (str, type(None))}


@dataclass
class Tally:
    """Counts over samples; ``correct`` and ``vote_right`` by question id."""

    correct: dict[str, int] = field(default_factory=dict)
    vote_right: dict[str, float] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    tokens: int | None = 0
    truncated: int = 0
    duplicates: int = 0


def tally(samples_path: Path, verdicts_path: Path, ids: Container[str], num_samples: int) -> Tally:
    """Count the samples of the questions in ``ids``; the lines of a question follow each other in both files.

    Raises:
        UserError: a question without exactly ``num_samples`` samples, or verdicts of other samples.
    """
    counts = Tally()
    samples = stored_samples(samples_path, ids)
    verdicts = (line for line, _ in iter_jsonl(verdicts_path, VERDICT_FIELDS))
    for question_id, group in itertools.groupby(samples, key=lambda sample: sample["id"]):
        drawn = list(group)
        judged = list(itertools.islice(verdicts, len(drawn)))
        if len(drawn) != num_samples or question_id in counts.correct:
            raise UserError(
                f"{samples_path}: question {question_id!r} has {len(drawn)} samples in a row, not {num_samples}; "
                "finish the sampling with --resume, or draw the samples anew in another directory"
            )
        fit = [line["id"] for line in judged] == [question_id] * num_samples
        if not fit or any(line["outcome"] not in OUTCOMES for line in judged):
            raise UserError(f"{verdicts_path} does not belong to {samples_path.name}; move it away")
        counts.correct[question_id] = sum(line["outcome"] == _RIGHT for line in judged)
        counts.vote_right[question_id] = majority_vote((line["extracted"], line["outcome"]) for line in judged)
        counts.outcomes.update(line["outcome"] for line in judged)
        counts.samples += num_samples
        tokens = [sample["tokens"] for sample in drawn]
        counts.tokens = None if counts.tokens is None or None in tokens else counts.tokens + sum(tokens)
        counts.truncated += sum(not sample["finished"] for sample in drawn)
        counts.duplicates += num_samples - len({sample["completion"] for sample in drawn})
    return counts


def stored_samples(path: Path, ids: Container[str]) -> Iterator[dict[str, Any]]:
    """The samples of the questions in ``ids``, in the order of the file."""
    return (line for line, _ in iter_jsonl(path, SAMPLE_FIELDS) if line["id"] in ids)


def majority_vote(votes: Iterable[tuple[str | None, str]]) -> float:
    """How right the most frequent answer is, from (extracted answer, outcome) of each sample.

    Answers are the same if their text is, in the verifier's notation; no answer is no vote. Where several answers are
    equally frequent, their mean: what drawing one of them at random gives on average, whatever the order of the
    samples. Without any answer 0.
    """
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for (extracted, outcome), count in Counter(votes).items():
        if extracted is not None:
            answer = normalise(extracted)
            counts[answer] += count
            right[answer] += count * (outcome == _RIGHT)
    if not counts:
        return 0.0
    most = max(counts.values())
    winners = [answer for answer, count in counts.items() if count == most]
    return sum(right[answer] / most for answer in winners) / len(winners)
