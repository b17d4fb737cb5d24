"""pass@k of a model on a set of questions: samples, verdicts, a summary with intervals, and paired comparisons.

    DIR/samples.jsonl   completions (see ``sampling.py``), with samples.meta.json
    DIR/verdicts.jsonl  a verdict on each, in the same order
    DIR/summary.json    everything that tables and comparisons need; written when all is done

A run that was killed goes on where it was: each file is only ever appended to, or replaced in one step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UserError
from .questions import Question, QuestionSet
from .rundir import append_jsonl, read_jsonl, truncate_jsonl, write_json_atomic
from .sampling import Sampler, SamplingSettings, TransformersSampler, sample_to_file
from .statistics import Interval, PairedComparison, bootstrap_interval, paired_comparison, pass_at_k, pass_at_k_table
from .verifier import OUTCOMES, verify_many

if TYPE_CHECKING:
    from rich.table import Table

logger = logging.getLogger(__name__)

DEFAULT_KS = (1, 2, 4, 8, 16, 32)
_VERDICTS_A_WRITE = 256

Progress = Callable[[str, int, int], None]
"""Called with the stage (``sampling`` or ``verifying``), what is done and what there is to do."""


@dataclass(frozen=True)
class Evaluation:
    """What ``summary.json`` holds.

    Attributes:
        name: of the set of questions.
        num_samples: n, completions of each question.
        correct: correct completions of each question, by id.
        pass_at_k: the mean over questions by k, with its 95 % bootstrap interval.
        outcomes: share of the completions by the verifier's outcome; only ``right`` counts as correct.
        mean_tokens: of a completion, its end-of-sequence token included.
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
    outcomes: Mapping[str, float]
    mean_tokens: float
    truncated_share: float
    duplicate_share: float
    unusable_gold: tuple[str, ...]
    dropped: Mapping[str, int]
    settings: Mapping[str, Any]

    @property
    def num_questions(self) -> int:
        return len(self.correct)


