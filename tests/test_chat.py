"""Chat against a server that misbehaves, through the official client."""

from __future__ import annotations

import asyncio
import email.utils
import sqlite3
import threading
import time

import pytest

from rephrasing_endpoint import failure, rephrasing_endpoint, reply
from ta_grpo.errors import UserError
from ta_grpo.openai_client import Endpoint
from ta_grpo.rephrasing.cache import ReplyCache, Spending
from ta_grpo.rephrasing.chat import Chat, CostLimitReached, Limits
from ta_grpo.rephrasing.prices import Price, listed_price

KEY = "sk-secret-of-the-test"
PRICE = Price(1000.0, 10_000.0)  # 100 tokens sent and 10 received: 0.1 + 0.1 dollars


def echo(request, number):
    return reply(f"reply to {request['messages'][0]['content']}")


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("ta_grpo.rephrasing.chat._FIRST_WAIT", 0.01)
    with rephrasing_endpoint(echo) as endpoint:
        yield endpoint


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Asked:
    """What came of asking for some texts at one time."""

    def __init__(self, endpoint, folder, texts=("a",), job="job", attempt="0", limits=None, model="m", **options):
        self.cache = ReplyCache(folder / "cache.sqlite", job)
        try:
            asyncio.run(self.ask(endpoint, texts, attempt, limits or Limits(), model, options))
        finally:
            self.spent = self.cache.spent()
            self.cache.close()

    async def ask(self, endpoint, texts, attempt, limits, model, options):
        async with Chat(Endpoint(endpoint.url), self.cache, limits, **options) as self.chat:
            asked = (self.chat.ask(model, say(text), "t/1", attempt) for text in texts)
            self.replies = await asyncio.gather(*asked)
        self.texts = [reply.text for reply in self.replies]
        self.problems = [reply.problem for reply in self.replies]


def script(endpoint, *steps):
    """These first, and then the echo."""
    left = list(steps)
    lock = threading.Lock()

    def behaviour(request, number):
        with lock:
            step = left.pop(0) if left else echo
        return step(request, number) if callable(step) else step

    endpoint.behaviour = behaviour


def test_replies_come_from_the_endpoint_once_and_then_from_the_cache(endpoint, tmp_path):
    first = Asked(endpoint, tmp_path, ["a", "b"], prices={"m": PRICE})
    assert first.texts == ["reply to a", "reply to b"]
    assert first.spent == Spending(2, 200, 20, 0.4)
    again = Asked(endpoint, tmp_path, ["b", "a", "c"], job="another")
    assert again.texts == ["reply to b", "reply to a", "reply to c"]
    assert (len(endpoint.asked), again.spent.calls) == (3, 1)
    assert endpoint.keys == {f"Bearer {KEY}"}
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    "change", [{"attempt": "1"}, {"model": "n"}, {"temperature": 0.5}, {"max_tokens": 9}, {"texts": ["A"]}], ids=str
)
def test_the_cache_key_is_the_whole_request(endpoint, tmp_path, change):
    Asked(endpoint, tmp_path)
    Asked(endpoint, tmp_path, **change)
    assert len(endpoint.asked) == 2


def test_equal_requests_at_one_time_are_sent_once(endpoint, tmp_path):
    endpoint.delay = 0.05
    assert Asked(endpoint, tmp_path, ["a", "a", "a"]).texts == ["reply to a"] * 3
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        failure(429, "slow down", retry_after_ms="20"),
        failure(429, "the quota of requests a minute is used up", retry_after="0"),
        failure(500, "oops"),
        failure(503, "busy", retry_after="nonsense"),
        failure(408, "late"),
        "cut",
        "half",
        "malformed",
        lambda request, number: {"id": "1", "object": "chat.completion", "choices": []},
        lambda request, number: ["no completion at all"],
        lambda request, number: reply([{"type": "text", "text": "parts"}]),  # pyright: ignore[reportArgumentType]
    ],
    ids=[
        "429",
        "429 for a rate",
        "500",
        "503",
        "408",
        "cut",
        "half a body",
        "malformed",
        "no choices",
        "a list",
        "parts",
    ],
)
def test_passing_trouble_is_tried_again(endpoint, tmp_path, trouble):
    script(endpoint, trouble, trouble)
    asked = Asked(endpoint, tmp_path)
    assert asked.texts == ["reply to a"]
    assert (asked.chat.retries, asked.spent.calls, len(endpoint.asked)) == (2, 1, 3)


