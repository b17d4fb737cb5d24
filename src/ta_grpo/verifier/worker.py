"""The worker process: reads jobs as JSON lines on stdin, writes outcomes as JSON lines on stdout.

Started by ``pool`` as ``python -m ta_grpo.verifier.worker``. It ends with its parent: when the parent dies, stdin is
closed, and a thread that does nothing but read stdin sees it. While a long operation on big integers holds the
interpreter lock that thread cannot run, so the kernel's timer ends the process a little after each job's deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import signal
import sys
import threading
import time
from typing import TextIO

# sympy, its caches and a large comparison fit several times; a memory bomb does not.
MEMORY_LIMIT_BYTES = 2 * 1024**3
# The parent kills at the deadline. The timer is for the case that there is no parent any more.
GRACE_SECONDS = 2.0
# What a worker in mid-work has left when its parent is gone.
LEAVING_SECONDS = 0.5


def main() -> None:
    """Serve jobs until stdin ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii", buffering=1)
    # Whatever else is printed is no reply.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _limit_this_process()
    jobs = _read_jobs()
    # Imported after the limits and the reader, so that a slow import still ends with the parent.
    from ta_grpo.verifier.compare import compare, warm_up

    warm_up()
    _silence_output()
    _reply(replies, {"ready": True})
    while job := jobs.get():
        signal.setitimer(signal.ITIMER_REAL, job["timeout"] + GRACE_SECONDS)
        try:
            outcome = compare(job["gold"], job["answer"])
        except MemoryError:
            # Past its limit of memory is told like past its limit of time. The heap may be in pieces: start afresh.
            _reply(replies, {"outcome": "timed_out"})
            os._exit(1)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the parent must be told and count it
            _reply(replies, {"outcome": "error", "problem": f"{type(problem).__name__}: {problem}"[:200]})
        else:
            _reply(replies, {"outcome": outcome})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _reply(replies: TextIO, message: dict) -> None:
    replies.write(json.dumps(message) + "\n")


def _limit_this_process() -> None:
    # Ctrl-C in a terminal reaches the whole process group; the parent decides what becomes of us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The default action ends the process without running any Python: it works when the interpreter is stuck.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read_jobs() -> queue.SimpleQueue[dict | None]:
    """Start the thread that reads jobs from stdin, None at its end, and then ends the process if it is not over."""
    jobs: queue.SimpleQueue[dict | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(json.loads(line))
        # An idle main thread now ends by itself; a busy one has nobody to tell.
        jobs.put(None)
        time.sleep(LEAVING_SECONDS)
        os._exit(0)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return jobs


def _silence_output() -> None:
    """From here on nothing this process prints reaches the user's terminal; until here it explains a failed start."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
