"""Chat replies from any OpenAI-compatible endpoint: limited in rate and cost, retried, and never paid for twice."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..errors import UserError
from ..openai_client import Endpoint
from .cache import ReplyCache, Spending, request_key
from .prices import Price

DEFAULT_MODEL = "gpt-4-turbo"
"""The paper's."""

EMPTY = "empty"
TRUNCATED = "truncated"
REFUSED = "refused"
NOT_TAKEN = "not_taken"

# A request is tried this often. Waits double from half a second to half a minute, less a random part; where the server
# names a time, that long, but never longer than this.
_TRIES = 8
_FIRST_WAIT, _LONGEST_OWN_WAIT, _LONGEST_TOLD_WAIT = 0.5, 30.0, 600.0
# So many requests refused in a row (HTTP 400) are a wrong setting, and not a matter of one question.
_REFUSALS_IN_A_ROW = 10
_RETRIED_STATUSES = frozenset([408, 409, 425, 429])
# Bytes of a token, rather fewer than there are; decides nothing but limits and forecasts.
_BYTES_A_TOKEN = 3

Messages = Sequence[Mapping[str, str]]


class CostLimitReached(UserError):  # noqa: N818 - an end that was asked for
    """``max_cost`` leaves no room for another request."""


class Stopped(Exception):  # noqa: N818 - no error
    """The run ends for another request's failure; this one has not been sent."""


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        text: of the reply; it may be of no use even where there is some.
        problem: why it is of no use: ``empty``, ``truncated``, ``refused``, or ``not_taken`` by the server, whose words
            are then the text. Empty: none.
        key: of its request.
    """

    text: str
    problem: str = ""
    key: str = ""


@dataclass(frozen=True)
class Limits:
    """Bounds of the traffic; None: none. ``max_cost`` in dollars, over all attempts of the job.

    Raises:
        UserError: one that is not above 0.
    """

    concurrency: int = 16
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise UserError(f"--{name.replace('_', '-')}={value} must be above 0")


class Chat:
    """Asks an endpoint. Use as an asynchronous context manager, in one event loop.

    Requests that are retried wait for their turn again. A 429 or 503 that names a time (``Retry-After``, in seconds or
    as a date) holds all requests back until then. A quota that is used up, a refused key and an unknown model are
    final. Equal requests at one time are sent once.

    Args:
        endpoint: where to ask.
        cache: of the replies.
        limits: of the traffic.
        prices: model -> price; models that are not in it cost nothing.
        temperature: of sampling.
        max_tokens: longest reply.
        timeout: seconds until a request is given up and tried again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        cache: ReplyCache,
        limits: Limits,
        prices: Mapping[str, Price] | None = None,
        temperature: float = 1.0,
        max_tokens: int = 2048,
        timeout: float = 600.0,
    ) -> None:
        self.endpoint = endpoint
        self.cache = cache
        self.limits = limits
        self.prices = dict(prices or {})
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.timeout = timeout
        self.spent = cache.spent()
        self.retries = 0
        self.replies_without_usage = 0
        self._refusals = 0
        self._not_before = 0.0
        self._reserved = 0.0
        self._under_way: dict[str, asyncio.Task[Reply]] = {}

    async def __aenter__(self) -> Chat:
        try:
            from aiolimiter import AsyncLimiter
        except ImportError:
            raise UserError("endpoints need the package aiolimiter; run: pip install 'ta-grpo[endpoint]'") from None
        self._client = self.endpoint.client(max_retries=0, timeout=self.timeout)
        await self._client.__aenter__()
        self._stopped = asyncio.Event()
        self._slots = asyncio.Semaphore(self.limits.concurrency)
        self._money = asyncio.Condition()
        a_minute = self.limits.requests_per_minute
        # Spread evenly: a bucket of a minute's requests would let them all go at once, and then again.
        self._requests = None if a_minute is None else AsyncLimiter(1, 60 / a_minute)
        tokens = self.limits.tokens_per_minute
        self._token_turn = asyncio.Lock()
        self._tokens = None if tokens is None else AsyncLimiter(max(tokens / 60, 1), max(60 / tokens, 1))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        under_way = list(self._under_way.values())
        if error is not None and not isinstance(error, Exception):
            for task in under_way:  # the user wants an end
                task.cancel()
        # Otherwise they are waited for: they have been paid for.
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._client.__aexit__(kind, error, traceback)

    def stop(self) -> None:
        """Send nothing more; what is under way may end."""
        self._stopped.set()

    async def ask(self, model: str, messages: Messages, template: str, attempt: str) -> Reply:
        """The reply to messages, from the cache or from the endpoint.

        Args:
            model: name under which the endpoint knows it.
            messages: as the API takes them.
            template: name and version of the prompt template.
            attempt: tells requests apart that are otherwise the same, and ask for another sample.

        Raises:
            UserError: the endpoint cannot be reached, refuses, or goes on failing.
            CostLimitReached: there is no money left.
            Stopped: after ``stop``.
        """
        request = {
            "base_url": self.endpoint.base_url,
            "model": model,
            "messages": [dict(message) for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "template": template,
            "attempt": attempt,
        }
        key = request_key(request)
        if (found := self.cache.get(key)) is not None:
            return Reply(found["text"], found["problem"], key)
        if key not in self._under_way:
            task = asyncio.ensure_future(self._fetch(key, request))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(self._under_way[key])

    def _ended(self, key: str, task: asyncio.Task[Reply]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # nobody waits for it where the run was interrupted

    def disown(self, reply: Reply) -> None:
        """Let no other job use a reply."""
        if reply.key:
            self.cache.disown(reply.key)

    async def _fetch(self, key: str, request: Mapping[str, Any]) -> Reply:
        """Ask until there is a reply, and keep it."""
        model = request["model"]
        tokens = sum(estimated_tokens(message["content"]) for message in request["messages"])
        for tries in range(1, _TRIES + 1):
            try:
                async with self._slots:
                    await self._admitted(model, tokens)
                    try:
                        response = await self._send(request)
                        return self._kept(key, model, response, tokens)
                    finally:
                        await self._release(model, tokens)
            except (self.endpoint.openai.APIError, *_NOT_READABLE) as error:
                if (refusal := self._refusal(error, model)) is not None:
                    return refusal
                wait = self._wait(error, tries, model)
            self.retries += 1
            await self._sleep(wait)
        raise AssertionError("the last try raises")

    async def _send(self, request: Mapping[str, Any]) -> Any:
        return await self._client.chat.completions.create(
            model=request["model"],
            messages=request["messages"],
            temperature=self.temperature,
            **{self.endpoint.token_limit_name: self.max_tokens},
        )

    async def _admitted(self, model: str, tokens: int) -> None:
        """Wait for money, rate and the server's leave."""
        self._check_stopped()
        await self._reserve(model, tokens)
        try:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                await self._tokens_admitted(tokens + self.max_tokens)
            while (wait := self._not_before - time.monotonic()) > 0:
                await self._sleep(wait)
            self._check_stopped()
        except BaseException:
            await self._release(model, tokens)
            raise

    async def _tokens_admitted(self, tokens: int) -> None:
        """One request after the other, in portions that the bucket holds."""
        assert self._tokens is not None  # noqa: S101 - the caller's test
        left = float(tokens)
        async with self._token_turn:
            while left > 0:
                portion = min(left, self._tokens.max_rate)
                await self._tokens.acquire(portion)
                left -= portion

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise Stopped

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not after ``stop``."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
        self._check_stopped()

    def _at_most(self, model: str, tokens: int) -> float:
        return self.prices[model].of(tokens, self.max_tokens) if model in self.prices else 0.0

    async def _reserve(self, model: str, tokens: int) -> None:
        """Set aside what a request may cost at most; wait for others to end where that is too much now."""
        at_most = self._at_most(model, tokens)
        if self.limits.max_cost is None:
            return
        async with self._money:
            while self.spent.cost + self._reserved + at_most > self.limits.max_cost:
                if not self._reserved:
                    raise CostLimitReached(
                        f"--max-cost {self.limits.max_cost:g}: {self.spent.cost:.4f} dollars are spent, and the next "
                        f"request may cost {at_most:.4f}; what has arrived is kept: add --resume and raise --max-cost "
                        "to go on"
                    )
                await self._money.wait()
                self._check_stopped()
            self._reserved += at_most

    async def _release(self, model: str, tokens: int) -> None:
        if self.limits.max_cost is None:
            return
        async with self._money:
            self._reserved = max(0.0, self._reserved - self._at_most(model, tokens))
            if self._reserved < 1e-12:
                self._reserved = 0.0
            self._money.notify_all()

    def _kept(self, key: str, model: str, response: Any, tokens: int) -> Reply:
        """The reply in a response, counted and kept."""
        choices = getattr(response, "choices", None) or [None]
        choice, message = choices[0], getattr(choices[0], "message", None)
        if choice is None or message is None or not isinstance(message.content, str | None):
            raise _NoCompletionError
        self._refusals = 0
        text = message.content or ""
        refused = bool(getattr(message, "refusal", None)) or choice.finish_reason == "content_filter"
        truncated = choice.finish_reason == "length"
        problem = REFUSED if refused else TRUNCATED if truncated else "" if text.strip() else EMPTY
        usage = getattr(response, "usage", None)
        tokens_in = getattr(usage, "prompt_tokens", None)
        tokens_out = getattr(usage, "completion_tokens", None)
        if not isinstance(tokens_in, int) or not isinstance(tokens_out, int):
            self.replies_without_usage += 1
            tokens_in, tokens_out = tokens, estimated_tokens(text)
        price = self.prices.get(model)
        spent = Spending(1, tokens_in, tokens_out, price.of(tokens_in, tokens_out) if price else 0.0)
        # Half a character has no UTF-8 form; "?" stands for it.
        text = text.encode("utf-8", "replace").decode("utf-8")
        self.cache.put(key, {"text": text, "problem": problem}, not problem, spent)
        self.spent += spent
        return Reply(text, problem, key)

    def _refusal(self, error: Exception, model: str) -> Reply | None:
        """A reply for a request that the server does not take as it is: no use in trying again, and no end either."""
        status = getattr(error, "status_code", None)
        if status is None or not 400 <= status < 500 or status in (401, 402, 403, 404) or status in _RETRIED_STATUSES:
            return None
        self._refusals += 1
        if self._refusals >= _REFUSALS_IN_A_ROW:
            raise self.endpoint.told(error, model) from None
        return Reply(self.endpoint.words(error), NOT_TAKEN)

    def _wait(self, error: Exception, tries: int, model: str) -> float:
        """Seconds until the next try.

        Raises:
            UserError: there is no next one.
        """
        if isinstance(error, _NOT_READABLE):
            final, status = self.endpoint.no_completion(), None
        else:
            final, status = self.endpoint.told(error, model), getattr(error, "status_code", None)
        response = getattr(error, "response", None)
        told = None if response is None else _told_wait(response.headers, time.time())
        if status in (401, 402, 403, 404) or (status == 429 and _is_quota(error, told)):
            raise final from None
        if tries == _TRIES:
            raise final from None
        if told is not None and told > _LONGEST_TOLD_WAIT:
            raise UserError(
                f"{self.endpoint.base_url} asks to wait for {told:.0f} s; what has arrived is kept: add --resume to go "
                "on later"
            ) from None
        if told is not None:
            if status in (429, 503):
                self._not_before = max(self._not_before, time.monotonic() + told)
            return told * (1 + 0.1 * random.random())
        own = min(_FIRST_WAIT * 2 ** (tries - 1), _LONGEST_OWN_WAIT)
        return own * (0.5 + 0.5 * random.random())


class _NoCompletionError(Exception):
    """The server has answered with something else than a completion."""


# A reply that came to its end, but says nothing that can be read.
_NOT_READABLE = (_NoCompletionError, json.JSONDecodeError, UnicodeDecodeError)


def estimated_tokens(text: str) -> int:
    """About how many tokens a text is, rather more than fewer."""
    return math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_A_TOKEN)


def _told_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to wait; None: it does not say."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(wait):
            return max(0.0, wait)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now)
    except (TypeError, ValueError):
        return None


def _is_quota(error: Any, told: float | None) -> bool:
    """Whether a 429 means that the money is used up, so that waiting is of no use."""
    named = {str(getattr(error, "code", "")), str(getattr(error, "type", ""))}
    return "insufficient_quota" in named or (told is None and "quota" in str(getattr(error, "message", "")).lower())
