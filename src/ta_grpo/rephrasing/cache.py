"""What an endpoint has answered, in SQLite: nothing is paid for twice, and a kill loses what was under way at most.

The key of a reply is a hash of the whole request. Neither the API key nor any header comes near this file. A reply
that was paid for but is of no use (empty, cut off, refused) is kept for the job that paid for it alone, so that the
job, killed and resumed, does not pay for it again; every other job asks anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError

_EVERY_JOB = ""
# Marks the file as ours ("TArC").
_APPLICATION_ID = 0x54417243
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Spending:
    """What a job has paid for since it began, over all its attempts. ``cost`` in dollars; 0 where no price is known."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.calls + other.calls,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.cost + other.cost,
        )


def request_key(request: Mapping[str, Any]) -> str:
    """The hash of a request; everything that could change the reply must be in it."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, ensure_ascii=True).encode("ascii")).hexdigest()


class ReplyCache:
    """Replies by request. Several processes may use one file at a time.

    Args:
        path: of the SQLite file; made where there is none.
        job: whose spending is counted, and whose useless replies are remembered.

    Raises:
        UserError: the file is something else, or cannot be opened.
    """

    def __init__(self, path: Path, job: str) -> None:
        self.job = job or "job"
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
            self._check_ours(path)
            # A reply is safe from a killed process once written; only a power cut may take the last ones.
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(
                f"""
                PRAGMA application_id = {_APPLICATION_ID};
                CREATE TABLE IF NOT EXISTS replies (key TEXT, job TEXT, reply TEXT, PRIMARY KEY (key, job));
                CREATE TABLE IF NOT EXISTS spending (
                    job TEXT PRIMARY KEY, calls INTEGER, tokens_in INTEGER, tokens_out INTEGER, cost REAL
                );
                """
            )
        except (sqlite3.Error, OSError) as error:
            self._raise_if_full(error)
            raise UserError(f"--cache {path}: cannot be used ({error}); move it away, or name another file") from None

    def _check_ours(self, path: Path) -> None:
        (application,) = self._file.execute("PRAGMA application_id").fetchone()
        (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION_ID:
            self._file.close()
            raise UserError(f"--cache {path}: a database of something else; name another file")

    def _execute(self, sql: str, values: Any = ()) -> tuple[Any, ...] | None:
        """The first row of what a statement finds.

        Raises:
            UserError: the file is damaged.
            OSError: the disk is full.
        """
        try:
            return self._file.execute(sql, values).fetchone()
        except sqlite3.DatabaseError as error:
            self._raise_if_full(error)
            raise self._damaged(error) from None

    def _raise_if_full(self, error: Exception) -> None:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise OSError(errno.ENOSPC, str(error), str(self.path)) from error

    def _damaged(self, reason: Any) -> UserError:
        return UserError(f"--cache {self.path}: damaged ({reason}); move it away, and its replies are asked for anew")

    def get(self, key: str) -> dict[str, Any] | None:
        """The reply to a request, if there is one that this job may use."""
        found = self._execute("SELECT reply FROM replies WHERE key = ? AND job IN (?, ?)", (key, _EVERY_JOB, self.job))
        if found is None:
            return None
        try:
            reply = json.loads(found[0])
            return {"text": reply["text"], "problem": reply["problem"]}
        except (ValueError, KeyError, TypeError):
            raise self._damaged("a reply is no JSON of ours") from None

    def put(self, key: str, reply: Mapping[str, Any], useful: bool, spent: Spending) -> None:
        """Keep a reply, and count what it has cost, in one step."""
        self._execute("BEGIN IMMEDIATE")
        try:
            self._execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)",
                (key, _EVERY_JOB if useful else self.job, json.dumps(reply)),
            )
            self._execute(
                """
                INSERT INTO spending VALUES (:job, :calls, :tokens_in, :tokens_out, :cost)
                ON CONFLICT (job) DO UPDATE SET calls = calls + :calls, tokens_in = tokens_in + :tokens_in,
                tokens_out = tokens_out + :tokens_out, cost = cost + :cost
                """,
                {"job": self.job, **asdict(spent)},
            )
            self._execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:  # a full disk has ended it already
                self._execute("ROLLBACK")
            raise

    def disown(self, key: str) -> None:
        """Leave a reply to this job alone: it turned out to be of no use."""
        self._execute("UPDATE OR REPLACE replies SET job = ? WHERE key = ? AND job = ?", (self.job, key, _EVERY_JOB))

    def spent(self) -> Spending:
        """What this job has paid for so far."""
        found = self._execute("SELECT calls, tokens_in, tokens_out, cost FROM spending WHERE job = ?", (self.job,))
        return Spending(*found) if found else Spending()

    def forget_job(self) -> None:
        """Begin the job anew: no spending, none of its useless replies."""
        self._execute("DELETE FROM replies WHERE job = ?", (self.job,))
        self._execute("DELETE FROM spending WHERE job = ?", (self.job,))

    def close(self) -> None:
        self._file.close()
