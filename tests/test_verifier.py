"""Verdicts on final answers: the cases, the hostile ones, the worker processes, the reward."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ta_grpo.errors import UserError
from ta_grpo.verifier import (
    OUTCOMES,
    Verdict,
    accuracy_reward,
    close_workers,
    verify,
    verify_many,
    worker_status,
)

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "verifier_cases.jsonl").open(encoding="utf-8")]
# Seconds; long enough for honest algebra on a busy machine, short for the answers that never end.
SHORT = 2.0
BOMB = r"\boxed{9^{9^{9^{9}}}}"


@pytest.fixture(autouse=True, scope="module")
def _end_workers() -> Iterator[None]:
    yield
    close_workers()


def boxed(answer: object) -> str:
    return rf"So the answer is $\boxed{{{answer}}}$."


# ---- Cases ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case_verdicts() -> dict[str, Verdict]:
    verdicts = verify_many([(case["response"], case["gold"]) for case in CASES], timeout=SHORT)
    return {case["id"]: verdict for case, verdict in zip(CASES, verdicts, strict=True)}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["id"]) for case in CASES],
)
def test_case_from_the_file(case: dict, case_verdicts: dict[str, Verdict]) -> None:
    verdict = case_verdicts[case["id"]]
    assert verdict.correct == case["expected"], verdict
    assert verdict.outcome not in ("error", "unusable_gold")


RIGHT = {
    "thousands": [
        ("1080", r"1,000+80=1,080\text{ dollars}"),
        (r"11,\! 111,\! 111,\! 100", r"11,\!111,\!111,\!100"),
        ("12345", "12 345"),
        ("12345", r"12{,}345"),
        ("112,\\!875", "112875"),
        ("1,234,567", "1234567"),
    ],
    "mixed": [("8/3", r"2\frac23"), ("8/3", "2⅔"), (r"-\frac72", "-3 1/2")],
    "decimals": [
        (r"\frac13", r"0.\overline{3}"),
        ("0.3", "0.30000000000000004"),
        ("2000000", r"2\text{ million}"),
        ("5", r"\text{five}"),
        (r"\frac13", "0.333333"),
        ("0.5", ".50"),
        (r"\frac{\pi}{4}", "0.785398"),
        ("5", "5.0"),
        ("0", "-0"),
    ],
    "powers of ten": [("4.5e33", r"4.5\times10^{33}"), ("10^{-7}", "1e-7"), (".0000672", r"6.72\cdot 10^{-5}")],
    "percent": [(r"35\%", "0.35"), ("6.25", r"6.25\text{ percent}"), (r"\frac34", r"75\%")],
    "units": [
        (r"12\text{ cm}", r"12\text{ centimeters}"),
        ("12", "12 cm"),
        ("90", r"90~\mathrm{km/h}"),
        (r"90\text{ km/h}", r"90\text{ km per hour}"),
        ("30", "30°"),
        ("36", "36 apples"),
        (r"16\pi", r"16\pi\text{ cm}^3"),
    ],
    "unicode": [("2\\sqrt{3}", "2√3"), ("-5", "−5"), ("x^2", "x²"), (r"\frac12", "½"), (r"x \leq 3", "x ≤ 3")],
    "equations": [
        ("5", "x = 2+3 = 5"),
        ("y=2x+3", "y-2x=3"),
        ("y=3", "3=y"),
        ("x_{1}=5", "x_1 = 5"),
        (r"\text{area}=5", "area=5"),
        ("x=2y", "2y=x"),
        (r"x=\text{red}", r"x=\text{Red}"),
        (r"\infty", r"+\infty"),
        ("x^2+y^2=25", "x^2+y^2=5^2"),
        ("25", "x^2+y^2=25"),
        (r"m_{\max}=n^2-1", "(n-1)(n+1)"),
    ],
    "options": [("C", "(C)"), ("C", r"\textbf{C}"), ("C", "C. 14"), (r"\textbf{(B)}\ 12", "B"), ("12", "(B) 12")],
    "lists": [("8 and 27", r"\{27, 8\}"), (r"1\pm\sqrt5", r"1-\sqrt5, 1+\sqrt5"), (r"x=\pm 7", r"7 \text{ or } -7")],
    "tuples": [
        ("(1,4)", "P(1,4)"),
        ("(1,4)", "(x,y)=(1,4)"),
        ("(1,2),(3,4)", r"\{(3,4),(1,2)\}"),
        ("(1,4)", "y=4, x=1"),
        ("(4,1)", "y=4, 1"),
        ("(1,4)", "1, 4"),
        ("(0.5, 2)", r"\left(\frac12, 2\right)"),
    ],
    "intervals": [
        (r"(-\infty,2)\cup(5,\infty)", r"x<2 \text{ or } x>5"),
        (r"(-\infty,2)\cup(5,\infty)", r"(5,\infty)\cup(-\infty,2)"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
        (r"(2,\infty)", r"\{x \in \mathbb{R} : x>2\}"),
        ("[0,1]", r"0 \leq x \leq 1"),
        (r"(-\infty,3)\cup(3,\infty)", r"x \neq 3"),
        (r"(-\infty,3)", r"{( - \infty, 3)}"),
    ],
    "ratios": [("2:3", "4:6"), ("1:2:3", "2:4:6"), ("2:3", r"\frac23")],
    "algebra": [
        (r"\sqrt{\frac mn}", r"\frac{\sqrt m}{\sqrt n}"),
        (r"\frac{n(n+1)}{2}", r"\binom{n+1}{2}"),
        (r"\sum_{k=1}^{n} k", r"\frac{n^2+n}{2}"),
        (r"\frac{e^x+e^{-x}}{2}", r"\cosh x"),
        (r"\sqrt{1/m}", r"\frac{1}{\sqrt m}"),
        (r"1-\frac1e", r"1-\frac{1}{\mathrm{e}}"),
        (r"\sin 30^\circ", r"\frac12"),
        (r"e^{i\pi}", "-1"),
        ("(2+i)(2-i)", "5"),
        (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
        ("1024", "2^10"),
        (r"\frac{\sqrt2}{2}", r"\frac{\sqrt2}{2} \approx 0.707"),
    ],
    "words": [(r"\text{June 20}", "20th June"), ("no solution", "No solution."), ("3:45", r"3{:}45\text{ PM}")],
    "matrices": [
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\left[\begin{array}{cc}1&0\\0&1\end{array}\right]"),
        (r"\begin{pmatrix}1/2\\3\end{pmatrix}", r"\begin{bmatrix}0.5\\ 3\end{bmatrix}"),
    ],
    "markup": [
        ("k=3", r"\text{k=3}"),
        ("13", r"\text{13 cm}"),
        ("150", r"{150^\circ}"),
        (r"\text{(E)}", r"x=\text{(E)}"),
    ],
    "bases": [("52_8", "x=52_8"), ("2A_{16}", "2a_{16}"), (r"1011_{\text{two}}", "1011_2")],
}

WRONG = {
    "thousands": [("5, 100", "5100"), ("(1,234)", "1234"), ("357", r"12\,345"), ("12", "1 2")],
    "mixed": [("2", "2 2/3"), ("10", "4 10/3"), (r"\frac43", "2 2/3")],
    "decimals": [("33.3", r"\frac{100}{3}"), (r"\frac13", "0.333"), ("1", "0.9999999999"), (r"\pi", "3.14")],
    "tiny": [
        (r"\frac{1}{30!}", r"\frac{1}{32!}"),
        (r"(3\times10^{-7},1)", r"(4\times10^{-7},1)"),
        ("0.0000003x", "0.0000004x"),
        ("x>0.0000003", "x>0.0000004"),
        (r"10^{-9}\pi", r"2\cdot 10^{-9}\pi"),
    ],
    "huge": [("10^{30}", "10^{30}+1"), (r"\frac{12345678901234567890}{7}", r"\frac{12345678901234567891}{7}")],
    "percent": [("35", "0.35"), ("50", r"50\%\%")],
    "units": [
        (r"12\text{ cm}", r"12\text{ m}"),
        (r"16\text{ m/s}", r"16\text{ m/s}^2"),
        (r"30^\circ", r"30\text{ radians}"),
        ("2m", "2"),
        ("2", "2m"),
        ("2", r"2 \text{ million}"),
        ("3", r"3\text{ and a half}"),
        ("2", r"2\mathrm{e}"),
    ],
    "equations": [
        ("5", "7=5"),
        ("5", "5="),
        ("5", "$$"),
        ("5", r"\ldots"),
        (r"-\infty", r"\infty"),
        (r"x=\text{red}", r"x=\text{blue}"),
        ("3x", "3"),
        ("x=5", "y=5"),
        ("x^2+y^2=25", "25"),
        ("2x-3y+11=0", "0"),
        ("5", r"x \neq 5"),
        ("5", "x > 5"),
        ("x=1,y=2", "y=1,x=2"),
    ],
    "options": [("C", "C, D"), ("C", "(C) or (D)"), ("B", r"\text{Both}"), ("a", "A"), ("E", r"\Delta E \gg kT")],
    "lists": [("27", "8, 27"), ("8, 27", "27"), ("8, 27", "8, 27, 30"), ("7", r"\pm 7"), ("3", "2 or 3")],
    "tuples": [
        (r"\{1,2\}", r"\{1|2\}"),
        ("(1,4)", "4, 1"),
        ("(1,4)", "y=1, x=4"),
        ("(1,4)", r"\{1,4\}"),
        (r"\{1,4\}", "(1,4)"),
    ],
    "intervals": [("[1,2]", "(1,2)"), ("[1,2)", "[1,2]"), ("x>2", r"x\ge2"), (r"x<2 \text{ or } x>5", "x<2")],
    "algebra": [
        ("x", "|x|"),
        (r"\sqrt{x^2}", "x"),
        (r"\sqrt{xy}", r"-\sqrt{x}\sqrt{y}"),
        (r"\sqrt{x^2y^2}", "xy"),
        (r"\lfloor x \rfloor", r"\lfloor x+0.01 \rfloor"),
        ("n!", "(n-1)!"),
        ("1", r"\frac{0}{0}"),
        ("7", "7/0"),
        ("7", r"\frac{7}{0}"),
        (r"\infty", "5"),
        (r"\emptyset", "0"),
        ("5", "5+"),
        (r"\frac12", r"\frac{1}{"),
    ],
    "ratios": [("2:3", "3:2"), ("1:2:3", "1:2:4")],
    "words": [(r"\text{Yes}", "Yes and no"), ("5", r"\text{not } 5"), ("3:45 PM", "3:45 AM"), ("3:45", "1:15")],
    "matrices": [(r"\begin{pmatrix}1\\-3\end{pmatrix}", "(-3,1)")],
    "bases": [("1011_2", "1011_3"), ("11", "1011_2"), ("11", "19_8")],
}


@pytest.mark.parametrize(("expected", "kind"), [(True, kind) for kind in RIGHT] + [(False, kind) for kind in WRONG])
def test_kinds_of_answers(expected: bool, kind: str) -> None:
    pairs = (RIGHT if expected else WRONG)[kind]
    verdicts = verify_many([(boxed(answer), gold) for gold, answer in pairs])
    assert [(pair, v.outcome) for pair, v in zip(pairs, verdicts, strict=True)] == [
        (pair, "right" if expected else "wrong") for pair in pairs
    ]


@given(st.integers())
def test_an_integer_is_itself(n: int) -> None:
    assert verify(f"so it is \\boxed{{{n}}}", str(n)).correct


@given(st.integers(), st.integers())
def test_an_integer_is_no_other(n: int, m: int) -> None:
    assert verify(f"so it is \\boxed{{{n}}}", str(m)).correct == (n == m)


@given(st.integers(-999, 999), st.integers(1, 99), st.integers(1, 9))
def test_a_fraction_is_its_multiples(top: int, bottom: int, factor: int) -> None:
    assert verify(rf"\boxed{{\frac{{{top * factor}}}{{{bottom * factor}}}}}", f"{top}/{bottom}").correct
    assert not verify(rf"\boxed{{\frac{{{top * factor + 1}}}{{{bottom * factor}}}}}", f"{top}/{bottom}").correct


@given(st.floats(1.0, 9.99), st.integers(-300, 300))
def test_scientific_notation_is_compared_by_its_relative_error(mantissa: float, exponent: int) -> None:
    written = f"{mantissa:.3f}"
    assert verify(rf"\boxed{{{written} \times 10^{{{exponent}}}}}", f"{written}e{exponent}").correct
    other = f"{float(written) + 0.001:.3f}"
    assert not verify(rf"\boxed{{{other} \times 10^{{{exponent}}}}}", f"{written}e{exponent}").correct


# ---- Outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gold", ["", "  ", "proof", "null", None, r"\frac{1}{", "see [1", r"a solution with \boxed{}"])
def test_unusable_gold_whatever_the_answer_is(gold: str) -> None:
    for completion in (boxed(5), boxed(gold), boxed("x+1"), boxed(r"\text{proof}")):
        assert verify(completion, gold).outcome in ("unusable_gold", "no_answer")
    assert verify(boxed(5), gold).outcome == "unusable_gold"


def test_no_answer_and_what_was_found() -> None:
    assert verify("I do not know.", "5") == Verdict("no_answer", None)
    assert verify(boxed(r"\frac{1}{2}"), "0.5") == Verdict("right", r"\frac{1}{2}")
    assert not verify("5", "5").correct


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        verify(boxed(5), "5", timeout=0)


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
    assert elapsed < len(HOSTILE) * SHORT + 30


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
        capture_output=True, text=True, timeout=60, check=False, **kwargs,
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
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
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


# ---- The reward -----------------------------------------------------------------------------------------------------


def test_reward_of_texts_and_messages() -> None:
    texts = [boxed(12), boxed(13), "none", BOMB, boxed(12)]
    answers = ["12", "12", "12", "x+3", "proof"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in texts]
    for completions in (texts[:3] + texts[4:], messages[:3] + messages[4:], parts[:3] + parts[4:]):
        rewards = accuracy_reward(prompts=["q"] * 4, completions=completions, answer=answers[:3] + answers[4:])
        assert rewards == [1.0, 0.0, 0.0, None]
    assert accuracy_reward(completions=texts, answer=answers) == [1.0, 0.0, 0.0, 0.0, None]
    assert accuracy_reward.__name__ == "accuracy_reward"


def test_reward_reads_the_last_assistant_message() -> None:
    conversation = [
        {"role": "assistant", "content": boxed(1), "tool_calls": []},
        {"role": "tool", "content": boxed(2)},
        {"role": "assistant", "content": boxed(3)},
    ]
    assert accuracy_reward(
        completions=[conversation, [], [{"role": "assistant", "content": None}]], answer=["3"] * 3
    ) == [
        1.0,
        0.0,
        0.0,
    ]


def test_reward_takes_the_box_of_a_solution() -> None:
    solution = r"As \boxed{1} is not possible, the sum is $\boxed{\frac{1}{2}}$."
    assert accuracy_reward(completions=[boxed("0.5"), boxed(1)], solution=[solution, solution]) == [1.0, 0.0]
    assert accuracy_reward(completions=[boxed("0.5")], answer=["0.5"], solution=["7"]) == [1.0]
    assert accuracy_reward(completions=[boxed(3)], answer=[3]) == [1.0]


def test_reward_logs_every_outcome() -> None:
    metrics, extras = {}, {}
    accuracy_reward(
        completions=[boxed(1), boxed(2), "none", boxed(3)],
        answer=["1", "1", "1", None],
        log_metric=metrics.__setitem__,
        log_extra=extras.__setitem__,
        trainer_state=object(),
        completion_ids=[[1]] * 4,
    )
    assert extras == {
        "verdict": ["right", "wrong", "no_answer", "unusable_gold"],
        "extracted": ["1", "2", None, "3"],
    }
    assert metrics == {f"verifier/{outcome}": 0.25 * (outcome not in ("timed_out", "error")) for outcome in OUTCOMES}
    assert sum(metrics.values()) == 1


def test_reward_without_references_names_the_fix() -> None:
    with pytest.raises(UserError, match="rename_column"):
        accuracy_reward(prompts=["q"], completions=[boxed(1)], final_answer=["1"])
    with pytest.raises(UserError, match="2 reference answers"):
        accuracy_reward(completions=[boxed(1)], answer=["1", "2"])


def test_reward_of_nothing() -> None:
    assert accuracy_reward(completions=[], answer=[], log_metric=print, log_extra=lambda *_: None) == []


def test_prose_without_an_answer_is_no_reference() -> None:
    prose = "Janet sells the rest of the eggs at the market every day, and so she makes 18 dollars there."
    assert accuracy_reward(completions=[boxed(18)], solution=[prose]) == [None]
    assert accuracy_reward(completions=[boxed(18)], solution=[prose + "\n#### 18"]) == [1.0]
