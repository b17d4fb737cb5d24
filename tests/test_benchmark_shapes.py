"""The shapes of published rows that need more than a column: GPQA's options, and answers in plain form."""

from __future__ import annotations

import csv
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from published_rows import gpqa_row, refusal, rows_of, write_jsonl
from ta_grpo.benchmarks import BENCHMARKS, load_benchmark
from ta_grpo.benchmarks.shapes import competition_integer, option_order, without_dollars, without_thousands_commas
from ta_grpo.verifier import verify

# GPQA


def test_gpqa_puts_the_options_into_the_question(hub):
    hub.rows = rows_of("gpqa", 198)
    questions = load_benchmark("gpqa")
    for number, question in enumerate(questions):
        stem, options = question.question.split("\n\n")
        assert stem == f"Which of these is number {number}?"
        assert [line[:4] for line in options.split("\n")] == ["(A) ", "(B) ", "(C) ", "(D) "]
        assert {line[4:] for line in options.split("\n")} == {"right", "wrong one", "wrong two", "wrong three"}
        assert f"({question.answer}) right" in options.split("\n")
        assert (question.id, dict(question.extra)) == (f"gpqa/rec{number}", {"Subdomain": "Counting"})
    assert verify(f"The right one is \\boxed{{{questions[0].answer}}}.", questions[0].answer).correct
    assert "letter" in questions.prompt_template


def test_gpqa_order_depends_on_the_id_alone(tmp_path):
    rows = [gpqa_row(number) for number in range(20)]
    forwards = load_benchmark(f"gpqa={write_jsonl(tmp_path / 'a.jsonl', *rows)}")
    backwards = load_benchmark(f"gpqa={write_jsonl(tmp_path / 'b.jsonl', *reversed(rows))}")
    assert {q.id: q.question for q in forwards} == {q.id: q.question for q in backwards}
    assert len({question.answer for question in forwards}) == 4


def test_gpqa_order_stays_as_it_is():
    # Published results rest on these: a change of the order must be a decision.
    assert [option_order(f"gpqa/rec{number}") for number in range(3)] == [[2, 0, 1, 3], [2, 1, 0, 3], [1, 0, 2, 3]]


def test_gpqa_order_is_uniform_over_ids():
    orders = Counter(tuple(option_order(f"question {number}")) for number in range(24_000))
    assert len(orders) == 24
    assert chisquare(list(orders.values())).pvalue > 0.001


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"Incorrect Answer 2": None}, "Incorrect Answer 2: must be text; it is missing"),
        ({"Incorrect Answer 3": " \n"}, "Incorrect Answer 3: is empty"),
        ({"Correct Answer": ["a"]}, "Correct Answer: must be text; got a list"),
        ({"Question": None}, "Question: must be text; it is missing"),
    ],
)
def test_gpqa_refuses_incomplete_rows(tmp_path, changes, told):
    path = write_jsonl(tmp_path / "gpqa.jsonl", gpqa_row(0), gpqa_row(1, **changes))
    assert f"{path}: 1 problem\n  line 2: {told}" in refusal(f"gpqa={path}")


def test_gpqa_reads_the_published_csv(tmp_path):
    path = tmp_path / "gpqa_diamond.csv"
    row = gpqa_row(0, **{"Correct Answer": "5", "Incorrect Answer 1": "5 m, 6 m"})
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    question = load_benchmark(f"gpqa={path}")[0]
    assert f"({question.answer}) 5\n" in f"{question.question}\n"
    assert ") 5 m, 6 m\n" in f"{question.question}\n"


# Answers


@pytest.mark.parametrize(
    ("clean", "answer", "plain"),
    [
        (competition_integer, "025", "25"),
        (competition_integer, "000", "0"),
        (competition_integer, "100", "100"),
        (competition_integer, "27.0", "27"),
        (competition_integer, "336^{\\circ}", "336"),
        (competition_integer, " -3.5 ", "-3.5"),
        (competition_integer, "27.5", "27.5"),
        (without_thousands_commas, "1,234,567.5", "1234567.5"),
        (without_thousands_commas, "-1,080", "-1080"),
        (without_thousands_commas, "1,2", "1,2"),
        (without_thousands_commas, "12", "12"),
        (without_dollars, "$\\frac{1}{2 n+2}$", "\\frac{1}{2 n+2}"),
        (without_dollars, "$2n$.", "2n"),
        (without_dollars, "$8$, $4$", "8, 4"),
        (without_dollars, "1,3,5", "1,3,5"),
        (without_dollars, "$a$, where $b$ is odd", "$a$, where $b$ is odd"),
        (without_dollars, "$221,$8$", "$221,$8$"),
    ],
)
def test_answers_in_a_plain_form(clean, answer, plain):
    assert clean(answer) == plain


@given(st.text("0123456789.,$- ^{}\\circ"), st.sampled_from([b.clean for b in BENCHMARKS.values()]))
def test_a_plain_form_stays(answer, clean):
    assert clean(clean(answer)) == clean(answer)
