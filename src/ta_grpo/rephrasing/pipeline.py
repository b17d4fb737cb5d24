"""Rephrase the questions of a file: ask, check, ask again, and write, so that a kill costs nothing that was paid for.

A resumed run takes finished questions from the unfinished file and replies from the cache (see ``job``), so that it
ends with the bytes of an unbroken one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..questions import Question, question_record
from .chat import EMPTY, NOT_TAKEN, REFUSED, TRUNCATED, Chat, Reply
from .checks import check_rephrasing
from .job import Job, Outcome, Progress, Slot
from .model_checks import Judge, Solver
from .quality import GIVEN, SHORTFALL
from .records import Rejection
from .rephrase_settings import RULES, RephraseSettings
from .transformations import FORMAT_CHECK, REASONING_CHECK, Prompt, read_reply

# Replies that fail one of these are no rephrasings at all, and are of no use to another job.
_USELESS = frozenset([FORMAT_CHECK, REASONING_CHECK])
_PROBLEMS = {
    EMPTY: "the reply is empty",
    TRUNCATED: "the reply was cut off at its longest (raise --max-tokens)",
    REFUSED: "the model refuses",
    NOT_TAKEN: "the endpoint does not take the request",
}


def rephrase(
    questions: str | os.PathLike[str] | Iterable[Question],
    settings: RephraseSettings,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Give each question its rephrasings, and write the questions to ``settings.output``.

    Every rephrasing is checked; one that is rejected is asked for again, with the reason, up to
    ``settings.max_attempts`` times. What cannot be made is missing in the output, and told in the column
    ``rephrasing_shortfall``; copies never fill up. ``rephrasing_info`` says of each rephrasing how it was made.

    A ``.jsonl`` file is read and written line by line, in memory that does not grow with it.

    Args:
        questions: a file or set, as ``load_questions`` takes them, or questions.
        settings: what to do.
        on_progress: called at the start, and whenever questions are finished.

    Raises:
        UserError: bad questions or settings; an output that exists; an endpoint that fails for good, or money that is
            used up: then everything that has arrived is kept, and ``resume`` goes on.
    """
    job = Job(questions, settings)
    job.check()
    if job.is_done():
        return job.finished()
    with job.locked():
        job.begin()
        asyncio.run(_run(job, on_progress or (lambda progress: None)))
        return job.finish()


# The work.


async def _run(job: Job, on_progress: Callable[[Progress], None]) -> None:
    if job.cache is None:
        await _work_through(job, None, on_progress)
        return
    settings = job.settings
    chat = Chat(
        job.endpoint(),
        job.cache,
        settings.limits(),
        job.prices,
        settings.temperature,
        settings.max_tokens,
        settings.timeout,
    )
    job.chat = chat
    async with chat:
        await _work_through(job, chat, on_progress)


async def _work_through(job: Job, chat: Chat | None, on_progress: Callable[[Progress], None]) -> None:
    """Several questions at a time, written in order; those that wait for an earlier one are bounded in number."""
    window = 2 * job.settings.concurrency if chat else 1
    under_way: deque[asyncio.Task[dict[str, Any]]] = deque()
    on_progress(job.progress())

    async def write_finished(wait_for_one: bool) -> None:
        if wait_for_one:
            await _settled(under_way)
        ready = []
        while under_way and under_way[0].done():
            ready.append(under_way.popleft().result())
        if ready:
            job.write(ready)
            on_progress(job.progress())

    try:
        for question in itertools.islice(job.questions(), job.done, None):
            under_way.append(asyncio.ensure_future(_rephrased(job, chat, question)))
            await write_finished(wait_for_one=len(under_way) >= window)
        while under_way:
            await write_finished(wait_for_one=True)
    except BaseException as error:
        if chat is not None:
            chat.stop()
        if not isinstance(error, Exception):
            for task in under_way:
                task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)  # what is under way has been paid for
        raise


