"""Checks that ask a model, and are paid for: does it find the same answer, and does it call both the same problem?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..questions import DEFAULT_PROMPT_TEMPLATE, question_prompt
from ..verifier import extract_answer, verify_many
from .chat import Chat, Messages, Reply
from .records import Rejection
from .transformations import Prompts, read_reply

SOLVER_CHECK, JUDGE_CHECK = "solver", "judge"
_SOLVER_TEMPLATE = "solver/1"
# An empty, cut off or shapeless reply is asked for again this often in all.
TRIES = 3
_SAME, _DIFFERENT = "SAME", "DIFFERENT"


@dataclass(frozen=True)
class Solver:
    """Solver agreement: a model answers a question ``samples`` times, and the answer of most of them counts."""

    chat: Chat
    model: str
    samples: int = 3

    async def check(self, text: str, answer: str, what: str = "rephrasing") -> Rejection | None:
        """Reject a text whose majority answer is not the reference answer.

        Asked of the original first, and then of its rephrasings, this makes the answers agree with each other too.

        Args:
            text: the original or a rephrasing.
            answer: the reference answer.
            what: which of them, for the reason.
        """
        prompt = question_prompt(text, DEFAULT_PROMPT_TEMPLATE, conversational=True)
        replies = await asyncio.gather(*(self._answer(prompt, number) for number in range(self.samples)))  # pyright: ignore[reportArgumentType]
        majority, votes = await asyncio.to_thread(_majority, [reply.text for reply in replies if not reply.problem])
        if majority is None:
            return Rejection(
                SOLVER_CHECK, f"{self.model} finds no one answer to the {what} ({votes} of {self.samples} agree)"
            )
        verdict = (await asyncio.to_thread(verify_many, [(_boxed(majority), answer)]))[0]
        if verdict.correct:
            return None
        return Rejection(
            SOLVER_CHECK,
            f"{self.model} answers the {what} with {majority:.80} ({votes} of {self.samples}), not {answer:.80}",
        )

    async def _answer(self, prompt: Messages, number: int) -> Reply:
        reply = Reply("")
        for attempt in range(TRIES):
            reply = await self.chat.ask(self.model, prompt, _SOLVER_TEMPLATE, f"{number}.{attempt}")
            if not reply.problem:
                break
        return reply


@dataclass(frozen=True)
class Judge:
    """A model says whether two questions are the same problem, asked in both orders, since the order sways it."""

    chat: Chat
    model: str
    prompts: Prompts

    async def check(self, original: str, rephrasing: str) -> Rejection | None:
        """Reject a rephrasing that is not the same problem in both orders."""
        verdicts = await asyncio.gather(
            self._verdict(original, rephrasing, "original first"), self._verdict(rephrasing, original, "original last")
        )
        return next((verdict for verdict in verdicts if verdict is not None), None)

    async def _verdict(self, first: str, second: str, order: str) -> Rejection | None:
        prompt = self.prompts.judge(first, second)
        messages = [{"role": "user", "content": prompt.text}]
        for attempt in range(TRIES):
            reply = await self.chat.ask(self.model, messages, prompt.template, str(attempt))
            verdict = None if reply.problem else read_reply(reply.text, prompt.tag)
            word = verdict.strip(" .*").upper() if isinstance(verdict, str) else ""
            if word == _SAME:
                return None
            if word == _DIFFERENT:
                return Rejection(JUDGE_CHECK, f"{self.model} calls it a different problem ({order})")
            self.chat.disown(reply)
        return Rejection(JUDGE_CHECK, f"{self.model} gave no verdict in {TRIES} tries ({order})")


def _majority(completions: Sequence[str]) -> tuple[str | None, int]:
    """The answer that more than half of the completions give, as the first of them writes it, and its votes.

    Without a majority: None, and the votes of the most frequent answer.
    """
    answers = [answer for answer in map(extract_answer, completions) if answer is not None]
    if not answers:
        return None, 0
    pairs = [(_boxed(one), other) for other in answers for one in answers]
    equal = [verdict.correct for verdict in verify_many(pairs)]
    votes = [sum(equal[row * len(answers) : (row + 1) * len(answers)]) for row in range(len(answers))]
    most = max(votes)
    return (answers[votes.index(most)] if 2 * most > len(completions) else None), most


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"
