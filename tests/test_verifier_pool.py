"""The pool's deadlines and what it does about workers that die, hang or talk nonsense, with a scripted worker.

The scripted worker takes its part from the answer it is given, and starts in no time, since it loads no algebra. What
the real one does is in ``test_verifier_workers.py``.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ta_grpo.errors import UserError
from ta_grpo.verifier import Verdict, close_workers, pool, verdict, verify, verify_many, worker_status
from test_verifier_workers import alive

SERVES = r"""
    import json, os, sys, time

    def say(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    started = time.time()
    say("good morning from sitecustomize\n" + json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        job = json.loads(line)
        part, _, rest = job["answer"].partition(" ")
        if part == "die":
            os._exit(3)
        if part == "die_once" and not os.path.exists(rest):
            open(rest, "w").close()
            os._exit(3)
        if part == "newer" and started < os.stat(rest).st_mtime:
            os._exit(3)
        if part == "sleep":
            time.sleep(float(rest))
        if part == "nonsense":
            say('{"yes": 1}\n')
            continue
        outcome = {
            "pid": str(os.getpid()),
            "die_once": "right",
            "newer": "right",
            "sleep": "right",
            "gold": job["gold"],
            "deadline": str(job["timeout"]),
            "path": os.environ.get("PYTHONPATH", ""),
        }.get(part, "right" if job["gold"] == job["answer"] else "wrong")
        reply = json.dumps({"outcome": outcome})
        if part == "slowly":
            say("is no message\n" + reply[:5])
            time.sleep(0.1)
            say(reply[5:] + "\n")
        else:
            say(reply + "\n")
"""

Scripted = Callable[[str], None]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """Makes a Python script the program that workers run."""
    python = sys.executable

    def use(script: str) -> None:
        program = tmp_path / "worker"
        program.write_text(f"#!{python} -SE\n" + textwrap.dedent(script))
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    close_workers()
    yield use
    close_workers()


@pytest.fixture
def serving(scripted: Scripted) -> None:
    scripted(SERVES)


def test_outcomes_are_in_order_whatever_becomes_of_the_workers(serving: None) -> None:
    pairs = [("1", "1"), ("1", "die"), ("1", "2"), ("1", "sleep 60"), ("1", "slowly"), ("x\u0663\ud800\n", "gold")]
    before = time.monotonic()
    outcomes = pool.compare_many(pairs * 2, timeout=3.0)
    assert outcomes == ["right", "error", "wrong", "timed_out", "wrong", "x\u0663\ud800\n"] * 2
    assert time.monotonic() - before < 55
    status = worker_status()
    # a pair whose worker died was given to a second one, and to no third
    assert status.checks == 2 * len(pairs) + 2
    assert len(status.pids) <= pool.number_of_workers()
    assert all(map(alive, status.pids))


def test_a_pair_whose_worker_died_once_is_decided_by_another(serving: None, tmp_path: Path) -> None:
    assert pool.compare_many([("1", f"die_once {tmp_path / 'died'}")], timeout=5.0) == ["right"]
    assert worker_status().checks == 2


@pytest.mark.skipif(pool.number_of_workers() < 2, reason="needs two cores, for two workers")
def test_where_all_idle_workers_are_dying_a_new_one_decides(serving: None, tmp_path: Path) -> None:
    pool.compare_many([("1", "sleep 0.5")] * 2, timeout=10.0)
    assert len(worker_status().pids) == 2
    since = tmp_path / "since"
    since.touch()
    assert pool.compare_many([("1", f"newer {since}")], timeout=10.0) == ["right"]


def test_the_deadline_is_the_pairs_own_and_begins_with_its_work(serving: None) -> None:
    # the last of them begins when the first one's deadline has passed
    pairs = [("1", "sleep 1")] * 4 * pool.number_of_workers()
    assert pool.compare_many(pairs, timeout=2.5) == ["right"] * len(pairs)
    assert pool.compare_many([("1", "deadline")], timeout=0.75) == ["0.75"]


def test_workers_are_used_again_and_no_more_than_there_are_cores_for(serving: None) -> None:
    (first,) = pool.compare_many([("1", "pid")], timeout=5.0)
    assert pool.compare_many([("1", "pid")], timeout=5.0) == [first]
    assert worker_status() == pool.WorkerStatus((int(first),), 2)
    pids = pool.compare_many([("1", "pid")] * 50, timeout=5.0)
    assert len(set(pids)) <= pool.number_of_workers()
    assert {str(pid) for pid in worker_status().pids} >= set(pids)
    assert pool.compare_many([], timeout=5.0) == []


def test_a_worker_past_its_deadline_is_killed_and_forgotten(serving: None) -> None:
    (pid,) = pool.compare_many([("1", "pid")], timeout=5.0)
    assert pool.compare_many([("1", "sleep 60")], timeout=0.2) == ["timed_out"]
    assert not alive(int(pid))
    assert worker_status().pids == ()
    assert pool.compare_many([("1", "1")], timeout=5.0) == ["right"]


def test_an_idle_worker_that_died_is_replaced_without_a_second_try(serving: None) -> None:
    (pid,) = pool.compare_many([("1", "pid")], timeout=5.0)
    os.kill(int(pid), signal.SIGKILL)
    while alive(int(pid)):
        time.sleep(0.01)
    assert pool.compare_many([("1", "1")], timeout=5.0) == ["right"]
    assert worker_status().checks == 2
    assert int(pid) not in worker_status().pids
    assert len(worker_status().pids) == 1


def test_a_reply_that_is_none_raises_and_ends_the_worker(serving: None) -> None:
    (pid,) = pool.compare_many([("1", "pid")], timeout=5.0)
    with pytest.raises(KeyError, match="outcome"):
        pool.compare_many([("1", "nonsense")], timeout=5.0)
    assert not alive(int(pid))
    assert worker_status().pids == ()


def test_a_pair_larger_than_a_pipe_arrives(serving: None) -> None:
    gold = "1+" * 200_000
    assert pool.compare_many([(gold, "gold")], timeout=20.0) == [gold]


def test_closing_ends_every_worker_and_a_stubborn_one_too(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(SERVES + "\n    time.sleep(60)")
    monkeypatch.setattr(pool, "DISMISSAL_SECONDS", 0.2)
    pids = {int(pid) for pid in pool.compare_many([("1", "pid")] * 20, timeout=5.0)}
    before = time.monotonic()
    close_workers()
    assert time.monotonic() - before < 50
    assert not any(map(alive, pids))
    assert worker_status() == pool.WorkerStatus((), 0)


def test_a_dismissed_worker_has_a_moment_to_leave(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "DISMISSAL_SECONDS", 20.0)
    left = tmp_path / "left"
    scripted(SERVES + f"\n    time.sleep(0.1)\n    open({str(left)!r}, 'w').close()")
    assert pool.compare_many([("1", "1")], timeout=5.0) == ["right"]
    close_workers()
    assert left.exists()


def test_closing_waits_for_work_in_hand(serving: None) -> None:
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.extend(pool.compare_many([("1", "sleep 0.5")], timeout=5.0)))
    thread.start()
    while not worker_status().pids:
        time.sleep(0.01)
    (pid,) = worker_status().pids
    close_workers()
    thread.join()
    assert outcomes == ["right"]
    assert not alive(pid)


def test_no_process_and_no_open_file_is_left_behind(serving: None) -> None:
    before = set(os.listdir("/proc/self/fd"))
    pool.compare_many([("1", "1"), ("1", "die"), ("1", "sleep 60")], timeout=0.3)
    close_workers()
    assert set(os.listdir("/proc/self/fd")) <= before


# ---- Starting -------------------------------------------------------------------------------------------------------


def test_a_worker_that_ends_at_once_gives_its_last_words(scripted: Scripted) -> None:
    scripted("import sys; sys.exit('x' * 2000 + 'no algebra on this machine\\n\\n')")
    with pytest.raises(UserError, match=r"could not start \(exit status 1\); run `\S+ -P -m ta_grpo") as error:
        pool.compare_many([("1", "1")], timeout=5.0)
    words = str(error.value).partition("installed.\n")[2]
    assert re.fullmatch(r"x{900,}no algebra on this machine", words)
    assert len(words) <= 1000
    assert worker_status().pids == ()
    scripted(r"import sys; sys.stderr.buffer.write(b'\xffno\n'); sys.exit(2)")
    with pytest.raises(UserError, match="exit status 2") as error:
        pool.compare_many([("1", "1")], timeout=5.0)
    assert str(error.value).endswith("installed.\n\ufffdno")


def test_a_worker_that_is_never_ready_is_given_up(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted("import time; time.sleep(60)")
    monkeypatch.setattr(pool, "START_TIMEOUT_SECONDS", 0.5)
    before = time.monotonic()
    with pytest.raises(UserError, match=r"could not start \(not ready after 0.5 s\)"):
        pool.compare_many([("1", "1")], timeout=5.0)
    assert 0.5 <= time.monotonic() - before < 50


def test_a_program_that_is_not_there_names_the_limits(serving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UserError, match=r"could not start: .*No such file.*ulimit -u"):
        pool.compare_many([("1", "1")], timeout=5.0)


def test_the_worker_finds_the_package_and_what_the_user_put_on_the_path(
    serving: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/one{os.pathsep}{os.pathsep}/two")
    root = str(Path(pool.__file__).resolve().parents[2])
    assert pool.compare_many([("1", "path")], timeout=5.0) == [os.pathsep.join([root, "/one", "/two"])]
    close_workers()
    monkeypatch.delenv("PYTHONPATH")
    assert pool.compare_many([("1", "path")], timeout=5.0) == [root]


def test_an_installed_package_is_left_to_the_worker_to_find(serving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # On the path, a site-packages folder would go before the standard library.
    monkeypatch.setenv("PYTHONPATH", "/one")
    monkeypatch.setattr(pool, "__file__", "/usr/lib/python3/dist-packages/ta_grpo/verifier/pool.py")
    assert pool.compare_many([("1", "path")], timeout=5.0) == ["/one"]


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_as_many_workers_as_cores_up_to_four(cores: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: set(range(cores))}[pid])
    assert pool.number_of_workers() == workers
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert pool.number_of_workers() == workers
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert pool.number_of_workers() == 1


# ---- What a verdict asks of the pool --------------------------------------------------------------------------------


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def asked(completion: str, gold: str, timeout: float = 5.0) -> tuple[str, int]:
    """The outcome, and how many pairs the workers were given for it."""
    before = worker_status().checks
    outcome = verify(completion, gold, timeout).outcome
    return outcome, worker_status().checks - before


@pytest.mark.parametrize(
    ("completion", "gold", "outcome", "extracted"),
    [
        (boxed("5"), "5", "right", "5"),
        (boxed("6"), "5", "wrong", "6"),
        ("five", "5", "no_answer", None),
        (boxed("5"), r"so $\boxed{5}$", "right", "5"),
        (boxed("5"), r"so $\fbox{5}$", "right", "5"),
        (boxed("5"), "2 + 3 = 5\n#### 5", "right", "5"),
        (boxed("5"), "2 + 3 = 5\n####", "unusable_gold", "5"),
        (boxed("5"), r"so \boxed{}", "unusable_gold", "5"),
        (boxed("5"), r"so \fbox{\phantom", "unusable_gold", "5"),
        (boxed("5"), 5, "right", "5"),
        (boxed("None"), None, "unusable_gold", "None"),
        (boxed("5"), "", "unusable_gold", "5"),
        (boxed("5"), " $Proof.$ ", "unusable_gold", "5"),
        (boxed("5"), "N/A", "unusable_gold", "5"),
        ("five", "unknown", "unusable_gold", None),
        (boxed("x+y"), "y+x+1", "wrong", "x+y"),
    ],
)
def test_outcomes_and_what_was_found(
    serving: None, completion: str, gold: str, outcome: str, extracted: str | None
) -> None:
    assert verify(completion, gold) == Verdict(outcome, extracted)
    if outcome != "no_answer" and extracted != "x+y":
        assert worker_status().checks == 0


def test_the_deadline_is_handed_on_and_must_be_above_zero(serving: None) -> None:
    assert verify(boxed("deadline"), "x+1", timeout=0.75).outcome == "0.75"
    for timeout in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"above 0 seconds, got {timeout}"):
            verify(boxed("5"), "5", timeout)


def test_length_is_limited_before_any_work(serving: None) -> None:
    limit = verdict.MAX_ANSWER_CHARACTERS
    longest = "x" * (limit - 2) + "+1"
    assert asked(boxed(longest), "x") == ("wrong", 1)
    assert asked(boxed(longest + "0"), "x") == ("wrong", 0)
    assert asked(boxed("x"), longest) == ("wrong", 1)
    assert asked(boxed("x"), longest + "0") == ("unusable_gold", 0)


def test_only_what_was_compared_is_remembered(serving: None) -> None:
    assert asked(boxed("die y"), r"\sqrt{3}y") == ("error", 2)
    assert asked(boxed("die y"), r"\sqrt{3}y") == ("error", 2)
    assert asked(boxed("sleep 60"), r"\sqrt{3}y", 0.2) == ("timed_out", 1)
    assert asked(boxed("sleep 0"), r"\sqrt{3}y") == ("right", 1)
    assert asked(boxed("sleep 0"), r"\sqrt{3}y") == ("right", 0)


def test_a_pair_that_comes_twice_is_compared_once(serving: None) -> None:
    pairs = [(boxed("x+1"), "1+x+z"), (boxed("1+x+z"), "1+x+z"), (boxed("x+1"), "1+x+z")]
    assert [v.outcome for v in verify_many(pairs)] == ["wrong", "right", "wrong"]
    assert worker_status().checks == 2


def test_the_verdicts_used_last_are_remembered(serving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "CACHED_VERDICTS", 2)
    first, second, third = ((boxed(rf"\sqrt{{{n}}}w"), r"\pi w") for n in (2, 3, 5))
    assert asked(*first)[1] == asked(*second)[1] == 1
    assert asked(*first)[1] == 0
    assert asked(*third)[1] == 1
    assert asked(*first)[1] == 0
    assert asked(*second)[1] == 1
