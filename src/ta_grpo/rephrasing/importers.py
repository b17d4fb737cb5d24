"""Rephrased files of other layouts as questions: one row a rephrasing, and not one row a question.

``math-a9-u``: the layout of the paper's training set: ``index`` numbers the question, ``sub_index`` its phrasings, the
original being the lowest; rows with an empty question only fill up a batch. ``metamath``: MetaMathQA's: ``query``,
``original_question``, ``response``, ``type``; only the types that end in ``_Rephrased`` keep the problem, the others
turn it round or only answer it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..question_files import Row, Table, iter_jsonl_rows, read_file
from ..question_rows import is_sentinel
from ..questions import Question, load_questions
from ..verifier import extract_answer, verify_many

QUESTIONS, MATH_A9_U, METAMATH = "questions", "math-a9-u", "metamath"
_COLUMNS = {
    MATH_A9_U: ("index", "sub_index", "question", "answer"),
    METAMATH: ("query", "original_question", "response", "type"),
}
LAYOUTS = (QUESTIONS, *_COLUMNS)
_REPHRASED = "_Rephrased"
_ANSWER_IS = re.compile(r"(?:.|\n)*The answer is:?\s*(?P<answer>\S.*?)\s*\Z", re.DOTALL)


@dataclass
class Imported:
    """Questions with their rephrasings; rows that are none, by reason; and what is wrong with the file."""

    questions: list[Question]
    layout: str = QUESTIONS
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def load_rephrased(
    source: str, layout: str | None = None, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read a rephrased file of any layout.

    Args:
        source: the file; for the layout ``questions``, a named set as well.
        layout: one of ``LAYOUTS``; None: by the columns of the file.
        columns: for the layout ``questions``, as in ``load_questions``.
        limit: the first questions only.
        limit: the first questions only.

    Raises:
        UserError: an unknown layout, a file that is not of it or holds no question, or bad rows.
    """
    if layout is not None and layout not in LAYOUTS:
        raise UserError(f"--layout {layout!r} is not a choice; use {', '.join(LAYOUTS)}")
    path = Path(source)
    if layout == QUESTIONS or columns or not path.is_file():
        if layout not in (None, QUESTIONS):
            raise UserError(f"--layout {layout}: name a file of it, and leave --columns out; got {source}")
        return _plain(source, columns, limit)
    if limit is not None and layout is None and _is_plain(path):
        return _plain(source, columns, limit)
    table = read_file(path)
    there = set(table.columns)
    layout = layout or next((name for name, needed in _COLUMNS.items() if there >= set(needed)), QUESTIONS)
    if layout == QUESTIONS:
        return _plain(source, columns, limit)
    if missing := [name for name in _COLUMNS[layout] if name not in there]:
        raise UserError(
            f"{path}: --layout {layout} needs the column {missing[0]!r}; it has: {', '.join(table.columns)}"
        )
    if bad := [f"{row.where}: {row.problem}" for row in table.rows if row.problem]:
        raise UserError(f"{path}: " + "\n  ".join(bad[:20]))
    imported = (_math_a9_u if layout == MATH_A9_U else _metamath)(table, path.stem)
    if not imported.questions:
        told = "; ".join([*imported.problems[:5], *(f"{reason}: {n}" for reason, n in imported.left_out.items())])
        raise UserError(f"{path}: holds no question with an answer ({told})")
    imported.questions = imported.questions[:limit]
    return imported


def _is_plain(path: Path) -> bool:
    """Whether the first row of a .jsonl file, which alone is read, is of the layout ``questions``."""
    if path.suffix.lower() != ".jsonl":
        return False
    first = next(iter_jsonl_rows(path), None)
    return first is not None and not any(first.values.keys() >= set(needed) for needed in _COLUMNS.values())


def _plain(source: str, columns: Mapping[str, str] | None, limit: int | None) -> Imported:
    loaded = load_questions(source, columns, limit)
    return Imported(list(loaded), QUESTIONS, Counter(loaded.dropped))


def _math_a9_u(table: Table, stem: str) -> Imported:
    imported = Imported([], MATH_A9_U)
    groups: dict[str, list[tuple[int, Row]]] = {}
    for row in table.rows:
        if not _text(row, "question").strip():
            imported.left_out["no question (padding)"] += 1
            continue
        number = row.values.get("sub_index")
        if isinstance(number, str) and number.isdecimal():
            number = int(number)
        if not isinstance(number, int) or row.values.get("index") is None:
            imported.problems.append(f"{row.where}: index or sub_index is no number")
            continue
        groups.setdefault(str(row.values["index"]), []).append((number, row))
    lowest = min((number for rows in groups.values() for number, _ in rows), default=0)
    for name, numbered in groups.items():
        rows = [row for _, row in sorted(numbered, key=lambda pair: pair[0])]
        numbers = [number for number, _ in numbered]
        if min(numbers) != lowest:
            imported.problems.append(f"question {name}: the original (sub_index {lowest}) is missing")
        elif len(set(numbers)) < len(numbers):
            imported.problems.append(f"question {name}: a sub_index occurs twice")
        else:
            answers = [_text(row, "answer") for row in rows]
            texts = [_text(row, "question") for row in rows]
            _add(imported, f"{stem}/{name}", texts[0], texts[1:], answers)
    return imported


def _metamath(table: Table, stem: str) -> Imported:
    imported = Imported([], METAMATH)
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        kind = _text(row, "type")
        if not kind.endswith(_REPHRASED):
            imported.left_out[f"type {kind or 'not given'}"] += 1
        elif not _text(row, "query").strip() or not _text(row, "original_question").strip():
            imported.problems.append(f"{row.where}: query or original_question is empty")
        else:
            groups.setdefault(_text(row, "original_question"), []).append(row)
    for number, (original, rows) in enumerate(groups.items(), 1):
        texts = list(dict.fromkeys(_text(row, "query") for row in rows))
        if len(texts) < len(rows):  # one query with several responses
            imported.left_out["the same query once more"] += len(rows) - len(texts)
        _add(imported, f"{stem}/{number}", original, texts, [_final_answer(_text(row, "response")) for row in rows])
    return imported


def _add(imported: Imported, name: str, original: str, texts: Sequence[str], answers: Sequence[str]) -> None:
    """One question; its rows must agree on the answer."""
    given = list(dict.fromkeys(answer.strip() for answer in answers if not is_sentinel(answer)))
    if not given:
        imported.left_out["no answer"] += 1
        return
    verdicts = verify_many([(f"\\boxed{{{other}}}", given[0]) for other in given[1:]])
    if wrong := [other for other, verdict in zip(given[1:], verdicts, strict=True) if not verdict.correct]:
        imported.problems.append(f"question {name}: its rows answer {given[0]:.40} and {wrong[0]:.40}")
    imported.questions.append(Question(name, original, given[0], tuple(texts)))


def _final_answer(response: str) -> str:
    found = _ANSWER_IS.match(response)
    return found["answer"] if found else extract_answer(response) or ""


def _text(row: Row, column: str) -> str:
    value: Any = row.values.get(column)
    return "" if value is None else str(value)
