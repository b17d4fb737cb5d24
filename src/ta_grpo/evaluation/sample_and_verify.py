"""Sample, verify, sum up; or verify and sum up what is stored."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..questions import QuestionSet
from ..rundir import append_jsonl, iter_jsonl, read_json
from ..sampling import Sampler, SamplingSettings, TransformersSampler, sample_to_file
from ..sampling.files import SAMPLE_FIELDS
from ..statistics import bootstrap_interval, pass_at_k, pass_at_k_table
from ..verifier import OUTCOMES, verify_many, with_checkable_answers
from .summary import Evaluation, load_evaluation, save_evaluation
from .tally import stored_samples, tally

logger = logging.getLogger(__name__)

_VERDICTS_A_WRITE = 256

Progress = Callable[[str, int, int], None]
"""Called with the stage (``sampling`` or ``verifying``), what is done and what there is to do."""


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
        ks: the k of pass@k; default: 1, 2, 4 and so on up to ``num_samples``.
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
    ks = checked_ks(ks, num_samples)
    usable, unusable_ids = with_checkable_answers(questions)
    samples_path = output_dir / "samples.jsonl"
    sample_to_file(
        sampler,
        usable,
        samples_path,
        template=questions.prompt_template if template is None else template,
        conversational=conversational,
        on_progress=_of_stage(on_progress, "sampling"),
    )
    usable_ids = {question.id for question in usable}
    return _verify_and_sum_up(questions, usable_ids, unusable_ids, output_dir, num_samples, ks, on_progress)


def rescore(
    questions: QuestionSet,
    output_dir: Path,
    *,
    ks: Sequence[int] | None = None,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Verify all stored samples again and sum up anew; nothing is sampled, and the samples stay as they are.

    The old verdicts stay until the new ones are complete. A question whose reference answer can no longer be checked
    is left out; so is one that was left out when the samples were drawn.

    Raises:
        UserError: no samples, not all of them, questions other than those sampled, or a k above their number.
    """
    samples_path = output_dir / "samples.jsonl"
    num_samples = _meta(samples_path)["num_samples"]
    ks = checked_ks(ks, num_samples)
    usable, unusable_ids = with_checkable_answers(questions)
    asked = {question.id for question in questions}
    sampled: set[str] = set()
    for line, _ in iter_jsonl(samples_path, SAMPLE_FIELDS):
        sampled.add(line["id"])
    if strange := sorted(sampled - asked):
        raise UserError(
            f"{samples_path} holds samples of {len(strange)} questions that the set {questions.name} does not have, "
            f"such as {strange[0]!r}; name the set that was sampled"
        )
    usable_ids = {question.id for question in usable if question.id in sampled}
    missing = [question.id for question in usable if question.id not in sampled]
    counted: Mapping[str, int] = {}
    with suppress(UserError):  # a summary that is absent or damaged is what rescoring mends
        counted = load_evaluation(output_dir).correct
    if lost := [question_id for question_id in missing if question_id in counted]:
        raise UserError(
            f"{samples_path} has lost the samples of {len(lost)} questions that summary.json counts, such as "
            f"{lost[0]!r}; restore it, or draw the samples anew in another directory"
        )
    if missing:
        logger.warning("%d questions have no samples and are left out, such as %s", len(missing), missing[0])
    fresh = output_dir / ".verdicts.jsonl.fresh"
    fresh.unlink(missing_ok=True)
    progress = _of_stage(on_progress, "verifying")
    answers = {question.id: question.answer for question in usable if question.id in usable_ids}
    _verify_file(samples_path, answers, fresh, len(answers) * num_samples, progress)
    os.replace(fresh, output_dir / "verdicts.jsonl")
    return _verify_and_sum_up(questions, usable_ids, [*unusable_ids, *missing], output_dir, num_samples, ks, None)


