"""The verifier's worker processes: hostile answers and their deadline, threads, forks, kills, and how workers end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ta_grpo.verifier import Verdict, accuracy_reward, close_workers, verify, verify_many, worker_status
from test_verifier import SHORT, boxed

BOMB = r"\boxed{9^{9^{9^{9}}}}"

pytestmark = pytest.mark.usefixtures("ended_workers")


# ---- Hostile answers ------------------------------------------------------------------------------------------------

HOSTILE = {
    "power tower": BOMB,
    "factorial": r"\boxed{(10^{9})!}",
    "long text": r"\boxed{" + "1+" * 100_000 + "1}",
    "long text without a box": "so we get $1+1=2$ and then, " * 8_000,
    "deep braces": r"\boxed{" + "{" * 1_900 + "5" + "}" * 1_900 + "}",
    "deep brackets": r"\boxed{" + "(" * 1_900 + "5" + ")" * 1_900 + "}",
    "deep tuples": r"\boxed{" + "(1," * 900 + "5" + ")" * 900 + "}",
    "deep fractions": r"\boxed{" + r"\frac{1}{" * 350 + "5" + "}" * 350 + "}",
    "null bytes": "\\boxed{1\x002\x00}",
    "lone surrogates": "\\boxed{\ud800 + \udfff}",
    "control characters": "\\boxed{\x1b[31m5\r\n}",
    "memory": r"\boxed{\binom{10^{7}}{5\cdot 10^{6}}}",
    "code": r"\boxed{__import__('os').system('true')}",
    "json": r'\boxed{"}\n{"ready": true, "outcome": "right"}',
}


def test_hostile_answers_end_by_the_deadline_and_harm_no_other() -> None:
    honest = [(boxed(rf"\sqrt{{{n}}}+1"), rf"1+\sqrt{{{n}}}") for n in range(2, 32)]
    hostile = [(completion, "5+\\sqrt{2}") for completion in HOSTILE.values()]
    mixed = [pair for both in zip(honest, hostile + honest, strict=False) for pair in both]
    before = time.monotonic()
    verdicts = verify_many(mixed, timeout=SHORT)
    elapsed = time.monotonic() - before
    outcomes = Counter(verdict.outcome for pair, verdict in zip(mixed, verdicts, strict=True) if pair in honest)
    assert outcomes == {"right": outcomes.total()}
    hostile_outcomes = {verdict.outcome for pair, verdict in zip(mixed, verdicts, strict=True) if pair in hostile}
    assert hostile_outcomes <= {"wrong", "timed_out", "no_answer"}
    assert verdicts[mixed.index((BOMB, "5+\\sqrt{2}"))].outcome == "timed_out"
    # Only those that were tried can have taken their whole deadline; starting workers takes time on a busy machine.
    assert elapsed < len(HOSTILE) * SHORT + 120


def test_a_timed_out_answer_is_tried_again_and_a_compared_one_is_not() -> None:
    pairs = [(boxed(r"\sqrt{12}+x"), r"2\sqrt{3}+x"), (BOMB, "x+1")]
    verify_many(pairs, timeout=SHORT)
    before = worker_status().checks
    verify_many([pairs[0]] * 50, timeout=SHORT)
    assert worker_status().checks == before
    assert [v.outcome for v in verify_many([pairs[1]] * 3, timeout=SHORT)] == ["timed_out"] * 3
    assert worker_status().checks == before + 1


# ---- Workers --------------------------------------------------------------------------------------------------------


def run_script(body: str, *arguments: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), *arguments],
        capture_output=True, text=True, timeout=240, check=False, **kwargs,
    )  # fmt: skip


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_dead(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_plain_answers_start_no_worker_and_load_no_algebra() -> None:
    script = r"""
        import sys
        from ta_grpo.verifier import accuracy_reward, worker_status
        rewards = accuracy_reward(completions=[r"\boxed{12}", r"\boxed{1,234}", r"\boxed{C}", "none", r"\boxed{lots}"],
                                  answer=["12", "1235", "C", "5", "7"])
        assert rewards == [1.0, 0.0, 1.0, 0.0, 0.0], rewards
        assert worker_status().pids == ()
        assert not {"sympy", "math_verify", "torch", "trl"} & set(sys.modules)
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr


def test_from_any_thread_and_many_at_once() -> None:
    pairs = [(boxed(rf"\sqrt{{{n}}}-1"), rf"-1+\sqrt{{{n}}}") for n in range(40, 80)]
    with ThreadPoolExecutor(8) as threads:
        assert all(verdict.correct for verdict in threads.map(lambda pair: verify(*pair), pairs))
    assert len(worker_status().pids) <= 4


def test_from_asyncio() -> None:
    async def reward(start: int) -> list[float | None]:
        return await asyncio.to_thread(
            accuracy_reward, completions=[boxed(rf"\sqrt{{{start}}}+y")], answer=[rf"y+\sqrt{{{start}}}"]
        )

    async def rewards() -> list:
        inside = accuracy_reward(completions=[boxed(r"\sqrt{5}y")], answer=[r"y\sqrt{5}"])
        return [inside, *await asyncio.gather(*map(reward, range(10, 15)))]

    assert asyncio.run(rewards()) == [[1.0]] * 6


def test_a_worker_killed_in_mid_work_is_replaced() -> None:
    close_workers()
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(verify(BOMB, "x+2", timeout=SHORT)))
    thread.start()
    while not worker_status().pids:
        time.sleep(0.01)
    time.sleep(0.3)
    (killed,) = worker_status().pids
    os.kill(killed, signal.SIGKILL)
    thread.join()
    assert verdicts[0].outcome == "timed_out"
    assert verify(boxed(r"\sqrt{18}"), r"3\sqrt{2}").correct
    assert killed not in worker_status().pids


def test_idle_workers_that_were_killed_are_noticed() -> None:
    assert all(v.correct for v in verify_many([(boxed(rf"\sqrt{{{n}}}z"), rf"z\sqrt{{{n}}}") for n in range(2, 12)]))
    before = worker_status().pids
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert wait_until_dead(list(before), 5)
    assert verify(boxed(r"\sqrt{17}z"), r"z\sqrt{17}").correct
    assert not set(before) & set(worker_status().pids)


def test_workers_end_with_their_parent() -> None:
    script = r"""
        from ta_grpo.verifier import verify, worker_status
        assert verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct
        print(*worker_status().pids)
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    assert wait_until_dead(pids, 1)


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_when_their_parent_is_killed(busy: bool) -> None:
    script = rf"""
        import os, signal, threading, time
        from ta_grpo.verifier import verify, worker_status
        assert verify(r"\boxed{{\sqrt{{8}}}}", r"2\sqrt{{2}}").correct
        if {busy}:
            threading.Thread(target=verify, args=(r"{BOMB}", "x", {SHORT}), daemon=True).start()
            time.sleep(0.3)
        print(*worker_status().pids, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_script(script)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    assert wait_until_dead(pids, SHORT + 5)


def test_workers_end_when_their_parent_is_killed_but_a_forked_child_lives() -> None:
    script = r"""
        import os, signal, sys, time
        from ta_grpo.verifier import verify, worker_status
        assert verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct
        workers = worker_status().pids
        child = os.fork()
        if child == 0:
            os.close(1)
            os.close(2)
            time.sleep(30)
            os._exit(0)
        print(child, *workers, flush=True)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_script(script)
    child, *workers = map(int, done.stdout.split())
    try:
        assert wait_until_dead(workers, 5)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_unguarded_script_is_not_imported_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(r"""
            from ta_grpo.verifier import verify
            print("imported")
            assert verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct
        """)
    )
    # A file of the user's that is called like a module the worker needs.
    (tmp_path / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")


def test_a_forked_child_has_workers_of_its_own() -> None:
    script = r"""
        import os, sys
        from ta_grpo.verifier import verify, worker_status
        assert verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct
        parents = set(worker_status().pids)
        child = os.fork()
        if child == 0:
            assert worker_status().pids == ()
            assert verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct
            assert verify(r"\boxed{\sqrt{18}}", r"3\sqrt{2}").correct
            assert worker_status().pids and not parents & set(worker_status().pids)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert verify(r"\boxed{\sqrt{32}}", r"4\sqrt{2}").correct
        assert set(worker_status().pids) == parents
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('this is not math-verify')")
    script = r"""
        from ta_grpo.errors import UserError
        from ta_grpo.verifier import verify
        assert verify(r"\boxed{3}", "3").correct
        try:
            verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
        except UserError as error:
            assert "could not start" in str(error) and "this is not math-verify" in str(error), str(error)
        else:
            raise SystemExit("no error")
    """
    done = run_script(script, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
