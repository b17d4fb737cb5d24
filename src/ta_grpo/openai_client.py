"""An OpenAI-compatible endpoint through the official client: its address, its key, and what its errors mean.

The key comes from the environment variable ``OPENAI_API_KEY`` alone. It reaches no file and no message.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from .errors import UserError

KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
_KEPT = "what has arrived is kept: add --resume to go on"


class Endpoint:
    """Where requests go.

    Args:
        base_url: of the server, such as ``http://localhost:8000/v1``; None: OpenAI's.

    Raises:
        UserError: the client is not installed, a bad address, or OpenAI's own endpoint without a key.
    """

    def __init__(self, base_url: str | None = None) -> None:
        try:
            import openai
        except ImportError:
            raise UserError("endpoints need the package openai; run: pip install 'ta-grpo[endpoint]'") from None
        self.openai = openai
        self.base_url = _checked_url(base_url or DEFAULT_BASE_URL)
        self._key = os.environ.get(KEY_VARIABLE, "")
        if not self._key and base_url is None:
            raise UserError(f"set the environment variable {KEY_VARIABLE}, or name another server with --base-url")

    @property
    def token_limit_name(self) -> str:
        """What the limit of a chat reply is called: OpenAI's newer models refuse ``max_tokens``, and older servers
        know nothing else.
        """
        return "max_completion_tokens" if self.base_url == DEFAULT_BASE_URL else "max_tokens"

    def client(self, max_retries: int, timeout: float) -> Any:
        """The asynchronous client; use as an asynchronous context manager. ``timeout`` in seconds."""
        return self.openai.AsyncOpenAI(
            api_key=self._key or "none", base_url=self.base_url, max_retries=max_retries, timeout=timeout
        )

    def words(self, error: Exception) -> str:
        """The message of an error on one line, short and without the key."""
        message = str(getattr(error, "message", "") or error)
        if self._key:
            message = message.replace(self._key, "…")
        return " ".join(message.split())[:300]

    def told(self, error: Exception, model: str) -> UserError:
        """What went wrong, in words that do not hold the key."""
        status = getattr(error, "status_code", None)
        message = self.words(error)
        if status in (401, 403):  # the server's own words may quote the key
            return UserError(
                f"{self.base_url} refuses the key ({status}); check the environment variable {KEY_VARIABLE}; {_KEPT}"
            )
        if status == 404:
            return UserError(
                f"{self.base_url} knows no model {model!r}, or no such address ({message}); check --base-url, "
                "which often ends in /v1, and the model's name"
            )
        if status in (402, 429):
            return UserError(
                f"{self.base_url}: the limit or the quota is used up ({message}); wait, lower --concurrency or top up; "
                f"{_KEPT}"
            )
        if status is None:
            cause = f": {error.__cause__}" if error.__cause__ else ""
            return UserError(f"{self.base_url} cannot be reached ({message}{cause}); is the server running? {_KEPT}")
        return UserError(f"{self.base_url} answered with an error ({message}); {_KEPT}")

    def no_completion(self) -> UserError:
        """The server answers, but not with completions."""
        return UserError(
            f"{self.base_url} answered without a completion; is it an OpenAI-compatible endpoint? Its address "
            f"often ends in /v1; {_KEPT}"
        )


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--base-url {url!r}: name an address such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise UserError(f"--base-url: an address without credentials and query; a key goes into {KEY_VARIABLE}")
    return url.rstrip("/")