def _verify_and_sum_up(
    questions: QuestionSet,
    usable_ids: set[str],
    unusable_ids: Sequence[str],
    output_dir: Path,
    num_samples: int,
    ks: Sequence[int],
    on_progress: Progress | None,
) -> Evaluation:
    samples_path, verdicts_path = output_dir / "samples.jsonl", output_dir / "verdicts.jsonl"
    answers = {question.id: question.answer for question in questions if question.id in usable_ids}
    total = len(answers) * num_samples
    _verify_file(samples_path, answers, verdicts_path, total, _of_stage(on_progress, "verifying"))
    counts = tally(samples_path, verdicts_path, answers, num_samples)
    if counts.outcomes["error"]:
        logger.warning(
            "the verifier failed on %d of %d completions; they count as not correct",
            *(counts.outcomes["error"], counts.samples),
        )
    correct = {question_id: counts.correct[question_id] for question_id in answers}
    vote_right = {question_id: counts.vote_right[question_id] for question_id in answers}
    table = pass_at_k_table(num_samples, list(correct.values()), ks)
    evaluation = Evaluation(
        name=questions.name,
        num_samples=num_samples,
        correct=correct,
        pass_at_k={k: bootstrap_interval(values_Q) for k, values_Q in table.items()},
        vote_right=vote_right,
        majority_vote=bootstrap_interval(list(vote_right.values())),
        outcomes={outcome: counts.outcomes[outcome] / counts.samples for outcome in OUTCOMES},
        mean_tokens=None if counts.tokens is None else counts.tokens / counts.samples,
        truncated_share=counts.truncated / counts.samples,
        duplicate_share=counts.duplicates / counts.samples,
        unusable_gold=tuple(unusable_ids),
        dropped=questions.dropped,
        settings=_meta(samples_path),
    )
    save_evaluation(evaluation, output_dir)
    return evaluation


def _meta(samples_path: Path) -> dict[str, Any]:
    path = samples_path.with_suffix(".meta.json")
    try:
        return read_json(path, ["num_samples"])
    except FileNotFoundError:
        raise UserError(f"{samples_path.parent} holds no samples (there is no {path.name})") from None


def checked_ks(ks: Sequence[int] | None, num_samples: int) -> list[int]:
    """k in ascending order; refused before anything is paid for."""
    if ks is None:
        return [2**power for power in range(num_samples.bit_length())]
    if not ks:
        raise UserError("pass@k needs at least one k")
    for k in ks:
        if k < 1:
            raise UserError(f"pass@k needs k of 1 or more; got {k}")
        pass_at_k(num_samples, 0, k)  # refuses k > n
    return sorted(set(ks))


def _of_stage(on_progress: Progress | None, stage: str) -> Callable[[int, int], None] | None:
    return None if on_progress is None else lambda done, total: on_progress(stage, done, total)


def _verify_file(
    samples_path: Path,
    answers: Mapping[str, str],
    path: Path,
    total: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """A verdict on each sample of the questions in ``answers``; those not yet in the file are appended to it.

    A verdict carries a digest of what it judges. From the first that judges something else (an answer was corrected,
    the samples were drawn anew), the file is cut and written again.
    """
    done = _keep_fitting(samples_path, answers, path)
    if on_progress:
        on_progress(done, total)
    samples = itertools.islice(stored_samples(samples_path, answers), done, None)
    while part := list(itertools.islice(samples, _VERDICTS_A_WRITE)):
        verdicts = verify_many((sample["completion"], answers[sample["id"]]) for sample in part)
        append_jsonl(
            path,
            (
                {
                    "id": sample["id"],
                    "sample": sample["sample"],
                    "outcome": verdict.outcome,
                    "extracted": verdict.extracted,
                    "of": _judged(sample, answers),
                }
                for sample, verdict in zip(part, verdicts, strict=True)
            ),
        )
        done += len(part)
        if on_progress:
            on_progress(done, total)


def _keep_fitting(samples_path: Path, answers: Mapping[str, str], path: Path) -> int:
    """How many verdicts from the first on judge the samples as they are; the file is cut after them."""
    fitting = end = 0
    verdicts: Iterator[tuple[dict[str, Any], int]] = iter_jsonl(path)
    for sample, (verdict, verdict_end) in zip(stored_samples(samples_path, answers), verdicts, strict=False):
        if verdict.get("of") != _judged(sample, answers):
            break
        fitting, end = fitting + 1, verdict_end
    if path.exists():
        os.truncate(path, end)
    return fitting


def _judged(sample: Mapping[str, Any], answers: Mapping[str, str]) -> str:
    content = json.dumps([sample["completion"], answers[sample["id"]]])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
