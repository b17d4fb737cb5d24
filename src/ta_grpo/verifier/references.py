"""Which questions have a reference answer that the verifier can check."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ta_grpo.errors import UserError
from ta_grpo.questions import Question, QuestionSet
from ta_grpo.verifier.verdict import verify_many

logger = logging.getLogger(__name__)


def checkable(answers: Iterable[str]) -> list[bool]:
    """For each reference answer, whether the verifier finds it equal to itself; else no completion can be right.

    Raises:
        UserError: a worker process cannot start.
    """
    answers = list(answers)
    boxed = [answer if "\\boxed" in answer else f"\\boxed{{{answer}}}" for answer in answers]
    return [verdict.correct for verdict in verify_many(zip(boxed, answers, strict=True))]


def with_checkable_answers(questions: QuestionSet) -> tuple[list[Question], list[str]]:
    """The questions whose answer can be checked, and the ids of the others, which a warning names.

    Raises:
        UserError: none can be checked, or a worker process cannot start.
    """
    judged = list(zip(questions, checkable(question.answer for question in questions), strict=True))
    kept = [question for question, is_checkable in judged if is_checkable]
    left_out = [question for question, is_checkable in judged if not is_checkable]
    name = questions.name or "the set"
    if not kept:
        raise UserError(f"{name}: none of its {len(questions)} questions has an answer that can be checked")
    if left_out:
        shown = ", ".join(f"{question.id} ({question.answer!r:.40})" for question in left_out[:5])
        logger.warning(
            "%s: %d of %d questions are left out, since their answers cannot be checked: %s%s",
            *(name, len(left_out), len(questions), shown, ", …" if len(left_out) > 5 else ""),
        )
    return kept, [question.id for question in left_out]