def test_a_server_that_hangs_is_given_up_and_tried_again(endpoint, tmp_path):
    script(endpoint, "hang")
    assert Asked(endpoint, tmp_path, timeout=0.3).texts == ["reply to a"]


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "HTTP date"])
def test_retry_after_holds_every_request_back(endpoint, tmp_path, as_date):
    def wait(request, number):
        told = email.utils.formatdate(time.time() + 2, usegmt=True) if as_date else "1"
        return failure(429, "slow down", retry_after=told)

    script(endpoint, wait)
    assert Asked(endpoint, tmp_path, ["a", "b", "c"], limits=Limits(concurrency=1)).texts[2] == "reply to c"
    first, *others = endpoint.times
    assert len(others) == 3
    assert min(others) - first >= 0.95
    assert max(others) - first < 3.5


def test_three_failures_in_a_hundred_change_nothing(endpoint, tmp_path):
    trouble = ["cut", failure(500, "oops"), failure(429, "slow down", retry_after_ms="5"), "half"]
    endpoint.behaviour = lambda request, number: (
        trouble[number // 33 % 4] if number % 33 == 7 else echo(request, number)
    )
    asked = Asked(endpoint, tmp_path, [str(number) for number in range(200)])
    assert asked.texts == [f"reply to {number}" for number in range(200)]
    assert asked.spent.calls == 200
    assert asked.chat.retries >= 6


@pytest.mark.parametrize(
    ("trouble", "told", "most"),
    [
        (failure(401, f"Incorrect API key provided: {KEY}"), "check the environment variable OPENAI_API_KEY", 1),
        (failure(404, "The model m does not exist"), "knows no model 'm'", 1),
        (failure(429, f"You exceeded your current quota {KEY}"), "the quota is used up", 1),
        (failure(429, "pay", code="insufficient_quota", retry_after="1"), "the quota is used up", 1),
        (failure(402, "pay"), "the quota is used up", 1),
        (failure(429, "slow down", retry_after="100000"), "asks to wait for 100000 s", 1),
        (failure(500, f"oops {KEY}"), "Error code: 500", 3),
        ("malformed", "answered without a completion", 3),
        ("cut", "cannot be reached", 3),
    ],
    ids=["401", "404", "quota", "quota code", "402", "a long wait", "500", "malformed", "cut"],
)
def test_lasting_trouble_is_told_without_the_key(endpoint, tmp_path, monkeypatch, trouble, told, most):
    monkeypatch.setattr("ta_grpo.rephrasing.chat._TRIES", 3)
    endpoint.behaviour = lambda request, number: trouble
    with pytest.raises(UserError) as caught:
        Asked(endpoint, tmp_path)
    assert told in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(endpoint.asked) == most
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (lambda request, number: reply(""), "empty"),
        (lambda request, number: reply(None), "empty"),
        (lambda request, number: reply("half of", "length"), "truncated"),
        (lambda request, number: reply("no", "content_filter"), "refused"),
        (lambda request, number: reply(None, refusal="I cannot"), "refused"),
    ],
    ids=["empty", "none", "length", "filter", "refusal"],
)
def test_replies_of_no_use_are_paid_for_once_and_are_no_other_jobs(endpoint, tmp_path, step, problem):
    script(endpoint, step)
    first = Asked(endpoint, tmp_path)
    assert (first.problems, first.spent.calls) == ([problem], 1)
    resumed = Asked(endpoint, tmp_path)
    assert (resumed.problems, resumed.spent.calls, len(endpoint.asked)) == ([problem], 1, 1)
    other = Asked(endpoint, tmp_path, job="another")
    assert (other.texts, other.problems) == (["reply to a"], [""])


def test_a_reply_may_be_disowned(endpoint, tmp_path):
    async def ask_and_disown(cache):
        async with Chat(Endpoint(endpoint.url), cache, Limits()) as chat:
            chat.disown(await chat.ask("m", say("a"), "t/1", "0"))

    cache = ReplyCache(tmp_path / "cache.sqlite", "job")
    asyncio.run(ask_and_disown(cache))
    Asked(endpoint, tmp_path)
    assert len(endpoint.asked) == 1
    Asked(endpoint, tmp_path, job="another")
    assert len(endpoint.asked) == 2
    cache.forget_job()
    assert cache.spent() == Spending()
    cache.close()


def test_a_request_that_is_not_taken_is_told_and_not_kept(endpoint, tmp_path):
    script(endpoint, failure(400, f"context is too long {KEY}"))
    asked = Asked(endpoint, tmp_path)
    assert asked.problems == ["not_taken"]
    assert "context is too long" in asked.texts[0]
    assert KEY not in asked.texts[0]
    assert Asked(endpoint, tmp_path).texts == ["reply to a"]


