"""The accuracy reward, in the form that verl's reward workers call."""

from __future__ import annotations

from typing import Any

from ..errors import TaGrpoError
from ..verifier import NOT_APPLICABLE, verify


class NoRewardError(TaGrpoError):
    """Nothing can be said about a completion: its reference answer is not usable, or the checker itself failed."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """1 for a right final answer, 0 for a wrong one, none or one that took too long; verl's ``compute_score``.

    verl has no "not applicable": a reward is a number, and NaN would make the whole group NaN. So where TRL's reward
    would be None, this raises. verl's agent loop then counts the completion as failed, logs the error, and leaves the
    completion out of its group's mean and standard deviation; a group with no completion left is left out of the
    batch, and a batch with none at all ends the run. Questions whose answers cannot be checked are
    left out when they are exported, so this is for files made otherwise.

    Args:
        data_source, extra_info: not used.
        solution_str: what the model wrote.
        ground_truth: the reference answer.
        kwargs: verl's other arguments; not used.

    Returns:
        ``score`` and ``acc``, the reward; ``verdict``, an outcome of the verifier; ``extracted``, the answer as found,
        "" for none. All but ``score`` reach verl's validation metrics and rollout records.

    Raises:
        NoRewardError: unusable reference answer, or the checker failed.
        UserError: a worker process of the checker cannot start.
    """
    verdict = verify(solution_str, ground_truth)
    if verdict.outcome in NOT_APPLICABLE:
        raise NoRewardError(
            f"no reward for this completion ({verdict.outcome}): the reference answer is {str(ground_truth)!r:.200}"
        )
    reward = float(verdict.correct)
    return {"score": reward, "acc": reward, "verdict": verdict.outcome, "extracted": verdict.extracted or ""}