def evaluate(
    model: Any,
    tokenizer: Any,
    questions: QuestionSet,
    output_dir: Path,
    *,
    settings: SamplingSettings,
    ks: Sequence[int] | None = None,
    template: str | None = None,
    conversational: bool = True,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Sample, verify and sum up; called again with the same arguments, it goes on where it was.

    Questions whose reference answer the verifier cannot check are left out before anything is sampled, named in a
    warning and in the summary, and never scored. Completions on which the verifier fails or runs out of time count as
    not correct; ``outcomes`` shows their share, and a warning tells of failures.

    Args:
        model: a transformers causal language model.
        tokenizer: its tokenizer.
        questions: only the original questions are asked, never rephrasings.
        output_dir: where the files go; made if it is not there.
        settings: how to sample.
        ks: the k of pass@k; default: of 1, 2, 4, 8, 16, 32 those that ``num_samples`` allows.
        template: prompt template; default: the set's own.
        conversational: ask by a chat message instead of plain text; do as in training.
        chat_template_kwargs: for the chat template; as in training.
        on_progress: see ``Progress``.

    Raises:
        UserError: k above ``num_samples``, no usable question, a model or prompt that cannot be sampled from, or a
            directory that holds another evaluation.
    """
    sampler = TransformersSampler(model, tokenizer, settings, chat_template_kwargs)
    return evaluate_sampler(
        sampler,
        questions,
        output_dir,
        ks=ks,
        template=template,
        conversational=conversational,
        on_progress=on_progress,
    )


def evaluate_sampler(
    sampler: Sampler,
    questions: QuestionSet,
    output_dir: Path,
    *,
    ks: Sequence[int] | None = None,
    template: str | None = None,
    conversational: bool = True,
    on_progress: Progress | None = None,
) -> Evaluation:
    """``evaluate`` with completions from any sampler."""
    num_samples = sampler.settings.num_samples
    ks = _checked_ks(ks, num_samples)
    usable, unusable_ids = _split_by_gold(questions)
    samples_path = output_dir / "samples.jsonl"
    sample_to_file(
        sampler,
        usable,
        samples_path,
        template=questions.prompt_template if template is None else template,
        conversational=conversational,
        on_progress=_of_stage(on_progress, "sampling"),
    )
    samples = read_jsonl(samples_path)
    answers = {question.id: question.answer for question in usable}
    outcomes = _verdicts(samples, answers, output_dir / "verdicts.jsonl", _of_stage(on_progress, "verifying"))
    correct = dict.fromkeys(answers, 0)
    for sample, outcome in zip(samples, outcomes, strict=True):
        correct[sample["id"]] += outcome == "right"
    counts = Counter(outcomes)
    if counts["error"]:
        logger.warning(
            "the verifier failed on %d of %d completions; they count as not correct", counts["error"], len(samples)
        )
    evaluation = Evaluation(
        name=questions.name,
        num_samples=num_samples,
        correct=correct,
        pass_at_k=_intervals(num_samples, correct, ks),
        outcomes={outcome: counts[outcome] / len(samples) for outcome in OUTCOMES},
        mean_tokens=sum(sample["tokens"] for sample in samples) / len(samples),
        truncated_share=sum(not sample["finished"] for sample in samples) / len(samples),
        duplicate_share=1 - len({(sample["id"], sample["completion"]) for sample in samples}) / len(samples),
        unusable_gold=tuple(unusable_ids),
        dropped=questions.dropped,
        settings=json.loads(samples_path.with_suffix(".meta.json").read_text("utf-8")),
    )
    write_json_atomic(output_dir / "summary.json", _to_json(evaluation))
    return evaluation


def _checked_ks(ks: Sequence[int] | None, num_samples: int) -> list[int]:
    """k in ascending order; refused before anything is paid for."""
    if ks is None:
        return [k for k in DEFAULT_KS if k <= num_samples]
    if not ks:
        raise UserError("pass@k needs at least one k")
    for k in ks:
        if k < 1:
            raise UserError(f"pass@k needs k of 1 or more; got {k}")
        pass_at_k(num_samples, 0, k)  # refuses k > n
    return sorted(set(ks))


def _of_stage(on_progress: Progress | None, stage: str) -> Callable[[int, int], None] | None:
    return None if on_progress is None else lambda done, total: on_progress(stage, done, total)


def _split_by_gold(questions: QuestionSet) -> tuple[list[Question], list[str]]:
    """Questions whose reference answer the verifier finds equal to itself, and the ids of the others."""
    golds = [
        question.answer if "\\boxed" in question.answer else f"\\boxed{{{question.answer}}}" for question in questions
    ]
    verdicts = verify_many(zip(golds, (question.answer for question in questions), strict=True))
    usable = [question for question, verdict in zip(questions, verdicts, strict=True) if verdict.correct]
    unusable = [question for question, verdict in zip(questions, verdicts, strict=True) if not verdict.correct]
    if not usable:
        raise UserError(
            f"{questions.name or 'the set'}: none of its {len(questions)} questions has an answer that can be checked"
        )
    if unusable:
        shown = ", ".join(f"{question.id} ({question.answer!r:.40})" for question in unusable[:5])
        more = ", …" if len(unusable) > 5 else ""
        logger.warning(
            "%d of %d questions are left out, since their answers cannot be checked: %s%s",
            *(len(unusable), len(questions), shown, more),
        )
    return usable, [question.id for question in unusable]


def _verdicts(
    samples: Sequence[Mapping[str, Any]],
    answers: Mapping[str, str],
    path: Path,
    on_progress: Callable[[int, int], None] | None,
) -> list[str]:
    """The outcome of each sample; those not yet in the file are verified and appended to it.

    A verdict carries a digest of what it judges. From the first that judges something else (an answer was corrected,
    the samples were drawn anew), the file is cut and written again.
    """
    keys = [_judged(sample["completion"], answers[sample["id"]]) for sample in samples]
    written = read_jsonl(path)
    pairs = zip(written, keys, strict=False)
    fitting = next(
        (number for number, (line, key) in enumerate(pairs) if line.get("of") != key), min(len(written), len(keys))
    )
    if fitting < len(written):
        remaining = iter(range(fitting))
        truncate_jsonl(path, lambda _line: next(remaining, None) is not None)
    outcomes = [line["outcome"] for line in written[:fitting]]
    if on_progress:
        on_progress(len(outcomes), len(samples))
    for start in range(fitting, len(samples), _VERDICTS_A_WRITE):
        part = samples[start : start + _VERDICTS_A_WRITE]
        verdicts = verify_many((sample["completion"], answers[sample["id"]]) for sample in part)
        append_jsonl(
            path,
            (
                {
                    "id": sample["id"],
                    "sample": sample["sample"],
                    "outcome": verdict.outcome,
                    "extracted": verdict.extracted,
                    "of": key,
                }
                for sample, verdict, key in zip(part, verdicts, keys[start:], strict=False)
            ),
        )
        outcomes += [verdict.outcome for verdict in verdicts]
        if on_progress:
            on_progress(len(outcomes), len(samples))
    return outcomes


def _judged(completion: str, answer: str) -> str:
    return hashlib.sha256(json.dumps([completion, answer]).encode()).hexdigest()[:16]


def _intervals(num_samples: int, correct: Mapping[str, int], ks: Iterable[int]) -> dict[int, Interval]:
    table = pass_at_k_table(num_samples, list(correct.values()), ks)
    return {k: bootstrap_interval(values_Q) for k, values_Q in table.items()}


# The summary file.


def load_evaluation(output_dir: str | Path) -> Evaluation:
    """Read the summary that ``evaluate`` has written.

    Raises:
        UserError: there is none (the evaluation has not finished), or it is damaged.
    """
    path = Path(output_dir) / "summary.json"
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


def _to_json(evaluation: Evaluation) -> dict[str, Any]:
    intervals = {
        # JSON has no NaN.
        k: {name: None if math.isnan(value) else value for name, value in asdict(interval).items()}
        for k, interval in evaluation.pass_at_k.items()
    }
    return {**asdict(evaluation), "num_questions": evaluation.num_questions, "pass_at_k": intervals}


def _from_json(content: dict[str, Any]) -> Evaluation:
    fields = {name: value for name, value in content.items() if name != "num_questions"}
    fields["unusable_gold"] = tuple(fields["unusable_gold"])
    fields["pass_at_k"] = {
        int(k): Interval(**{name: math.nan if value is None else value for name, value in interval.items()})
        for k, interval in fields["pass_at_k"].items()
    }
    return Evaluation(**fields)


# Tables and comparisons.


def render_table(rows: Mapping[str, Evaluation], ks: Sequence[int]) -> Table:
    """A table of pass@k in per cent with intervals: a row for each evaluation, a column for each k.

    "–" stands where an evaluation has no such k; an interval is left out where there is none (one question).
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table(caption="pass@k in %, with 95 % intervals over questions")
    table.add_column("")
    table.add_column("questions × samples", justify="right")
    for k in ks:
        table.add_column(f"pass@{k}", justify="right")
    for name, evaluation in rows.items():
        cells = [_cell(evaluation.pass_at_k.get(k)) for k in ks]
        table.add_row(escape(name), f"{evaluation.num_questions} × {evaluation.num_samples}", *cells)
    return table


def _cell(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    if math.isnan(interval.low):
        return f"{100 * interval.mean:.1f}"
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def compare(a: Evaluation, b: Evaluation, ks: Sequence[int]) -> dict[int, PairedComparison]:
    """pass@k of a minus that of b, question by question; the two may have different numbers of samples.

    Raises:
        UserError: not the same questions, or a k above the samples of either.
    """
    if a.correct.keys() != b.correct.keys():
        only_a, only_b = sorted(a.correct.keys() - b.correct.keys()), sorted(b.correct.keys() - a.correct.keys())
        sides = ((only_a, "first"), (only_b, "second"))
        told = " and ".join(f"{len(ids)} only in the {side} (such as {ids[0]})" for ids, side in sides if ids)
        raise UserError(
            f"a paired comparison needs the same questions on both sides: {told}; use the same set for both"
        )
    counts_a_Q = np.array([a.correct[question_id] for question_id in a.correct])
    counts_b_Q = np.array([b.correct[question_id] for question_id in a.correct])
    return {
        k: paired_comparison(pass_at_k(a.num_samples, counts_a_Q, k), pass_at_k(b.num_samples, counts_b_Q, k))
        for k in ks
    }
