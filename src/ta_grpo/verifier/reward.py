"""The accuracy reward, in the form that TRL's trainers call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ta_grpo.errors import UserError
from ta_grpo.verifier.verdict import NOT_APPLICABLE, OUTCOMES, RIGHT, verify_many


def accuracy_reward(
    prompts: Sequence[Any] | None = None,
    completions: Sequence[Any] = (),
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    log_extra: Callable[[str, list], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    r"""1 for a right final answer, 0 for a wrong one; a reward function for TRL's trainers.

    Args:
        prompts: not used.
        completions: what the model wrote: texts, or message lists (the text of the assistant's last message counts).
        answer: the column of reference answers. It goes before ``solution``.
        solution: the column of reference solutions; where one holds a ``\boxed{}``, its content is the reference.
        log_extra: TRL's; gets the columns ``verdict`` and ``extracted``.
        log_metric: TRL's; gets the share of each outcome, ``verifier/right`` and so on.
        kwargs: TRL's other columns; not used.

    Returns:
        A reward per completion: 1.0 right; 0.0 wrong, no answer or timed out; None where the reference is not usable
        or the checker failed, so that nothing is learnt from it.

    Raises:
        UserError: no column of references, or not one a completion; a worker process cannot start.
    """
    references = _references(answer, solution, len(completions))
    verdicts = verify_many([(_text(c), r) for c, r in zip(completions, references, strict=True)])
    if log_extra:
        log_extra("verdict", [verdict.outcome for verdict in verdicts])
        log_extra("extracted", [verdict.extracted for verdict in verdicts])
    if log_metric and verdicts:
        counts = Counter(verdict.outcome for verdict in verdicts)
        for outcome in OUTCOMES:
            log_metric(f"verifier/{outcome}", counts[outcome] / len(verdicts))
    return [_reward(verdict.outcome) for verdict in verdicts]


def _reward(outcome: str) -> float | None:
    # None is TRL's "not applicable": the completion takes no part in mean or standard deviation.
    return None if outcome in NOT_APPLICABLE else float(outcome == RIGHT)


def _references(answer: Sequence[Any] | None, solution: Sequence[Any] | None, wanted: int) -> Sequence[Any]:
    references = answer if answer is not None else solution
    if references is None:
        raise UserError(
            "the accuracy reward needs the reference answers: the data has neither a column `answer` nor a column "
            "`solution`; rename the column that holds them, e.g. dataset.rename_column('final_answer', 'answer')"
        )
    if len(references) != wanted:
        raise UserError(
            f"the accuracy reward got {wanted} completions but {len(references)} reference answers; "
            "pass one reference for each completion"
        )
    return references


def _text(completion: Any) -> str:
    """The text of a completion: a string, or the content of the last assistant message of a list."""
    if isinstance(completion, str):
        return completion
    messages = [message for message in completion or () if message.get("role", "assistant") == "assistant"]
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")
    return content or ""
