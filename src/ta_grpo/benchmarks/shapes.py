r"""From a row as a set publishes it to a row of ours (``question``, ``answer``, ``id``, and what travels along).

A converter takes a row whose columns were renamed already and returns it with the final answer as text.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from typing import Any

from ..question_files import kind_of
from ..verifier import extract_answer

LETTERS = "ABCD"
WRONG_OPTIONS = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
HASHES = "####"


class ShapeError(Exception):
    """A row is not of the published shape; the message says which field, and why."""


def rename(values: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with our names for its columns; a column that bears one of our names otherwise becomes ``file_NAME``.

    Args:
        values: a row by its published columns.
        columns: our field -> the column that holds it; a column that is not there is passed over.
    """
    moved = {ours: values[theirs] for ours, theirs in columns.items() if theirs in values}
    rest = {name: value for name, value in values.items() if name not in columns.values()}
    return {f"file_{name}" if name in ("id", "question", "answer") else name: rest[name] for name in rest} | moved


# Converters.


def as_published(row: dict[str, Any]) -> dict[str, Any]:
    """The answer stands in a column of its own."""
    return row


def boxed_solution(row: dict[str, Any]) -> dict[str, Any]:
    r"""MATH, Minerva: the answer is in the last ``\boxed`` of a worked solution, which is kept as ``solution``.

    Only the last: two boxes side by side are two forms of one answer here (``2.5`` or ``\frac{5}{2}``). A solution
    without a box gives the empty answer, so that the row is dropped and told as one without an answer.
    """
    solution = _text(row, "answer", "the solution")
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    answer = extract_answer(solution[start:]) if start >= 0 else None
    return row | {"solution": solution, "answer": answer or ""}


def hashed_solution(row: dict[str, Any]) -> dict[str, Any]:
    """GSM8K: the answer follows ``####`` at the end of a worked solution, which is kept as ``solution``.

    Raises:
        ShapeError: no ``####``, or nothing after it.
    """
    solution = _text(row, "answer", "the solution")
    _, hashes, answer = solution.rpartition(HASHES)
    if not hashes or not answer.strip():
        raise ShapeError(f"answer: a worked solution must end in {HASHES} and the final answer; got {solution[-60:]!r}")
    return row | {"solution": solution, "answer": answer}


def listed_answers(row: dict[str, Any]) -> dict[str, Any]:
    """OlympiadBench: the answers are a list, most often of one text; where a question has a context, it comes first.

    Raises:
        ShapeError: not a list of texts.
    """
    answers = row["answer"] if isinstance(row["answer"], list | tuple) else [row["answer"]]
    for answer in answers:
        if not isinstance(answer, str):
            raise ShapeError(f"final_answer: must be a list of texts; it holds {kind_of(answer)}")
    context = row.get("context")
    question = row.get("question")
    if isinstance(context, str) and context.strip() and isinstance(question, str):
        question = f"{context.strip()}\n\n{question}"
    return row | {"question": question, "answer": ", ".join(answers)}


def shuffled_options(row: dict[str, Any]) -> dict[str, Any]:
    """GPQA: the question with its options (A) to (D), in an order made from the row's id; the answer is a letter.

    The order depends on nothing but the id, so all samples of all runs see the same one.

    Raises:
        ShapeError: an option or the question that is not there.
    """
    options = [_option(row, "answer", "Correct Answer"), *(_option(row, name, name) for name in WRONG_OPTIONS)]
    order = option_order(row["id"])
    lines = [f"({letter}) {options[index]}" for letter, index in zip(LETTERS, order, strict=True)]
    others = {name: value for name, value in row.items() if name not in WRONG_OPTIONS}
    question = _text(row, "question", "Question").strip()
    return others | {"question": "\n\n".join([question, "\n".join(lines)]), "answer": LETTERS[order.index(0)]}


def option_order(question_id: str) -> list[int]:
    """Which option stands at (A), (B), (C), (D): a permutation of 0 to 3, uniform over ids; 0 is the right one.

    Drawn by Python's Mersenne Twister from a seed of the id's SHA-256, the same on every machine and in every process.
    """
    generator = random.Random(hashlib.sha256(question_id.encode("utf-8")).digest())
    # random() keeps its sequence across Python versions, which shuffle() does not promise.
    keys = [generator.random() for _ in LETTERS]
    return sorted(range(len(LETTERS)), key=keys.__getitem__)


def _option(row: Mapping[str, Any], name: str, told: str) -> str:
    value = row.get(name)
    # A CSV cell that is a number is read as one.
    is_number = isinstance(value, int | float)
    text = json.dumps(value) if is_number else _text(row, name, told).strip()
    if not text:
        raise ShapeError(f"{told}: is empty")
    return text


def _text(row: Mapping[str, Any], name: str, told: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ShapeError(f"{told}: must be text; " + ("it is missing" if value is None else f"got {kind_of(value)}"))
    return value


# Answers as a set writes them, in either shape of row. What does not look as expected is left as it is.


def plain_answer(answer: str) -> str:
    """Without outer white space."""
    return answer.strip()


def competition_integer(answer: str) -> str:
    r"""AMC, AIME: ``27.0`` is 27, ``025`` is 25, ``336^\circ`` is 336."""
    found = re.fullmatch(r"\s*0*(?P<digits>\d+)(?:\.0*)?\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\}))?\s*", answer)
    return found["digits"] if found else answer.strip()


def without_thousands_commas(answer: str) -> str:
    """GSM8K: ``1,080`` is 1080."""
    stripped = answer.strip()
    grouped = re.fullmatch(r"-?\$?\d{1,3}(?:,\d{3})+(?:\.\d+)?", stripped)
    return stripped.replace(",", "") if grouped else stripped


def without_dollars(answer: str) -> str:
    """OlympiadBench: ``$2n$`` is 2n, also with a full stop after it; ``$69$,$84$`` is ``69, 84``.

    Dollars between which there are words stay, as do those that do not pair up.
    """
    stripped = answer.strip()
    stripped = stripped[:-1] if stripped.endswith("$.") else stripped
    parts = re.fullmatch(r"\$[^$]+\$(?:\s*,\s*\$[^$]+\$)*", stripped)
    return ", ".join(part.strip() for part in re.findall(r"\$([^$]+)\$", stripped)) if parts else stripped
