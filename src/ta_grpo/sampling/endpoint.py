"""Completions from any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..openai_client import Endpoint
from .plan import Completion, Prompt, SamplingSettings, same_prompt_runs

if TYPE_CHECKING:
    from .arrived import Arrived

# A request asks for this many completions at most: few enough to keep many requests in flight, and enough to pay
# seldom for the prompt.
_CHOICES_A_REQUEST = 16
# The client waits longer each time, or as long as the server says.
_RETRIES = 6
# A batch of long completions on a busy server sends its first byte late.
_TIMEOUT_SECONDS = 3600.0
# The range that every server takes.
_SEEDS = 2**31


class EndpointSampler:
    """Samples with the official asynchronous client; several requests are under way at a time.

    Messages go to ``/chat/completions`` and text to ``/completions``. Many servers ignore ``n``: the completions that
    came back are counted, and the rest is asked for. A server that refuses ``n`` is asked for one at a time. Each
    response is on disk when the next is awaited.

    The server may ignore the seed, and may add settings of its own (top-k, a repetition penalty, a system prompt):
    what it does is not ours to see. Its address does not count among what decides the samples, so that a run can go
    on at another one.

    The key comes from the environment variable OPENAI_API_KEY alone. It reaches no file and no message.

    Args:
        model: name under which the server knows the model.
        settings: how to sample.
        base_url: of the server, such as ``http://localhost:8000/v1``; None: OpenAI's.
        concurrency: requests under way at a time.
        chat_template_kwargs: sent along where there are any; vLLM and SGLang know them.

    Raises:
        UserError: the client is not installed, a bad address, or OpenAI's own endpoint without a key.
    """

    def __init__(
        self,
        model: str,
        settings: SamplingSettings,
        base_url: str | None = None,
        concurrency: int = 16,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"concurrency must be at least 1; got {concurrency}")
        self.endpoint = Endpoint(base_url)
        self.model = model
        self.settings = settings
        self.concurrency = concurrency
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self._most_choices = _CHOICES_A_REQUEST

    def describe(self) -> dict[str, Any]:
        return {"backend": "endpoint", "chat_template_kwargs": self.chat_template_kwargs, "model": self.model}

    def prepare(self, prompts: Mapping[str, Prompt]) -> list[Prompt]:
        """The prompts as they are: the server tokenizes."""
        return list(prompts.values())

    def complete(self, prompts: Sequence[Prompt], seed: int, arrived: Arrived) -> list[Completion]:
        """One completion of each prompt.

        Raises:
            UserError: the server cannot be reached, refuses, or goes on failing after the client's retries. Requests
                under way are waited for first.
        """
        runs = [
            (f"{seed}/{number}", prompt, count)
            for number, (prompt, count) in enumerate(same_prompt_runs(prompts, _CHOICES_A_REQUEST))
        ]
        asyncio.run(self._draw_all(runs, seed, arrived))
        return [completion for request, _, count in runs for completion in arrived.of(request)[:count]]

    async def _draw_all(self, runs: Sequence[tuple[str, Prompt, int]], seed: int, arrived: Arrived) -> None:
        limit = asyncio.Semaphore(self.concurrency)
        failures: list[UserError] = []
        client = self.endpoint.client(_RETRIES, _TIMEOUT_SECONDS)

        async def draw(number: int, request: str, prompt: Prompt, count: int) -> None:
            async with limit:
                while not failures and (have := len(arrived.of(request))) < count:
                    own_seed = (seed + number * _CHOICES_A_REQUEST + have) % _SEEDS
                    try:
                        drawn = await self._ask(client, prompt, count - have, own_seed)
                    except UserError as error:
                        failures.append(error)
                    else:
                        arrived.add(request, drawn)

        async with client:
            await asyncio.gather(*(draw(number, *run) for number, run in enumerate(runs)))
        if failures:
            raise failures[0]

    async def _ask(self, client: Any, prompt: Prompt, count: int, seed: int) -> list[Completion]:
        """At least one completion and at most ``count``."""
        asked = min(count, self._most_choices)
        try:
            response = await self._send(client, prompt, asked, seed)
        except self.endpoint.openai.BadRequestError as error:
            if asked == 1:
                raise self.endpoint.told(error, self.model) from None
            self._most_choices = 1
            return await self._ask(client, prompt, 1, seed)
        except self.endpoint.openai.APIError as error:
            raise self.endpoint.told(error, self.model) from None
        choices = getattr(response, "choices", None)
        if not choices:
            raise self.endpoint.no_completion()
        choices = choices[:count]
        usage = getattr(response, "usage", None)
        tokens = _shared_out(getattr(usage, "completion_tokens", None), len(choices))
        return [
            Completion(_text(choice), number, finished=choice.finish_reason not in ("length", "content_filter"))
            for choice, number in zip(choices, tokens, strict=True)
        ]

    async def _send(self, client: Any, prompt: Prompt, count: int, seed: int) -> Any:
        how: dict[str, Any] = {
            "model": self.model,
            "n": count,
            "seed": seed,
            "temperature": self.settings.temperature,
            "top_p": self.settings.top_p,
        }
        if isinstance(prompt, str):
            return await client.completions.create(prompt=prompt, max_tokens=self.settings.max_new_tokens, **how)
        if self.chat_template_kwargs:
            how["extra_body"] = {"chat_template_kwargs": self.chat_template_kwargs}
        return await client.chat.completions.create(
            messages=prompt, **{self.endpoint.token_limit_name: self.settings.max_new_tokens}, **how
        )


def _text(choice: Any) -> str:
    """The text of a choice; none is an empty one: all its tokens went into hidden reasoning."""
    message = getattr(choice, "message", None)
    return (choice.text if message is None else message.content) or ""


def _shared_out(total: int | None, parts: int) -> list[int | None]:
    """Tokens of each choice: equal parts of their sum, which is all that a server tells."""
    if total is None:
        return [None] * parts
    return [total // parts + (number < total % parts) for number in range(parts)]
