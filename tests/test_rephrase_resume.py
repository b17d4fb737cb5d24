"""What a broken rephrasing costs: failures, kills, resumed runs, two processes on one file."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from rephrase_runs import KEY, lines, run, write
from rephrasing_endpoint import failure, good, questions, rephrasing, reply, tagged
from ta_grpo.errors import UserError
from ta_grpo.questions import load_questions
from ta_grpo.rephrasing.forecast import forecast
from ta_grpo.rephrasing.rephrase_settings import RephraseSettings


@pytest.mark.parametrize("name", ["out.parquet", "out.json", "out.csv"])
def test_other_formats_hold_the_same(tmp_path, endpoint, name):
    run(tmp_path, endpoint, 2, num_rephrasings=2)
    outcome = run(tmp_path, endpoint, 2, num_rephrasings=2, output=tmp_path / name, cache=tmp_path / "out.cache.sqlite")
    assert list(load_questions(tmp_path / name)) == list(load_questions(tmp_path / "out.jsonl"))
    resumed = run(
        tmp_path,
        endpoint,
        2,
        num_rephrasings=2,
        output=tmp_path / name,
        resume=True,
        cache=tmp_path / "out.cache.sqlite",
    )
    assert resumed.report.figures() == outcome.report.figures()


def test_a_failed_run_goes_on_and_pays_for_nothing_twice(tmp_path, endpoint):
    whole = tmp_path / "whole"
    whole.mkdir()
    run(whole, endpoint, 8)
    paid = len(endpoint.answered)
    endpoint.answered.clear()
    lock, count = threading.Lock(), [0]

    def ends(request, number):
        with lock:
            count[0] += 1
            return failure(401, f"bad key {KEY}") if count[0] > 30 else good(request)

    endpoint.behaviour = ends
    with pytest.raises(UserError, match="--resume") as caught:
        run(tmp_path, endpoint, 8, concurrency=4)
    assert KEY not in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()
    endpoint.behaviour = good
    with pytest.raises(UserError, match="add --resume"):
        run(tmp_path, endpoint, 8)
    written = len(lines(tmp_path / "out.partial.jsonl"))
    settings = RephraseSettings(output=tmp_path / "out.jsonl", model="m", base_url=endpoint.url, resume=True)
    assert forecast(tmp_path / "questions.jsonl", settings).calls == 7 * (8 - written) > 0
    outcome = run(tmp_path, endpoint, 8, resume=True)
    assert (tmp_path / "out.jsonl").read_bytes() == (whole / "out.jsonl").read_bytes()
    assert len(endpoint.answered) == paid == outcome.spent.calls
    asked = len(endpoint.asked)
    assert run(tmp_path, endpoint, 8, resume=True).report.figures() == outcome.report.figures()
    assert len(endpoint.asked) == asked


def test_a_failure_waits_for_what_is_under_way_and_for_nothing_else(tmp_path, endpoint):
    """One request is refused for good while six are being answered and one is told to come back in five minutes."""

    def behaviour(request, number):
        if number == 0:
            return failure(500, "busy", retry_after="300")
        if number == 1:
            time.sleep(0.3)
            return failure(401, "no")
        time.sleep(0.6)
        return good(request)

    endpoint.behaviour = behaviour
    began = time.monotonic()
    with pytest.raises(UserError, match="refuses the key"):
        run(tmp_path, endpoint, 1, num_rephrasings=8)
    assert time.monotonic() - began < 60
    assert len(endpoint.answered) == 6
    endpoint.behaviour = good
    outcome = run(tmp_path, endpoint, 1, num_rephrasings=8, resume=True)
    assert (len(endpoint.answered), outcome.spent.calls) == (8, 8)


def test_resuming_refuses_other_settings_and_questions(tmp_path, endpoint):
    endpoint.behaviour = lambda request, number: failure(401, "no")
    with pytest.raises(UserError):
        run(tmp_path, endpoint, 2)
    endpoint.behaviour = good
    for change, told in (
        ({"num_rephrasings": 3}, "num_rephrasings: 7 -> 3"),
        ({"model": "n"}, "model: 'm' -> 'n'"),
        ({"rows": 3}, "the questions have changed"),
    ):
        with pytest.raises(UserError, match=told):
            run(tmp_path, endpoint, **{"rows": 2, "resume": True, **change})
    assert (
        run(tmp_path, endpoint, 2, resume=True, concurrency=2, max_cost=9, price_in=1, price_out=1).report.missing == 0
    )
    with pytest.raises(UserError, match="nothing to resume"):
        run(tmp_path, endpoint, 2, resume=True, output=tmp_path / "new.jsonl")


def test_two_processes_do_not_write_one_file(tmp_path, endpoint):
    import fcntl

    with open(tmp_path / "out.partial.jsonl", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(UserError, match="another process"):
            run(tmp_path, endpoint, 1)


def awkward(request, number):
    """Deterministic, and not always of use: what is paid for in vain must not be paid for again either."""
    if len(request["messages"]) > 1:
        return good(request)
    kind = hash_of(request) % 10
    if kind == 0:
        return reply("cut in the mid", "length")
    return tagged(request, rephrasing(request) + " Also 7777.") if kind == 1 else good(request)


def hash_of(request) -> int:
    import zlib

    return zlib.crc32(json.dumps(request, sort_keys=True).encode())


def test_a_killed_run_repeats_at_most_what_was_under_way(tmp_path, endpoint):
    endpoint.behaviour = awkward
    whole = tmp_path / "whole"
    whole.mkdir()
    run(whole, endpoint, 40, concurrency=8)
    paid = len(endpoint.answered)
    assert paid > 285
    whole_run = set(endpoint.answered)
    endpoint.answered.clear()
    endpoint.delay = 0.02
    source = write(tmp_path / "questions.jsonl", questions(40))
    command = [sys.executable, "-m", "ta_grpo.cli", "rephrase", str(source), "-o", str(tmp_path / "out.jsonl")]
    command += ["--model", "m", "--base-url", endpoint.url, "--concurrency", "8"]
    rng = random.Random(4)
    for attempt in range(3):
        before = len(endpoint.answered)
        resume = ["--resume"] if (tmp_path / "out.meta.json").exists() else []
        process = subprocess.Popen([*command, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wanted = before + rng.randrange(20, 90)
        while len(endpoint.answered) < wanted:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        time.sleep(0.1)
        assert not (tmp_path / "out.jsonl").exists(), attempt
    if (partial := tmp_path / "out.partial.jsonl").stat().st_size > 50:  # a line that was being written
        with open(partial, "r+b") as file:
            file.truncate(partial.stat().st_size - 20)
    assert subprocess.run([*command, "--resume"], capture_output=True, check=False).returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (whole / "out.jsonl").read_bytes()
    assert len(endpoint.answered) - paid <= 3 * 8
    assert set(endpoint.answered) == whole_run


def test_damaged_files_of_a_run_are_named(tmp_path, endpoint):
    run(tmp_path, endpoint, 3)
    for name, damage, told in (
        ("out.jsonl", lambda content: content[: len(content) // 2], "is not what out.meta.json says"),
        ("out.meta.json", lambda content: content[:-9], "out.meta.json is damaged"),
        ("out.jsonl", lambda content: content.replace(b'"rephrasings"', b'"rephrasingz"', 1), "field is missing"),
    ):
        path, content = tmp_path / name, (tmp_path / name).read_bytes()
        path.write_bytes(damage(content))
        with pytest.raises(UserError, match=told):
            run(tmp_path, endpoint, 3, resume=True)
        path.write_bytes(content)


def test_a_cache_that_is_damaged_or_has_no_room_is_told(tmp_path):
    from ta_grpo.rephrasing.cache import ReplyCache, Spending

    cache = ReplyCache(tmp_path / "a.sqlite", "job")
    cache._file.execute("INSERT INTO replies VALUES ('key', '', '{\"text\": ')")
    with pytest.raises(UserError, match=r"damaged .*; move it away"):
        cache.get("key")
    cache._file.execute("PRAGMA max_page_count = 6")
    kept = 0
    with pytest.raises(OSError, match="full") as caught:  # noqa: PT012 - which of them fails is SQLite's
        for kept in range(1000):
            cache.put(str(kept), {"text": "x" * 1000, "problem": ""}, True, Spending(calls=1))
    assert caught.value.errno == 28
    assert cache.spent().calls == kept
