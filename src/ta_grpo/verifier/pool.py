"""A pool of worker processes that compare answers under a deadline.

One pool a process, started by the first answer that needs it, closed when the process ends. After a fork the child
makes its own. The workers are started with ``python -m``, never with multiprocessing, whose start methods import the
user's script again or copy its threads' locks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from ta_grpo.errors import UserError

MAX_WORKERS = 4
# Importing sympy takes about two seconds of CPU; a loaded machine takes many times that.
START_TIMEOUT_SECONDS = 120.0
DISMISSAL_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerStatus:
    """``pids``: the worker processes that are alive. ``checks``: pairs they were given so far."""

    pids: tuple[int, ...]
    checks: int


class _WorkerDiedError(Exception):
    """The worker process ended without an answer."""


class _Worker:
    """One worker process. Used by one thread at a time."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in kill()
        # Unbuffered, so that no half of a message is left behind in this process or in a forked copy of it.
        self._process = subprocess.Popen(
            # -P: the current folder is not a place to import from; a user's json.py there must not shadow ours.
            [sys.executable, "-P", "-m", "ta_grpo.verifier.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            env=_worker_environment(),
        )
        self._stdin, self._stdout = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self.pid = self._process.pid
        self._unread = b""
        try:
            self._receive(START_TIMEOUT_SECONDS)
        except (TimeoutError, _WorkerDiedError) as problem:
            last_words = self.last_words()
            self.kill()
            raise UserError(
                f"the answer checker's worker process could not start ({_reason(problem, self._process.returncode)}); "
                f"run `{sys.executable} -P -m ta_grpo.verifier.worker < /dev/null` to see why, "
                f"and check that math-verify is installed.\n{last_words}"
            ) from problem

    def compare(self, gold: str, answer: str, timeout: float) -> str:
        """The outcome; raises TimeoutError past the deadline and _WorkerDiedError if the process ended."""
        message = json.dumps({"gold": gold, "answer": answer, "timeout": timeout}) + "\n"
        unsent = memoryview(message.encode("ascii"))
        try:
            while unsent:
                unsent = unsent[self._stdin.write(unsent) :]
        except OSError as problem:
            raise _WorkerDiedError from problem
        return self._receive(timeout)["outcome"]

    def _receive(self, timeout: float) -> dict:
        """The next message; lines that are none (a greeting of the user's sitecustomize) are skipped."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._unread:
                    line, self._unread = self._unread.split(b"\n", 1)
                    if line.startswith(b"{"):
                        return json.loads(line)
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise TimeoutError
                received = os.read(self._stdout.fileno(), 65536)
                if not received:
                    raise _WorkerDiedError
                self._unread += received

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def dismiss(self) -> None:
        """Tell the process that there is no more work."""
        self._stdin.close()

    def end(self) -> None:
        """Wait a moment for a dismissed process; kill it if it is still there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DISMISSAL_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.release_files()

    def last_words(self) -> str:
        """The end of what the process wrote to its standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-1000:].strip()

    def release_files(self) -> None:
        """Close this process's ends of the pipes."""
        for file in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(OSError):
                file.close()


def _reason(problem: Exception, returncode: int | None) -> str:
    if isinstance(problem, TimeoutError):
        return f"not ready after {START_TIMEOUT_SECONDS:g} s"
    return f"exit status {returncode}"


def _worker_environment() -> dict[str, str]:
    """This process's environment, with the package on the path where only ``sys.path`` was changed to find it.

    A site-packages folder is left out: the worker finds it by itself, and in PYTHONPATH it would go before the standard
    library.
    """
    package_root = Path(__file__).resolve().parents[2]
    if package_root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(package_root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class _Pool:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._checks = 0
        self._closed = False
        # One thread a worker: a thread takes an idle worker, or starts one, so there are never more workers.
        self._threads = ThreadPoolExecutor(number_of_workers(), thread_name_prefix="ta-grpo-verifier")

    def compare_many(self, pairs: Sequence[tuple[str, str]], timeout: float) -> list[str]:
        tasks = [self._threads.submit(self._compare, gold, answer, timeout) for gold, answer in pairs]
        try:
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()

    def _compare(self, gold: str, answer: str, timeout: float) -> str:
        """One pair. A worker that dies in mid-work says nothing about the answer: a fresh one tries it once more."""
        for again in (False, True):
            worker = self._take(fresh=again)
            try:
                outcome = worker.compare(gold, answer, timeout)
            except TimeoutError:
                self._discard(worker)
                return "timed_out"
            except BaseException as problem:
                self._discard(worker)
                if not isinstance(problem, _WorkerDiedError):
                    raise
            else:
                self._give_back(worker)
                return outcome
        return "error"

    def _take(self, fresh: bool) -> _Worker:
        """An idle worker or a new one; ``fresh``: a new one, in the place of an idle one if there is one."""
        with self._lock:
            self._checks += 1
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive() and not fresh:
                    return worker
                worker.kill()
                self._workers.discard(worker)
                if fresh:
                    break
        try:
            worker = _Worker()
        except OSError as problem:
            raise UserError(
                f"the answer checker's worker process could not start: {problem}; free some memory, or raise the "
                "limits on processes and open files (ulimit -u, ulimit -n)"
            ) from problem
        with self._lock:
            self._workers.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)

    def status(self) -> WorkerStatus:
        with self._lock:
            return WorkerStatus(tuple(sorted(worker.pid for worker in self._workers)), self._checks)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in idle:
            worker.dismiss()
        for worker in idle:
            worker.end()
            self._workers.discard(worker)

    def abandon_in_fork(self) -> None:
        """In a forked child: let go of the parent's pipes, so that its workers still see the parent's end."""
        for worker in self._workers:
            worker.release_files()


def number_of_workers() -> int:
    """As many as this process may use cores, at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)


_pool: _Pool | None = None
_pool_lock = threading.Lock()


def compare_many(pairs: Sequence[tuple[str, str]], timeout: float) -> list[str]:
    """Compare (gold, answer) pairs in the workers, several at once; starts them if need be. Thread-safe.

    Args:
        pairs: gold and extracted answer, as text.
        timeout: seconds for each pair, counted from when a worker begins with it, not from this call.

    Returns:
        One outcome a pair: what ``compare.compare`` says, or ``timed_out``, or ``error`` where a worker died twice.

    Raises:
        UserError: a worker cannot start.
    """
    global _pool
    if not pairs:
        return []
    with _pool_lock:
        if _pool is None:
            _pool = _Pool()
        pool = _pool
    return pool.compare_many(pairs, timeout)


def worker_status() -> WorkerStatus:
    """The worker processes of this process. Starts nothing."""
    with _pool_lock:
        return _pool.status() if _pool else WorkerStatus((), 0)


def close_workers() -> None:
    """End the worker processes; the next answer that needs one starts them again."""
    global _pool
    with _pool_lock:
        pool, _pool = _pool, None
    if pool:
        pool.close()


def _forget_pool_in_fork() -> None:
    global _pool, _pool_lock
    if _pool:
        _pool.abandon_in_fork()
    _pool, _pool_lock = None, threading.Lock()


atexit.register(close_workers)
os.register_at_fork(after_in_child=_forget_pool_in_fork)