async def _settled(under_way: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for the first question; the failure of any is raised at once."""
    while True:
        for task in under_way:
            if task.done() and (error := task.exception()) is not None:
                raise error
        if under_way[0].done():
            return
        await asyncio.wait([task for task in under_way if not task.done()], return_when=asyncio.FIRST_COMPLETED)


async def _rephrased(job: Job, chat: Chat | None, question: Question) -> dict[str, Any]:
    """The record of a question with its rephrasings."""
    if job.settings.num_rephrasings <= len(question.rephrasings):
        return _record(job, question, [])
    judges = _Judges(job, chat, question)
    if (reason := await judges.of_original()) is not None:
        slots = _rule_slots(job, question, propose=False) if job.settings.rules else job.slots(question)
        for slot in slots:
            slot.reject([reason])
        return _record(job, question, slots)
    if job.settings.rules or chat is None:
        slots = _rule_slots(job, question)
        await judges.judge(slots)
        return _record(job, question, slots)
    slots = job.slots(question)
    for _ in range(job.settings.max_attempts):
        open_slots = [slot for slot in slots if not slot.accepted and not slot.final]
        if not open_slots:
            break
        replies = await asyncio.gather(*(_ask(job, chat, slot) for slot in open_slots))
        for slot, reply in zip(open_slots, replies, strict=True):
            _read(slot, reply)
        await judges.judge(open_slots)
        for slot, reply in zip(open_slots, replies, strict=True):
            if not slot.accepted and any(reason.check in _USELESS for reason in slot.last_reasons):
                chat.disown(reply)
    return _record(job, question, slots)


async def _ask(job: Job, chat: Chat, slot: Slot) -> Reply:
    slot.attempts += 1
    # Another seed asks for other samples, and so does another place among the rephrasings.
    attempt = f"{job.settings.seed}.{slot.number}.{slot.attempts}"
    return await chat.ask(job.settings.model, slot.messages(), slot.prompt.template, attempt)


def _read(slot: Slot, reply: Reply) -> None:
    """Put the text of a reply into its slot, or reject the reply."""
    if reply.problem:
        words = f": {reply.text}" if reply.problem == NOT_TAKEN else ""
        slot.reject([Rejection(reply.problem, _PROBLEMS[reply.problem] + words)])
        slot.final = reply.problem == NOT_TAKEN  # the same request would not be taken again
        slot.last_reply = ""
        return
    slot.last_reply = reply.text
    found = read_reply(reply.text, slot.prompt.tag)
    if isinstance(found, Rejection):
        slot.reject([found])
    else:
        slot.text = found


class _Judges:
    """All checks of one question's rephrasings."""

    def __init__(self, job: Job, chat: Chat | None, question: Question) -> None:
        settings = job.settings
        self.job, self.question = job, question
        self.accepted = list(question.rephrasings)
        self.solver = self.judge_ = None
        if chat is not None and settings.solver_model is not None:
            self.solver = Solver(chat, settings.solver_model, settings.solver_samples)
        if chat is not None and settings.judge_model is not None:
            self.judge_ = Judge(chat, settings.judge_model, job.prompts)

    async def of_original(self) -> Rejection | None:
        """Why nothing can be said about rephrasings of this question."""
        if self.solver is None:
            return None
        return await self.solver.check(self.question.question, self.question.answer, "original")

    async def judge(self, slots: Sequence[Slot]) -> None:
        """Reject what is wrong with the texts in slots, in order: the free checks first, and then the paid ones."""
        siblings = list(self.accepted)
        passed = []
        for slot in slots:
            if not slot.text:
                continue
            reasons = check_rephrasing(
                self.question.question, slot.text, self.question.answer, siblings, skip=self.job.skip
            )
            if reasons:
                slot.reject(reasons)
                slot.text = ""
            else:
                passed.append(slot)
                siblings.append(slot.text)
        verdicts = await asyncio.gather(*(self._paid(slot.text) for slot in passed))
        for slot, reason in zip(passed, verdicts, strict=True):
            if reason is None:
                self.accepted.append(slot.text)
            else:
                slot.reject([reason])
                slot.text = ""

    async def _paid(self, text: str) -> Rejection | None:
        if self.judge_ is not None and (reason := await self.judge_.check(self.question.question, text)):
            return reason
        return None if self.solver is None else await self.solver.check(text, self.question.answer)


def _rule_slots(job: Job, question: Question, propose: bool = True) -> list[Slot]:
    """What the rules propose, and empty slots for what they cannot."""
    from .rules import rule_rephrasings

    missing = job.settings.num_rephrasings - len(question.rephrasings)
    nothing = Prompt("", "", "")
    proposals = (
        rule_rephrasings(
            question.question,
            missing,
            answer=question.answer,
            transformations=job.names or None,
            seed=job.settings.seed,
        )
        if propose
        else []
    )
    slots = [
        Slot(number, proposal.transformation, nothing, attempts=1, text=proposal.text)
        for number, proposal in enumerate(proposals)
    ]
    for number in range(len(slots), missing):
        slots.append(Slot(number, RULES, nothing))
        if propose:
            slots[-1].reject([Rejection(RULES, "no rule can be applied safely once more")])
    return slots


def _record(job: Job, question: Question, slots: Sequence[Slot]) -> dict[str, Any]:
    """The line of a question, with every decision about its rephrasings."""
    made = [slot for slot in slots if slot.accepted]
    info = list(question.extra.get("rephrasing_info") or [{"transformation": GIVEN} for _ in question.rephrasings])
    info += [
        {
            "transformation": slot.transformation,
            "model": job.settings.model,
            "template": slot.prompt.template,
            "attempts": slot.attempts,
            "checks": job.made_checks,
            "rejected": _reasons(slot),
        }
        for slot in made
    ]
    shortfall = [
        {"transformation": slot.transformation, "attempts": slot.attempts, "rejected": _reasons(slot)}
        for slot in slots
        if not slot.accepted
    ]
    record = question_record(question)
    record.pop(SHORTFALL, None)
    record["rephrasings"] += [slot.text for slot in made]
    record["rephrasing_info"] = info
    return record | ({SHORTFALL: shortfall} if shortfall else {})


def _reasons(slot: Slot) -> list[dict[str, str]]:
    return [{"check": reason.check, "reason": reason.reason} for reason in slot.rejected]
