"""What an evaluation came to: the summary file, and the mean over several sets of questions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..rundir import write_json_atomic
from ..statistics import Interval, mean_of_means, pass_at_k

SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class Evaluation:
    """What ``summary.json`` holds.

    Attributes:
        name: of the set of questions.
        num_samples: n, completions of each question.
        correct: correct completions of each question, by id.
        pass_at_k: the mean over questions by k, with its 95 % bootstrap interval.
        vote_right: by question id, how right the most frequent answer is; see ``tally.majority_vote``.
        majority_vote: the mean of these with its interval.
        outcomes: share of the completions by the verifier's outcome; only ``right`` counts as correct.
        mean_tokens: of a completion, its end-of-sequence token included; None: the backend did not tell.
        truncated_share: of the completions, those cut at max_new_tokens.
        duplicate_share: of the completions, those that repeat an earlier one of the same question.
        unusable_gold: ids of questions left out, since the verifier cannot check their reference answer.
        dropped: rows without an answer that were left out when the questions were read, by reason.
        settings: how the samples were drawn: sampling settings, prompt, fingerprint of the model.
    """

    name: str
    num_samples: int
    correct: Mapping[str, int]
    pass_at_k: Mapping[int, Interval]
    vote_right: Mapping[str, float]
    majority_vote: Interval
    outcomes: Mapping[str, float]
    mean_tokens: float | None
    truncated_share: float
    duplicate_share: float
    unusable_gold: tuple[str, ...]
    dropped: Mapping[str, int]
    settings: Mapping[str, Any]

    @property
    def num_questions(self) -> int:
        return len(self.correct)

    @property
    def unanswered_share(self) -> float:
        """Of the completions, those without a final answer."""
        return self.outcomes.get("no_answer", 0.0)


@dataclass(frozen=True)
class Mean:
    """The unweighted mean over sets of questions, each taken as it is."""

    names: tuple[str, ...]
    pass_at_k: Mapping[int, Interval]
    majority_vote: Interval


def mean_of(evaluations: Sequence[Evaluation]) -> Mean:
    """The mean over evaluations, for each k that all of them have; an interval resamples the questions of each set.

    Raises:
        ValueError: no evaluations.
    """
    shared = [k for k in evaluations[0].pass_at_k if all(k in each.pass_at_k for each in evaluations)]
    return Mean(
        names=tuple(each.name for each in evaluations),
        pass_at_k={
            k: mean_of_means([pass_at_k(each.num_samples, list(each.correct.values()), k) for each in evaluations])
            for k in shared
        },
        majority_vote=mean_of_means([list(each.vote_right.values()) for each in evaluations]),
    )


# The summary file.


def load_evaluation(output_dir: str | Path) -> Evaluation:
    """Read the summary that ``evaluate`` has written.

    Raises:
        UserError: there is none (the evaluation has not finished), or it is damaged.
    """
    path = Path(output_dir) / SUMMARY_FILE
    try:
        return _from_json(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        begun = (Path(output_dir) / "samples.meta.json").exists()
        what = "the evaluation has not finished; run it again to go on" if begun else "no evaluation was run there"
        raise UserError(f"{path}: there is no such file: {what}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); run the evaluation again to mend it"
        ) from None


def save_evaluation(evaluation: Evaluation, output_dir: Path) -> None:
    """Write the summary file."""
    content = asdict(evaluation) | {
        "num_questions": evaluation.num_questions,
        "unanswered_share": evaluation.unanswered_share,
    }
    write_json_atomic(output_dir / SUMMARY_FILE, without_nan(content))


def without_nan(content: Any) -> Any:
    """The same with None for NaN, which JSON has not."""
    if isinstance(content, Mapping):
        return {name: without_nan(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and math.isnan(content) else content


def _from_json(content: dict[str, Any]) -> Evaluation:
    fields = {name: value for name, value in content.items() if name not in ("num_questions", "unanswered_share")}
    fields["unusable_gold"] = tuple(fields["unusable_gold"])
    fields["majority_vote"] = _interval(fields["majority_vote"])
    fields["pass_at_k"] = {int(k): _interval(interval) for k, interval in fields["pass_at_k"].items()}
    return Evaluation(**fields)


def _interval(content: Mapping[str, float | None]) -> Interval:
    return Interval(**{name: math.nan if value is None else value for name, value in content.items()})
