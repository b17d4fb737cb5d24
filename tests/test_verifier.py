"""Verdicts on final answers: the cases of the file, and kinds of answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ta_grpo.verifier import Verdict, verify, verify_many

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "verifier_cases.jsonl").open(encoding="utf-8")]
# Seconds; long enough for honest algebra on a busy machine, short for the answers that never end.
SHORT = 2.0

pytestmark = pytest.mark.usefixtures("ended_workers")


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
        ("5", "5=x"),
        ("5", "2+3=5=x"),
        (r"m_{\max}=n^2-1", "(n-1)(n+1)"),
    ],
    "options": [
        ("C", "(C)"),
        ("C", r"\textbf{C}"),
        ("C", "C. 14"),
        (r"\textbf{(B)}\ 12", "B"),
        ("12", "(B) 12"),
        ("(B) 1/2", ".5"),
    ],
    "options with algebra": [(r"\textbf{(B)}\ \sqrt{8}", r"2\sqrt{2}"), (r"2\sqrt2", r"(B) \sqrt8")],
    "lists": [
        ("8 and 27", r"\{27, 8\}"),
        (r"1\pm\sqrt5", r"1-\sqrt5, 1+\sqrt5"),
        (r"x=\pm 7", r"7 \text{ or } -7"),
        (r"x=\pm 7", "x=-7, x=7"),
        ("-1, 1", r"\pm1\mp2"),
    ],
    "tuples": [
        ("(1,4)", "P(1,4)"),
        ("(1,4)", "(x,y)=(1,4)"),
        ("(1,2),(3,4)", r"\{(3,4),(1,2)\}"),
        ("1, 2", r"x \in \{1,2\}"),
        ("(1,4)", "y=4, x=1"),
        ("(4,1)", "y=4, 1"),
        ("(1,4)", "1, 4"),
        ("(0.5, 2)", r"\left(\frac12, 2\right)"),
        ("1, 4", "(1,4)"),
        ("(1,4)", "(1;4)"),
        ("[1,2,3]", "1, 2, 3"),
        (r"(\sqrt8, 1)", r"2\sqrt2, 1"),
        (r"\{\sqrt8\}", r"2\sqrt2"),
    ],
    "intervals": [
        (r"(-\infty,2)\cup(5,\infty)", r"x<2 \text{ or } x>5"),
        (r"(-\infty,2)\cup(5,\infty)", r"(5,\infty)\cup(-\infty,2)"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
        (r"(2,\infty)", r"\{x \in \mathbb{R} : x>2\}"),
        ("[0,1]", r"0 \leq x \leq 1"),
        (r"(-\infty,3)\cup(3,\infty)", r"x \neq 3"),
        (r"(-\infty,3)", r"{( - \infty, 3)}"),
        ("(2,5)", r"x>2 \text{ and } x<5"),
        (r"x \in (0,5)", "(0,5)"),
        (r"\{x : x>2\}", r"(2,\infty)"),
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
        (r"\ln x", r"\ln |x|"),
        ("1", r"\sin^2 x + \cos^2 x"),
        ("x^2+1", "(x+i)(x-i)"),
        (r"e^{ix}", r"\cos x + i\sin x"),
        (r"|x|i", r"\sqrt{x^2}i"),
        (r"\ln |x|", r"\ln x"),
    ],
    "decimals in algebra": [
        (r"0.333333333\pi", r"\frac{\pi}{3}"),
        (r"\frac{\pi}{3}", r"0.333333333\pi"),
        ("0.1x", r"\frac{x}{10}"),
        (r"\frac{x}{10}", "0.1x"),
        ("1.41421", r"\sqrt2"),
        (r"\sqrt2", "1.41421"),
        ("1.4142135", r"\sqrt2"),
        ("1.4142135623730951", r"\sqrt2"),
        ("1.41421356237309504880168872421", r"\sqrt2"),
        ("0.2", r"\frac{\sqrt4}{10}"),
        (r"14.1421\%", r"\frac{\sqrt2}{10}"),
        (r"14\%", r"\frac{7\sqrt4}{100}"),
        (r"14\%", r"7\sqrt4"),
        (r"\sqrt2", r"x=\sqrt2 \approx 1.41"),
        ("1.41421356", r"x \approx 1.41421356"),
        ("5", r"\approx 5"),
        (r"50\%", r"\frac{\sqrt4}{4}"),
    ],
    "words": [
        (r"\text{June 20}", "20th June"),
        ("no solution", "No solution."),
        ("3:45", r"3{:}45\text{ PM}"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\left[\begin{array}{cc}1&0\\0&1\end{array}\right]"),
        (r"\begin{pmatrix}1/2\\3\end{pmatrix}", r"\begin{bmatrix}0.5\\ 3\end{bmatrix}"),
        (r"\begin{pmatrix}1\\4\\\end{pmatrix}", r"\begin{pmatrix}1\\4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\4\end{pmatrix}", r"\begin{pmatrix}1&4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\4\end{pmatrix}", "(1,4)"),
        (r"\begin{pmatrix}1\\4\end{pmatrix}", "1, 4"),
        ("(1,4)", r"\begin{pmatrix}1\\4\end{pmatrix}"),
    ],
    "markup": [
        ("k=3", r"\text{k=3}"),
        ("13", r"\text{13 cm}"),
        ("150", r"{150^\circ}"),
        (r"\text{(E)}", r"x=\text{(E)}"),
    ],
    "bases": [
        ("52_8", "x=52_8"),
        ("52_8", "52"),
        ("52", "52_8"),
        ("2A_{16}", "2a_{16}"),
        (r"1011_{\text{two}}", "1011_2"),
    ],
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
    "huge": [
        ("10^{30}", "10^{30}+1"),
        (f"1{'0' * 40}", "10^{40}+1"),
        (r"\frac{12345678901234567890}{7}", r"\frac{12345678901234567891}{7}"),
    ],
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
        ("5", r"\approx"),
        (r"-\infty", r"\infty"),
        (r"x=\text{red}", r"x=\text{blue}"),
        ("3x", "3"),
        ("x=5", "y=5"),
        ("x^2+y^2=25", "25"),
        ("2x-3y+11=0", "0"),
        ("5", r"x \neq 5"),
        ("5", "x > 5"),
        ("x>5", "x=5"),
        ("2x-3y+11=0", "2x-3y+11"),
        (r"\infty", r"\infty+1"),
        ("x=1,y=2", "y=1,x=2"),
    ],
    "options": [
        ("(B) 12", "13"),
        ("C", "C, D"),
        ("C", "(C) or (D)"),
        ("B", r"\text{Both}"),
        ("a", "A"),
        ("E", r"\Delta E \gg kT"),
    ],
    "lists": [
        ("27", "8, 27"),
        ("8, 27", "27"),
        ("8, 27", "8, 27, 30"),
        ("7", r"\pm 7"),
        ("3", "2 or 3"),
        (r"x=\pm 7", r"y=\pm 7"),
        (r"x=\pm7, y=2", r"y=\pm7, y=2"),
    ],
    "tuples": [
        (r"\{1,2\}", r"\{1|2\}"),
        (r"\{1,2\}", r"\{1 \mid 2\}"),
        (r"\{1,2\}", r"\{1,3\}"),
        (r"\{1,2\}", r"\{1,2)"),
        ("[1,2,3]", "(1,2,3)"),
        ("(1,4)", "4, 1"),
        ("(1,4)", "y=1, x=4"),
        ("(1,4)", r"\{1,4\}"),
        (r"\{1,4\}", "(1,4)"),
    ],
    "intervals": [
        ("[1,2]", "(1,2)"),
        ("[1,2)", "[1,2]"),
        ("[1,2)", "1, 2"),
        ("x>2", r"x\ge2"),
        (r"x<2 \text{ or } x>5", "x<2"),
    ],
    "algebra": [
        ("x", "|x|"),
        (r"\sqrt{x^2}", "x"),
        (r"\sqrt{xy}", r"-\sqrt{x}\sqrt{y}"),
        (r"\sqrt{x^2y^2}", "xy"),
        (r"\lfloor x \rfloor", r"\lfloor x+0.01 \rfloor"),
        (r"\lfloor \frac{x^2}{1000} \rfloor", "0"),
        ("0", r"\lfloor \frac{x^2}{1000} \rfloor"),
        (r"\sqrt2", r"\frac{1414213562}{1000000000}"),
        (r"x\sqrt2", r"\frac{1414213562}{1000000000}x"),
        (r"\sqrt2", "1.4142139"),
        ("1.4142139", r"\sqrt2"),
        (r"\frac{\pi}{3}", r"0.3333\pi"),
        (r"13\%", r"\frac{7\sqrt4}{100}"),
        ("0.5", "i"),
        ("3+4i", "3-4i"),
        ("35", r"\frac{7\sqrt4}{40}"),
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
    "matrices": [
        (r"\begin{pmatrix}1\\-3\end{pmatrix}", "(-3,1)"),
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", "(1,0,0,1)"),
        (r"\begin{pmatrix}1&2&3\\4&5&6\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\\5&6\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2&3&4\end{pmatrix}"),
        ("1, 4", r"\begin{pmatrix}1\\4\end{pmatrix}"),
    ],
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


@pytest.mark.parametrize(
    "gold", ["", "  ", "proof", "null", None, r"\frac{1}{", "see [1", r"a solution with \boxed{}", r"\sqrt = 5"]
)
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
