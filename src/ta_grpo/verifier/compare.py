"""What a worker does with one pair: math-verify behind our own guards. Importing this loads sympy."""

from __future__ import annotations

import functools

from ta_grpo.verifier.algebra import MathVerify
from ta_grpo.verifier.judge import UnusableGoldError, check_gold, decide
from ta_grpo.verifier.verdict import RIGHT, UNUSABLE_GOLD, WRONG

_ALGEBRA = MathVerify()


def compare(gold: str, answer: str) -> str:
    """The outcome for one pair: right, wrong or unusable gold."""
    if not _is_usable(gold):
        return UNUSABLE_GOLD
    try:
        return RIGHT if decide(gold, answer, _ALGEBRA) else WRONG
    except (UnusableGoldError, RecursionError):
        # The gold did not do that. Brackets a thousand deep are no answer.
        return WRONG


@functools.lru_cache(maxsize=4096)
def _is_usable(gold: str) -> bool:
    try:
        check_gold(gold, _ALGEBRA)
    except (UnusableGoldError, RecursionError):
        return False
    return True


def warm_up() -> None:
    """Load what sympy loads lazily, so that the first answer is not charged for it."""
    compare(r"\frac{\sqrt{3}}{2}", r"\sqrt{0.75}")
    compare("(x+1)^2", "x^2+2x+1")
