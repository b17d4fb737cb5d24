"""What a run would ask for, from estimated tokens."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ..questions import Question
from .chat import estimated_tokens
from .job import Job
from .rephrase_settings import RephraseSettings

# Tokens of a solution, and of what surrounds a rephrasing or a verdict.
_SOLUTION_TOKENS = 400
_TAG_TOKENS = 30


@dataclass(frozen=True)
class Forecast:
    """What a run would ask for: if everything is accepted at once, and at most."""

    questions: int
    missing: int
    calls: int
    calls_at_most: int
    tokens_in: int
    tokens_out: int
    tokens_out_at_most: int
    cost: float | None
    cost_at_most: float | None


def forecast(questions: str | os.PathLike[str] | Iterable[Question], settings: RephraseSettings) -> Forecast:
    """What ``rephrase`` would ask for, from estimated tokens; nothing is touched.

    Raises:
        UserError: as ``rephrase`` for what it can tell beforehand.
    """
    job = Job(questions, settings)
    job.check()
    prices = job.prices
    calls = tokens_in = tokens_out = count = missing = longest_out = calls_at_most = 0
    cost = cost_at_most = 0.0

    def add(model: str | None, times: int, sent: int, received: int, most: int) -> None:
        nonlocal calls, tokens_in, tokens_out, longest_out, calls_at_most, cost, cost_at_most
        if model is None:
            return
        calls, calls_at_most = calls + times, calls_at_most + times * most
        tokens_in, tokens_out = tokens_in + times * sent, tokens_out + times * received
        longest_out += times * most * settings.max_tokens
        if model in prices:
            cost += prices[model].of(times * sent, times * received)
            cost_at_most += prices[model].of(times * most * sent, times * most * settings.max_tokens)

    for question in job.questions():
        count += 1
        slots = job.slots(question) if not settings.rules else ()
        new = max(0, settings.num_rephrasings - len(question.rephrasings))
        missing += new
        own = estimated_tokens(question.question)
        for slot in slots:
            again = settings.max_attempts > 1
            # After a rejection the last reply and the reason are sent too.
            sent = estimated_tokens(slot.prompt.text)
            add(settings.model, 1, sent, own + _TAG_TOKENS, 1)
            if again:
                calls_at_most += settings.max_attempts - 1
                longest_out += (settings.max_attempts - 1) * settings.max_tokens
                if settings.model in prices:
                    more = sent + settings.max_tokens
                    cost_at_most += (settings.max_attempts - 1) * prices[settings.model].of(more, settings.max_tokens)
        checked = settings.max_attempts if not settings.rules else 1
        add(settings.judge_model, 2 * new, 2 * own + 200, _TAG_TOKENS, 3 * checked)
        if new:
            add(settings.solver_model, settings.solver_samples, own + 30, _SOLUTION_TOKENS, 3)
            add(settings.solver_model, settings.solver_samples * new, own + 30, _SOLUTION_TOKENS, 3 * checked)
    known = job.priced
    return Forecast(
        questions=count,
        missing=missing,
        calls=calls,
        calls_at_most=calls_at_most,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_out_at_most=longest_out,
        cost=cost if known else None,
        cost_at_most=cost_at_most if known else None,
    )
