"""What a run would ask for, from estimated tokens."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..questions import Question
from ..rundir import iter_jsonl
from .chat import estimated_tokens
from .job import Job
from .model_checks import TRIES
from .rephrase_settings import RephraseSettings

# Tokens of a solution, of the judge's prompt beside the questions, and of what surrounds a rephrasing or a verdict.
_SOLUTION_TOKENS = 400
_JUDGE_TOKENS = 200
_TAG_TOKENS = 30


@dataclass(frozen=True)
class Forecast:
    """What a run would ask for: if everything is accepted at once, and at most (money: with the longest replies)."""

    questions: int
    missing: int
    calls: int
    calls_at_most: int
    tokens_in: int
    tokens_out: int
    tokens_out_at_most: int
    cost: float | None
    cost_at_most: float | None


@dataclass(frozen=True)
class _Calls:
    """Calls of one kind: how many are expected and at most, and the tokens of each.

    ``retried_in``: tokens sent with each call beyond the expected ones.
    """

    model: str
    expected: int
    at_most: int
    tokens_in: int
    tokens_out: int
    retried_in: int


def forecast(questions: str | os.PathLike[str] | Iterable[Question], settings: RephraseSettings) -> Forecast:
    """What ``rephrase`` would ask for, with ``resume`` for the rest of the questions; nothing is touched.

    Replies in the cache are not counted off.

    Raises:
        UserError: as ``rephrase`` for what it can tell beforehand.
    """
    job = Job(questions, settings)
    job.check()
    count = missing = calls = calls_at_most = tokens_in = tokens_out = longest_out = 0
    cost = cost_at_most = 0.0
    finished = sum(1 for _ in iter_jsonl(job.partial)) if settings.resume else 0
    for question in itertools.islice(job.questions(), finished, None):
        count += 1
        missing += max(0, settings.num_rephrasings - len(question.rephrasings))
        for kind in _calls(job, question):
            calls += kind.expected
            calls_at_most += kind.at_most
            tokens_in += kind.expected * kind.tokens_in
            tokens_out += kind.expected * kind.tokens_out
            longest_out += kind.at_most * settings.max_tokens
            if (price := job.prices.get(kind.model)) is not None:
                sent_at_most = kind.expected * kind.tokens_in + (kind.at_most - kind.expected) * kind.retried_in
                cost += price.of(kind.expected * kind.tokens_in, kind.expected * kind.tokens_out)
                cost_at_most += price.of(sent_at_most, kind.at_most * settings.max_tokens)
    return Forecast(
        questions=count,
        missing=missing,
        calls=calls,
        calls_at_most=calls_at_most,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_out_at_most=longest_out,
        cost=cost if job.priced else None,
        cost_at_most=cost_at_most if job.priced else None,
    )


def _calls(job: Job, question: Question) -> Iterator[_Calls]:
    """The calls that one question leads to."""
    settings = job.settings
    new = settings.num_rephrasings - len(question.rephrasings)
    if new <= 0:
        return
    own = estimated_tokens(question.question)
    attempts = 1 if settings.rules else settings.max_attempts
    if not settings.rules:
        for slot in job.slots(question):
            sent = estimated_tokens(slot.prompt.text)
            # After a rejection, the last reply and the reason are sent too.
            yield _Calls(settings.model, 1, attempts, sent, own + _TAG_TOKENS, sent + settings.max_tokens)
    if settings.judge_model is not None:
        sent = 2 * own + _JUDGE_TOKENS
        yield _Calls(settings.judge_model, 2 * new, 2 * new * attempts * TRIES, sent, _TAG_TOKENS, sent)
    if settings.solver_model is not None:
        samples, sent = settings.solver_samples, own + _TAG_TOKENS
        at_most = samples * (1 + new * attempts) * TRIES
        yield _Calls(settings.solver_model, samples * (1 + new), at_most, sent, _SOLUTION_TOKENS, sent)
