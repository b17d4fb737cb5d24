"""What the verifier finds in a text, and how it compares answers: the functions of the workers, in this process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growth import assert_near_linear
from ta_grpo.verifier import extract_answer
from ta_grpo.verifier.compare import compare
from ta_grpo.verifier.judge import decide_plainly, is_sentinel
from test_verifier import CASES, RIGHT, WRONG


def judged(completion: str, gold: str) -> str:
    answer = extract_answer(completion)
    return "no answer" if answer is None else compare(gold, answer)


# ---- Cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(RIGHT | WRONG))
def test_what_is_decided_without_a_worker_is_what_the_worker_says(kind: str) -> None:
    for expected, pairs in ((True, RIGHT.get(kind, [])), (False, WRONG.get(kind, []))):
        for gold, answer in pairs:
            assert decide_plainly(gold, answer) in (None, expected), (gold, answer)
            assert compare(gold, answer) == ("right" if expected else "wrong"), (gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("C", "(C)"),
        ("3:45 PM", "3:45 PM"),
        ("no solution", "No solution."),
        ("52_8", "52"),
        ("2:3", "4:6"),
        ("x=2:3", "2:3"),
        (r"\infty", r"+\infty"),
        (r"\emptyset", r"\emptyset"),
        ("5", "x=5"),
        ("x=2+3=5", "5"),
        (r"x=\text{red}", r"\text{red}"),
        (r"35\%", "0.35"),
        ("(1,4)", "1, 4"),
        ("1, 2", r"x \in \{1,2\}"),
        (r"(\text{red},4)", r"(\text{red},4)"),
    ],
)
def test_no_worker_is_asked_about(gold: str, answer: str) -> None:
    assert decide_plainly(gold, answer) is True


@pytest.mark.parametrize("gold", ["", " None. ", "$n/a$", "Proof.", "not found"])
def test_what_stands_for_no_answer(gold: str) -> None:
    assert is_sentinel(gold)


@pytest.mark.parametrize("gold", [r"\frac{1}{", r"\sqrt = 5", "x>5=", "see [1"])
def test_a_reference_that_cannot_be_read_is_no_verdict(gold: str) -> None:
    assert compare(gold, "5") == compare(gold, gold) == "unusable_gold"


@pytest.mark.parametrize("gold", ["X", "0", r"\text{none of these}"])
def test_what_is_an_answer(gold: str) -> None:
    assert not is_sentinel(gold)


# Those that hang need a worker and its deadline.
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES if "hang" not in case["id"]])
def test_case_from_the_file(case: dict) -> None:
    assert (judged(case["response"], case["gold"]) == "right") == case["expected"]


# ---- Where the answer is --------------------------------------------------------------------------------------------


@given(st.text(max_size=200))
def test_no_text_makes_the_extraction_fail(text: str) -> None:
    extract_answer(text)
    assert extract_answer(text + r" \boxed{5}") == ("5" if "<think>" not in text else None)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\fbox{12}", "12"),
        (r"\boxed {12}", "12"),
        (r"\boxed 5.", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"first \boxed{8}, no: \boxed{27}", "27"),
        (r"$\boxed{8}$ and $\boxed{27}$", "8, 27"),
        (r"either $\boxed{8}$ or $\boxed{27}$", "8, 27"),
        (r"$x=\boxed{8}$, $y=\boxed{27}$", "8, 27"),
        (r"\boxed{5}. Thus \boxed{5}", "5"),
        (r"\boxed{5} and so on \boxed{\frac{1", "5"),
        (r"\boxed{5} as a \boxed{}", "5"),
        (r"\boxed{}", None),
        (r"\boxed{5", None),
        (r"<think>\boxed{5}</think> It is \boxed{6}", "6"),
        (r"<think>\boxed{5}</think> Done.", None),
        (r"<think>maybe \boxed{5}", None),
        (r"thought \boxed{5}</think> \boxed{6}", "6"),
        ("<answer> 12 </answer>", "12"),
        ("48 + 24 = 72\n#### 72", "72"),
        ("**Final Answer:** 12", "12"),
        ("The final answer is $\\frac{1}{2}$.", r"\frac{1}{2}"),
        ("The answer is 3.5.", "3.5"),
        ("The answer is 12. I hope it is correct.", "12"),
        ("Answer:\n\\[ x^2 \\]", "x^2"),
        ("**Answer: D**", "D"),
        ("$\\boxed{\\Delta E}$\n\n**Answer: D**", "D"),
        ("$\\boxed{\\Delta E}$\n\nAnswer: (D)", "D"),
        ("Answer: D\n$\\boxed{\\Delta E}$", r"\Delta E"),
        ("$\\boxed{\\text{B}}$\n\nAnswer: D", r"\text{B}"),
        ("$\\boxed{12}$\n\nAnswer: B", "12"),
        ("} so \\boxed 5.", "5"),
        ("The answer is 5\nso I am done", "5"),
        ("The answer is X.", "X"),
        ("The answer is ", None),
        ("There are 10 of them, 3 are blue.", None),
        ("", None),
    ],
)
def test_extraction(completion: str, answer: str | None) -> None:
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "gold", "right"),
    [
        ("The answer is $\\frac{3}{4}$, which is 0.75.", "3/4", True),
        ("So the final answer is **7 apples**.", "7", True),
        ("The correct answer is option B.", "B", True),
        ("The answer is $1,080.", "1080", True),
        ("My first answer: 5. Final answer: 6", "6", True),
        ("My first answer: 5. Final answer: 6", "5", False),
        ("The answer is 5 or 6.", "5", False),
        ("The answer is not 5.", "5", False),
        (r"\boxed{5} \boxed{6} \boxed{7}", "7", False),
        (r"\boxed{5}, or maybe \boxed{6}", "6", False),
        (r"Case 1: \boxed{5}. Case 2: \boxed{6}.", "6", True),
        (r"\boxed{5 \text{ or } 5}", "5", False),
        (r"\boxed{5 \text{ but it could as well be six}}", "5", False),
        (r"\boxed{5!}", "120", True),
        (r"\boxed{5}!", "5", True),
        (r"\boxed{{\color{blue}\mathbf{5}}}", "5", True),
        (r"\boxed{DNE}", r"\text{DNE}", True),
    ],
)
def test_whole_completions(completion: str, gold: str, right: bool) -> None:
    assert judged(completion, gold) == ("right" if right else "wrong")


@pytest.mark.parametrize("piece", [r"\boxed{", "\n", "answer ", "<answer>"])
def test_extraction_takes_linear_time(piece: str) -> None:
    def extract(size: int) -> None:
        text = piece * (size // len(piece))
        extract_answer(text)
        extract_answer(text + r"\boxed{5}" + text)

    assert_near_linear(extract, 400_000)
