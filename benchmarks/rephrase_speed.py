"""Rephrasing against a local endpoint: wall time over the ideal, memory by number of questions, and resuming.

    python benchmarks/rephrase_speed.py time      200 questions x 7, 2 s latency, 64 requests at a time
    python benchmarks/rephrase_speed.py memory    resident memory at 100, 1,000 and 5,000 questions x 2
    python benchmarks/rephrase_speed.py kill      kill -9 at ten random moments, resumed each time

The endpoint is scripted, on loopback, in a process of its own, and answers with good rephrasings. Ideal: all calls in
full waves of the concurrency, nothing but latency. Aims: at most 1.2 times that; memory that does not grow with the
questions; after kills, the same bytes and no paid call repeated beyond those under way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

LATENCY, CONCURRENCY, QUESTIONS, REPHRASINGS = 2.0, 64, 200, 7


async def serve(latency: float, port: int) -> None:
    """One event loop, since 64 threads of a threaded server would take the client's share of two cores."""
    import asyncio

    import rephrasing_endpoint as scripted

    counts = {"answered": 0}

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    body = json.dumps(counts).encode()
                else:
                    length = next(
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    )
                    request = json.loads(await reader.readexactly(length))
                    await asyncio.sleep(latency)
                    body = json.dumps(scripted.good(request)).encode()
                    counts["answered"] += 1
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def endpoint(latency: float) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, "serve", "--latency", str(latency)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()


def answered(url: str) -> int:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - loopback
        return json.load(response)["answered"]


def command(folder: Path, url: str, count: int, rephrasings: int, concurrency: int) -> list[str]:
    from rephrasing_endpoint import questions

    source = folder / "questions.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in questions(count)))
    words = [sys.executable, "-m", "ta_grpo.cli", "rephrase", str(source), "-o", str(folder / "out.jsonl"), "--json"]
    return [*words, "-n", str(rephrasings), "--model", "m", "--base-url", url, "--concurrency", str(concurrency)]


def run(words: list[str]) -> tuple[dict[str, Any], float, float, float]:
    """Result, wall seconds, CPU seconds and the highest resident megabytes of a process."""
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out, _ = process.stdout.read(), None  # pyright: ignore[reportOptionalMemberAccess]
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return json.loads(out), time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure_time() -> None:
    with endpoint(LATENCY) as url, tempfile.TemporaryDirectory() as folder:
        result, wall, cpu, memory = run(command(Path(folder), url, QUESTIONS, REPHRASINGS, CONCURRENCY))
    calls = result["spent"]["calls"]
    ideal = math.ceil(calls / CONCURRENCY) * LATENCY
    print(
        f"{calls} calls, {result['quality']['accepted']} accepted: {wall:.1f} s, {wall / ideal:.2f} x the ideal of "
        f"{ideal:.0f} s; {cpu:.1f} s of CPU, {1000 * cpu / calls:.1f} ms a call; {memory:.0f} MB resident"
    )


def measure_memory() -> None:
    for count in (100, 1_000, 5_000):
        with endpoint(0.0) as url, tempfile.TemporaryDirectory() as folder:
            result, wall, cpu, memory = run(command(Path(folder), url, count, 2, 16))
        calls = result["spent"]["calls"]
        print(
            f"{count} questions: {memory:.0f} MB resident, {calls / wall:.0f} calls/s, "
            f"{1000 * cpu / calls:.1f} ms of CPU a call"
        )


def measure_kills() -> None:
    rng = random.Random(0)
    with endpoint(0.2) as url, tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        result, _, _, _ = run(command(Path(one), url, QUESTIONS, REPHRASINGS, 16))
        paid, before = result["spent"]["calls"], answered(url)
        words = command(Path(other), url, QUESTIONS, REPHRASINGS, 16)
        for _ in range(10):
            resume = ["--resume"] if (Path(other) / "out.meta.json").exists() else []
            process = subprocess.Popen([*words, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.3, 3.5))
            assert process.poll() is None, "it ended before it was killed; slow the endpoint down"
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.3)
        result, _, _, _ = run([*words, "--resume"])
        same = (Path(one) / "out.jsonl").read_bytes() == (Path(other) / "out.jsonl").read_bytes()
        again = answered(url) - before - paid
    print(f"10 kills: the same bytes: {same}; of {paid} calls {again} were made again (at most 10 x 16 were under way)")
    assert same
    assert again <= 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "memory", "kill", "serve"])
    parser.add_argument("--latency", type=float, default=LATENCY, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.pop("OPENAI_API_KEY", None)
    if options.what == "serve":
        import asyncio

        asyncio.run(serve(options.latency, 0))
    else:
        {"time": measure_time, "memory": measure_memory, "kill": measure_kills}[options.what]()


if __name__ == "__main__":
    main()
