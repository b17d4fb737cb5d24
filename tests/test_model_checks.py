"""Solver agreement and judge, asked of a scripted model."""

from __future__ import annotations

import asyncio
import re

import pytest

from rephrasing_endpoint import rephrasing_endpoint, reply
from ta_grpo.openai_client import Endpoint
from ta_grpo.rephrasing.cache import ReplyCache
from ta_grpo.rephrasing.chat import Chat, Limits
from ta_grpo.rephrasing.model_checks import Judge, Solver
from ta_grpo.rephrasing.transformations import Prompts


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with rephrasing_endpoint() as endpoint:
        yield endpoint


def verdict_of(endpoint, folder, ask):
    async def run():
        async with Chat(Endpoint(endpoint.url), cache, Limits()) as chat:
            return await ask(chat)

    cache = ReplyCache(folder / "cache.sqlite", "job")
    try:
        return asyncio.run(run())
    finally:
        cache.close()


def solve(endpoint, folder, answers, gold, samples=3):
    left = list(answers)
    endpoint.behaviour = lambda request, number: left.pop(0)
    return verdict_of(endpoint, folder, lambda chat: Solver(chat, "s", samples).check("What is it?", gold))


def says(answer):
    return reply(f"So it is \\boxed{{{answer}}}.")


@pytest.mark.parametrize(
    ("answers", "gold"),
    [
        ([says("0.5"), says("\\frac{1}{2}"), says("3")], "\\frac12"),  # equal answers may be written differently
        ([says("5"), says("5"), reply("I cannot tell")], "5"),
        ([reply(""), says("5"), says("5"), says("5")], "5"),  # an empty reply is asked for again
        ([reply("half", "length"), says("5"), says("5"), says("5")], "5"),
    ],
    ids=["equal values", "one without an answer", "one empty", "one cut off"],
)
def test_the_majority_counts(endpoint, tmp_path, answers, gold):
    assert solve(endpoint, tmp_path, answers, gold) is None


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([says("6"), says("6"), says("5")], "s answers the rephrasing with 6 (2 of 3), not 5"),
        ([says("6"), says("7"), says("5")], "finds no one answer to the rephrasing (1 of 3 agree)"),
        ([reply("?"), reply("?"), reply("?")], "finds no one answer to the rephrasing (0 of 3 agree)"),
        ([says("5"), reply("?"), reply("?")], "finds no one answer to the rephrasing (1 of 3 agree)"),
        ([reply("")] * 9, "(0 of 3 agree)"),
    ],
    ids=["another answer", "three answers", "none", "one", "empty"],
)
def test_no_majority_or_another_one_is_rejected(endpoint, tmp_path, answers, told):
    rejection = solve(endpoint, tmp_path, answers, "5")
    assert rejection is not None
    assert rejection.check == "solver"
    assert told in rejection.reason


def judged(endpoint, folder, say):
    """The judge's view of ``one`` and ``other``, whose words are given by which of the two comes first."""

    def behaviour(request, number):
        prompt = request["messages"][0]["content"]
        (tag,) = re.findall(r"<(verdict-\w+)>", prompt)
        first = re.findall(r"<first-\w+>\n(.*)\n", prompt)[0]
        return reply(say(first).replace("TAG", tag))

    endpoint.behaviour = behaviour
    return verdict_of(endpoint, folder, lambda chat: Judge(chat, "j", Prompts()).check("one", "other"))


@pytest.mark.parametrize("words", ["SAME", " same. ", "**SAME**", "\nSAME\n"])
def test_the_same_both_ways_round_is_accepted(endpoint, tmp_path, words):
    assert judged(endpoint, tmp_path, lambda first: f"I look. <TAG>{words}</TAG>") is None
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize(
    ("say", "told", "calls"),
    [
        (lambda first: "<TAG>DIFFERENT</TAG>", "a different problem", 2),
        (lambda first: f"<TAG>{'SAME' if first == 'one' else 'DIFFERENT'}</TAG>", "(original last)", 2),
        (lambda first: f"<TAG>{'SAME' if first == 'other' else 'DIFFERENT'}</TAG>", "(original first)", 2),
        (lambda first: "They are the SAME", "gave no verdict in 3 tries", 6),
        (lambda first: "<TAG>SAME</TAG> or <TAG>DIFFERENT</TAG>", "gave no verdict", 6),
        (lambda first: "<TAG>NOT THE SAME</TAG>", "gave no verdict", 6),
        (lambda first: "", "gave no verdict", 6),
    ],
    ids=["different", "one way", "other way", "no tags", "two verdicts", "other words", "empty"],
)
def test_anything_else_is_rejected(endpoint, tmp_path, say, told, calls):
    rejection = judged(endpoint, tmp_path, say)
    assert rejection is not None
    assert rejection.check == "judge"
    assert told in rejection.reason
    assert len(endpoint.asked) == calls
