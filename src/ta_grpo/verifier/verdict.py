"""The verdict on a completion: what was found in it, and whether that is right."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ta_grpo.verifier import pool
from ta_grpo.verifier.extract import extract_answer
from ta_grpo.verifier.judge import decide_plainly, is_sentinel

RIGHT = "right"
WRONG = "wrong"
NO_ANSWER = "no_answer"
UNUSABLE_GOLD = "unusable_gold"
TIMED_OUT = "timed_out"
ERROR = "error"
OUTCOMES = (RIGHT, WRONG, NO_ANSWER, UNUSABLE_GOLD, TIMED_OUT, ERROR)
# Outcomes that say nothing about the completion: no reward, rather than one of 0.
NOT_APPLICABLE = (UNUSABLE_GOLD, ERROR)

# Comparing takes milliseconds; what has not ended after this is an answer like 9^{9^{9^9}}.
DEFAULT_TIMEOUT_SECONDS = 5.0
# No final answer of a question is this long; parsing one would take until the deadline.
MAX_ANSWER_CHARACTERS = 4_000
CACHED_VERDICTS = 100_000


@dataclass(frozen=True)
class Verdict:
    """What became of one completion.

    Attributes:
        outcome: one of OUTCOMES. ``right``; ``wrong``; ``no_answer``: no final answer was found;
            ``unusable_gold``: the reference answer cannot be compared with anything, so nothing is said about the
            completion; ``timed_out``: the answer took more than its time or memory to evaluate; ``error``: the
            checker itself failed, which says nothing about the completion.
        extracted: the answer text as it was found; None where there is none.
    """

    outcome: str
    extracted: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer is right."""
        return self.outcome == RIGHT


def verify(completion: str, answer: str, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Verdict:
    """Verdict on one completion; see ``verify_many``."""
    return verify_many([(completion, answer)], timeout)[0]


def verify_many(pairs: Iterable[tuple[str, str]], timeout: float = DEFAULT_TIMEOUT_SECONDS) -> list[Verdict]:
    """Verdicts on completions, several at a time. Safe from any thread; blocks until all are decided.

    Plain answers (numbers, words, option letters) are decided here. The others go to worker processes, each pair once:
    verdicts are remembered, but not that one timed out, since the next time the machine may be less busy.

    Args:
        pairs: (completion, reference answer). The completion is what the model wrote, the reference a LaTeX or plain
            text answer, boxed or not.
        timeout: seconds of work for each pair, from when the work begins. Waiting for a worker does not count.

    Returns:
        One verdict a pair, in order. Nothing a model can write raises.

    Raises:
        UserError: a worker process cannot start.
        ValueError: ``timeout`` is not above 0.
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
    asked = [(_gold_text(gold), extract_answer(completion)) for completion, gold in pairs]
    outcomes = [_decide_here(gold, answer) for gold, answer in asked]
    open_pairs = list(dict.fromkeys(pair for pair, outcome in zip(asked, outcomes, strict=True) if outcome is None))
    # _decide_here leaves no pair without an answer open.
    compared = dict(zip(open_pairs, pool.compare_many(open_pairs, timeout), strict=True))  # pyright: ignore[reportArgumentType]
    for pair, outcome in compared.items():
        _remember(pair, outcome)
    return [Verdict(outcome or compared[pair], pair[1]) for pair, outcome in zip(asked, outcomes, strict=True)]


def _gold_text(gold: object) -> str:
    """The reference as text; of a whole solution, what is in its box or behind GSM8K's hashes."""
    text = "" if gold is None else str(gold)
    if "\\boxed" in text or "\\fbox" in text or "\n####" in text:
        return extract_answer(text) or ""
    return text


def _decide_here(gold: str, answer: str | None) -> str | None:
    """The outcome, where it needs no algebra; None where it does."""
    if is_sentinel(gold) or len(gold) > MAX_ANSWER_CHARACTERS:
        return UNUSABLE_GOLD
    if answer is None:
        return NO_ANSWER
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return WRONG
    remembered = _recall((gold, answer))
    if remembered:
        return remembered
    plain = decide_plainly(gold, answer)
    return None if plain is None else RIGHT if plain else WRONG


_cache: OrderedDict[tuple[str, str], str] = OrderedDict()
_cache_lock = threading.Lock()


def _recall(pair: tuple[str, str]) -> str | None:
    with _cache_lock:
        if pair in _cache:
            _cache.move_to_end(pair)
        return _cache.get(pair)


def _remember(pair: tuple[str, str | None], outcome: str) -> None:
    if outcome in (TIMED_OUT, ERROR) or pair[1] is None:
        return
    with _cache_lock:
        _cache[pair[0], pair[1]] = outcome
        while len(_cache) > CACHED_VERDICTS:
            _cache.popitem(last=False)


def _new_lock_in_fork() -> None:
    global _cache_lock
    _cache_lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_in_fork)
