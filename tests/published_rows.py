"""Rows in the shape of each published set, a stand-in for the Hub, and what a set is refused for."""

from __future__ import annotations

import json

import datasets
import pytest

from ta_grpo.benchmarks import BENCHMARKS, load_benchmark
from ta_grpo.errors import UserError

# Rows as each set publishes them, with contents of our own, and what becomes of them: (id, question, answer, extra).
PUBLISHED = {
    "math": (
        {
            "problem": "What is $1+2$?",
            "solution": "First $\\boxed{9}$ is wrong. So it is $\\boxed{\\frac{6}{2}}$.",
            "level": "Level 1",
            "type": "Algebra",
        },
        (
            "math/test/1",
            "What is $1+2$?",
            "\\frac{6}{2}",
            {
                "level": "Level 1",
                "type": "Algebra",
                "solution": "First $\\boxed{9}$ is wrong. So it is $\\boxed{\\frac{6}{2}}$.",
            },
        ),
    ),
    "math500": (
        {
            "problem": "Halve $3$.",
            "solution": "It is $\\boxed{1.5}$.",
            "answer": " 1.5",
            "subject": "Prealgebra",
            "level": 1,
            "unique_id": "test/prealgebra/0.json",
        },
        (
            "math500/test/prealgebra/0.json",
            "Halve $3$.",
            "1.5",
            {"solution": "It is $\\boxed{1.5}$.", "subject": "Prealgebra", "level": 1},
        ),
    ),
    "gsm8k": (
        {"question": "Ten pens at $108 each?", "answer": "Ten times 108 is <<10*108=1080>>1080.\n#### 1,080"},
        (
            "gsm8k/test/1",
            "Ten pens at $108 each?",
            "1080",
            {"solution": "Ten times 108 is <<10*108=1080>>1080.\n#### 1,080"},
        ),
    ),
    "amc": (
        {"id": 0, "problem": "Three cubed?", "answer": 27.0, "url": "https://example.org/0"},
        ("amc/1", "Three cubed?", "27", {"file_id": 0, "url": "https://example.org/0"}),
    ),
    "olympiadbench": (
        {
            "id": 17,
            "question": "Solve $x^2=1$.",
            "solution": ["Two roots."],
            "final_answer": ["$1$,$-1$"],
            "is_multiple_answer": True,
            "unit": "km",
            "answer_type": "Numerical",
            "error": "1e-1",
            "context": None,
            "subfield": "Algebra",
        },
        (
            "olympiadbench/17",
            "Solve $x^2=1$.",
            "1, -1",
            {
                "solution": ["Two roots."],
                "is_multiple_answer": True,
                "unit": "km",
                "answer_type": "Numerical",
                "error": "1e-1",
                "subfield": "Algebra",
            },
        ),
    ),
    "aime24": (
        {"id": 60, "problem": "Five squared?", "solution": "25.", "answer": "025", "url": "u", "year": "2024"},
        ("aime24/60", "Five squared?", "25", {"solution": "25.", "url": "u", "year": "2024"}),
    ),
    "aime25": (
        {"problem": "How many degrees are in a turn?", "answer": "360^\\circ"},
        ("aime25/1", "How many degrees are in a turn?", "360", {}),
    ),
    "minerva": (
        {"problem": "How fast is light?", "solution": "\\boxed{3.0e8} m/s", "type": "Physics", "idx": 0},
        (
            "minerva/1",
            "How fast is light?",
            "3.0e8",
            {"solution": "\\boxed{3.0e8} m/s", "type": "Physics", "idx": 0},
        ),
    ),
}


def gpqa_row(number=0, **changes):
    return {
        "Record ID": f"rec{number}",
        "Question": f"Which of these is number {number}?\n",
        "Correct Answer": "right\n",
        "Incorrect Answer 1": "wrong one",
        "Incorrect Answer 2": "wrong two",
        "Incorrect Answer 3": "wrong three",
        "Subdomain": "Counting",
    } | changes


def rows_of(name, count):
    """As many rows as wanted, each with an id of its own where the set has one."""
    if name == "gpqa":
        return [gpqa_row(number) for number in range(count)]
    row, _ = PUBLISHED[name]
    id_column = BENCHMARKS[name].columns.get("id")
    return [row] + [row | ({id_column: type(row[id_column])(1000 + n)} if id_column else {}) for n in range(1, count)]


class FakeHub:
    """Stands in for ``datasets.load_dataset``: records how it is called, gives rows or raises."""

    def __init__(self):
        self.calls = []
        self.rows = []
        self.error = None

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        if self.error:
            raise self.error
        return datasets.Dataset.from_list(self.rows)


def write_jsonl(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def refusal(spec, revision=None):
    with pytest.raises(UserError) as caught:
        load_benchmark(spec, revision)
    return str(caught.value)
