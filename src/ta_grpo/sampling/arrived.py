"""Completions of a batch that is not yet complete, on disk as they come: nothing that was paid for is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import UserError
from ..rundir import append_jsonl, iter_jsonl
from .plan import Completion


class Arrived:
    """What has arrived of the batch in hand, by request.

    Args:
        path: the file; made with the first completion and removed with ``clear``.
        on_added: called with the number of completions in hand whenever some have arrived.
    """

    def __init__(self, path: Path, on_added: Callable[[int], None] | None = None) -> None:
        self._path = path
        self._on_added = on_added
        self._held: dict[str, list[Completion]] = defaultdict(list)
        try:
            for line, _ in iter_jsonl(path):
                self._held[line.pop("request")].append(Completion(**line))
        except (KeyError, TypeError):
            raise UserError(f"{path} is damaged; move it away, and what it holds is drawn again") from None

    def of(self, request: str) -> list[Completion]:
        """What has arrived of a request, in order."""
        return list(self._held.get(request, ()))

    def add(self, request: str, completions: Sequence[Completion]) -> None:
        """Note what has arrived; it is on disk when this returns."""
        append_jsonl(self._path, ({"request": request} | asdict(completion) for completion in completions))
        self._held[request] += completions
        if self._on_added:
            self._on_added(sum(map(len, self._held.values())))

    def clear(self) -> None:
        """The batch is complete, and stands elsewhere."""
        self._path.unlink(missing_ok=True)
        self._held.clear()