def test_many_refusals_in_a_row_are_a_wrong_setting(endpoint, tmp_path):
    endpoint.behaviour = lambda request, number: failure(400, "temperature is not supported")
    with pytest.raises(UserError, match="temperature is not supported"):
        Asked(endpoint, tmp_path, [str(number) for number in range(30)], limits=Limits(concurrency=1))
    assert len(endpoint.asked) < 13


def test_concurrency_is_bounded_and_used(endpoint, tmp_path):
    endpoint.delay = 0.1
    Asked(endpoint, tmp_path, [str(number) for number in range(12)], limits=Limits(concurrency=4))
    assert endpoint.most_under_way == 4


def test_requests_a_minute_are_spread(endpoint, tmp_path):
    Asked(endpoint, tmp_path, list("abcdef"), limits=Limits(requests_per_minute=600))
    gaps = [later - sooner for sooner, later in zip(sorted(endpoint.times), sorted(endpoint.times)[1:], strict=False)]
    assert sum(gaps) >= 0.4
    assert sum(gap < 0.05 for gap in gaps) <= 1


def test_tokens_a_minute_count_prompt_and_longest_reply(endpoint, tmp_path):
    # 50 tokens each, at 100 a second, of which the first second's come at once.
    limits = Limits(tokens_per_minute=6000)
    Asked(endpoint, tmp_path, [f"{n}" * 30 for n in range(5)], limits=limits, max_tokens=40)
    assert 1.2 <= max(endpoint.times) - min(endpoint.times) < 3


def test_the_cost_limit_is_not_passed_and_counts_earlier_attempts(endpoint, tmp_path):
    options = {"prices": {"m": PRICE}, "max_tokens": 10}  # a prompt of one letter: at most 0.101 dollars; really 0.2
    with pytest.raises(CostLimitReached, match="raise --max-cost"):
        Asked(endpoint, tmp_path, list("abcdef"), limits=Limits(concurrency=1, max_cost=0.75), **options)
    assert 3 <= len(endpoint.asked) <= 4
    had = len(endpoint.asked)
    with pytest.raises(CostLimitReached):
        Asked(endpoint, tmp_path, list("abcdef"), limits=Limits(max_cost=0.75), **options)
    assert len(endpoint.asked) == had
    resumed = Asked(endpoint, tmp_path, list("abcdef"), limits=Limits(max_cost=5), **options)
    assert resumed.spent == Spending(6, 600, 60, pytest.approx(1.2))


def test_requests_wait_for_money_that_others_set_aside(endpoint, tmp_path):
    """Ten times the longest reply is set aside; what is not used is free again."""
    endpoint.delay = 0.02
    limits = Limits(concurrency=8, max_cost=2.3)
    asked = Asked(endpoint, tmp_path, list("abcdefgh"), limits=limits, prices={"m": PRICE}, max_tokens=60)
    assert asked.spent.calls == 8
    assert endpoint.most_under_way <= 3


def test_replies_without_usage_are_counted_by_their_text(endpoint, tmp_path):
    script(endpoint, lambda request, number: {**reply("x" * 30), "usage": None})
    asked = Asked(endpoint, tmp_path)
    assert asked.chat.replies_without_usage == 1
    assert (asked.spent.tokens_in, asked.spent.tokens_out) == (1, 10)


def test_several_processes_may_use_a_cache(tmp_path):
    caches = [ReplyCache(tmp_path / "cache.sqlite", "job") for _ in range(2)]
    for number in range(50):
        caches[number % 2].put(str(number), {"text": "x", "problem": ""}, True, Spending(1, 2, 3, 0.5))
    assert caches[0].spent() == caches[1].spent() == Spending(50, 100, 150, 25.0)
    for cache in caches:
        cache.close()


def test_files_that_are_no_cache_are_left_alone(tmp_path):
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be looked at" * 20)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    for name in ("text", "other.sqlite"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(UserError, match="name another file"):
            ReplyCache(tmp_path / name, "job")
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(UserError, match="--cache"):
        ReplyCache(tmp_path / "text" / "below", "job")


def test_prices_are_those_of_the_list_for_public_endpoints_only():
    price = listed_price("gpt-4-turbo", None)
    assert price is not None
    assert 0 < price.tokens_in < price.tokens_out
    assert price.of(1_000_000, 0) == pytest.approx(price.tokens_in)
    assert listed_price("gpt-4-turbo", "http://localhost:8000/v1") is None
    assert listed_price("no-such-model", None) is None
