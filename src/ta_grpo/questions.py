"""Questions: the record, reading and writing question files, and the prompt made of a question.

A file that does not hold what it should is refused as a whole, with every bad row named at once. Nothing is repaired
or left out in silence; rows without a final answer (``SENTINEL_ANSWERS``) are the one exception that is dropped, and
that is counted and logged.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, overload

from .errors import UserError
from .question_files import (
    FIELDS,
    SUFFIXES,
    Row,
    Table,
    iter_jsonl_rows,
    read_file,
    read_rows,
    suffix_problem,
    write_file,
)
from .question_rows import Problems, is_sentinel, parse_row

logger = logging.getLogger(__name__)

PLACEHOLDER = "{question}"
DEFAULT_PROMPT_TEMPLATE = (
    "Solve the problem below. Reason step by step, then give your final answer inside \\boxed{}.\n\n" + PLACEHOLDER
)

ENTRY_POINT_GROUP = "ta_grpo.question_sets"


@dataclass(frozen=True)
class Question:
    """One question with a checkable final answer.

    ``answer`` is LaTeX or plain text. ``rephrasings`` have the same answer; they may be empty. ``extra`` holds the
    columns of the file that are not ours, among them ``rephrasing_info``, a list parallel to ``rephrasings``.
    """

    id: str
    question: str
    answer: str
    rephrasings: tuple[str, ...] = ()
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


class QuestionSet(Sequence[Question]):
    """Questions in order, with where they come from and how they are asked; a slice is a QuestionSet too.

    ``dropped`` counts the rows left out at load, by reason. ``prompt_template`` holds ``{question}`` once.
    """

    def __init__(
        self,
        questions: Iterable[Question],
        name: str = "",
        path: Path | None = None,
        dropped: Mapping[str, int] | None = None,
        prompt_template: str | None = None,
    ) -> None:
        self._questions = tuple(questions)
        self.name = name
        self.path = path
        self.dropped = dict(dropped or {})
        self.prompt_template = DEFAULT_PROMPT_TEMPLATE if prompt_template is None else prompt_template
        check_prompt_template(self.prompt_template)

    def __len__(self) -> int:
        return len(self._questions)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> QuestionSet: ...
    def __getitem__(self, index: int | slice) -> Question | QuestionSet:
        if isinstance(index, slice):
            return self.with_questions(self._questions[index])
        return self._questions[index]

    def with_questions(self, questions: Iterable[Question]) -> QuestionSet:
        """The same set with these questions."""
        return QuestionSet(questions, self.name, self.path, self.dropped, self.prompt_template)

    def __repr__(self) -> str:
        return f"QuestionSet({len(self)} questions, name={self.name!r})"


# The prompt.


def check_prompt_template(template: str) -> None:
    """Refuse a template that does not hold ``{question}`` exactly once.

    Raises:
        UserError: with the template.
    """
    count = template.count(PLACEHOLDER)
    if count != 1:
        raise UserError(f"prompt template {template!r:.200} holds {PLACEHOLDER} {count} times; it must hold it once")


def question_prompt(text: str, template: str, conversational: bool) -> str | list[dict[str, str]]:
    """The prompt that asks ``text``: plain text, or one user message.

    ``{question}`` is replaced literally, so braces elsewhere in template or text stay as they are.
    """
    prompt = template.replace(PLACEHOLDER, text)
    return [{"role": "user", "content": prompt}] if conversational else prompt


def as_train_rows(questions: Iterable[Question], template: str, conversational: bool) -> list[dict[str, Any]]:
    """Rows for a TRL trainer: ``id, prompt, rephrasings, answer``; rephrasings are prompts of the prompt's type.

    Raises:
        UserError: if the template does not hold ``{question}`` once.
    """
    check_prompt_template(template)
    return [
        {
            "id": question.id,
            "prompt": question_prompt(question.question, template, conversational),
            "rephrasings": [question_prompt(text, template, conversational) for text in question.rephrasings],
            "answer": question.answer,
        }
        for question in questions
    ]


# Reading.


def load_questions(source: Any, columns: Mapping[str, str] | None = None, limit: int | None = None) -> QuestionSet:
    """Read and check questions.

    A row has ``question`` and ``answer`` (text or a number), and may have ``id`` (default: ``NAME/ROW``, NAME being
    the file's name without suffix), ``rephrasings`` (a list; in CSV, its JSON text) and ``source``. Other columns
    become ``extra``. In Parquet and CSV an empty cell is an absent one, and a CSV cell of another column that is JSON
    is read as JSON. Rows whose answer is one of ``SENTINEL_ANSWERS`` are dropped, counted in ``dropped`` and logged.

    Refused in a text: control characters. Most often they are LaTeX that JSON has eaten: ``"\\frac"`` with one
    backslash is a form feed and "rac". Tabs and line feeds are fine, unless the letters after one complete a LaTeX
    command (``\\times``, ``\\neq``); so is a carriage return that ends a line or the text.

    Args:
        source: a file (.jsonl, .json, .parquet, .csv), a ``datasets.Dataset``, a list of dicts, or the name of a set
            (``NAME`` or ``NAME/SPLIT``, the split being "train" by default). A file of that name wins over a set.
        columns: our field -> the column that holds it, for example ``{"question": "problem"}``. A column of the file
            that thereby loses its name to another one travels along as ``file_NAME``.
        limit: the first questions only; of a .jsonl file, no more than those are read.

    Raises:
        UserError: no such file or set, a file that cannot be read, a column that is not there, no question left; or
            bad rows, all of them in one message.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            return _named_set(str(source), columns)[:limit]
        if limit is not None and path.suffix.lower() == ".jsonl":
            left_out: dict[str, str] = {}
            first = list(iter_questions(path, columns, limit=limit, dropped=left_out))
            return QuestionSet(first, name=path.stem, path=path, dropped=Counter(left_out.values()))
        table, origin, stem = read_file(path), str(path), path.stem
    else:
        path, origin, stem = None, "questions", "questions"
        table = read_rows(source)
    if not table.rows:
        raise UserError(f"{origin}: holds no questions")
    questions, dropped = parse_table(_rename_columns(table, columns or {}, origin), origin, stem)
    return QuestionSet(questions[:limit], name=stem if path else "", path=path, dropped=dropped)


def iter_questions(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    report: bool = True,
    limit: int | None = None,
    dropped: dict[str, str] | None = None,
) -> Iterator[Question]:
    """The questions of a .jsonl file one by one, read and checked as ``load_questions`` does, in flat memory.

    Of all rows, only a number each (the hash of its id) stays in memory. The first bad row ends the questions; the
    error comes when the whole file has been read, so that it names all bad rows.

    Args:
        path: of the file.
        columns: as in ``load_questions``.
        report: log the rows that have no answer.
        limit: questions, at least 1, after which nothing more is read.
        dropped: is filled with the rows that have no answer: where -> why.

    Raises:
        UserError: as ``load_questions``.
    """
    path, columns = Path(path), columns or {}
    dropped = {} if dropped is None else dropped
    problems = Problems(str(path))
    names: dict[str, None] = {}
    ids: set[int] = set()
    number, taken, sample = 0, 0, Row("", {}, "none could be read")
    for number, row in enumerate(iter_jsonl_rows(path), 1):
        names |= dict.fromkeys(row.values)
        if row.problem:
            problems.add(row.where, "", row.problem)
            continue
        sample = sample if not sample.problem else row
        fields = parse_row(row._replace(values=_rename(row.values, columns)), f"{path.stem}/{number}", problems)
        if fields is None:
            continue
        question = Question(**fields)
        if hash(question.id) in ids:
            problems.add(row.where, "id", f"{question.id!r} is the id of an earlier row too")
        ids.add(hash(question.id))
        if is_sentinel(question.answer):
            dropped[row.where] = _why_dropped(question.answer)
        elif not problems.found:
            yield question
            taken += 1
            if taken == limit:
                break
    if not number:
        raise UserError(f"{path}: holds no questions")
    _rename_columns(Table(list(names), [sample]), columns, str(path))  # for what it refuses
    problems.raise_if_any()
    if dropped and report:
        _report_dropped(dropped, Counter(dropped.values()), number, str(path))


def question_set_names() -> list[str]:
    """Names of the sets that ``load_questions`` knows: entry points of the group ``ta_grpo.question_sets``."""
    return sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names)


def _named_set(source: str, columns: Mapping[str, str] | None) -> QuestionSet:
    name, _, split = source.partition("/")
    found = metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        known = question_set_names()
        near = difflib.get_close_matches(name, known, n=1)
        nearest = f"; did you mean {near[0]}?" if near else ""
        sets = f"the question sets are: {', '.join(known)}" if known else "no question sets are installed"
        problem = f"{source} is a folder" if Path(source).is_dir() else f"there is no file {source}"
        raise UserError(f"{problem}, and no question set of that name ({sets}){nearest}")
    if columns:
        raise UserError(f"{source} is a question set, not a file: leave out the column names")
    questions = next(iter(found)).load()(split or "train")
    return questions if isinstance(questions, QuestionSet) else QuestionSet(questions, name=source)


def _rename_columns(table: Table, columns: Mapping[str, str], origin: str) -> Table:
    if unknown := [name for name in columns if name not in FIELDS]:
        raise UserError(f"columns: {unknown[0]!r} is no field of a question; the fields are {', '.join(FIELDS)}")
    readable = any(not row.problem for row in table.rows)
    there = f"the columns are: {', '.join(map(str, table.columns))}"
    for ours, theirs in columns.items():
        if readable and theirs not in table.columns:
            near = difflib.get_close_matches(theirs, [str(column) for column in table.columns], n=1)
            nearest = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{origin}: no column {theirs!r} to take {ours!r} from ({there}){nearest}")
    for needed in ("question", "answer"):
        if readable and needed not in columns and needed not in table.columns:
            raise UserError(
                f"{origin}: no column {needed!r} ({there}); name the one that holds it: columns={{{needed!r}: ...}}"
            )
    renamed = [row._replace(values=_rename(row.values, columns)) for row in table.rows]
    return Table(table.columns, renamed)


def _rename(values: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    if not columns:
        return values
    moved = {ours: values[theirs] for ours, theirs in columns.items() if theirs in values}
    kept = {name: value for name, value in values.items() if name not in columns.values() or name in FIELDS}
    for name in columns:
        if name in kept:
            lost_its_name = kept.pop(name)
            if name not in columns.values():
                kept[f"file_{name}"] = lost_its_name
    return kept | moved


def parse_table(table: Table, origin: str, stem: str) -> tuple[list[Question], Counter[str]]:
    """The questions of a table with our column names, and how many rows were dropped for which reason.

    Args:
        table: rows as read.
        origin: the file or set, for errors.
        stem: a row without an id gets ``stem/ROW``.

    Raises:
        UserError: naming every bad row.
    """
    problems = Problems(origin)
    questions: list[Question] = []
    dropped: dict[str, str] = {}
    first_with_id: dict[str, str] = {}
    for number, row in enumerate(table.rows, 1):
        if row.problem:
            problems.add(row.where, "", row.problem)
            continue
        fields = parse_row(row, f"{stem}/{number}", problems)
        if fields is None:
            continue
        question = Question(**fields)
        if question.id in first_with_id:
            problems.add(row.where, "id", f"{question.id!r} is the id of {first_with_id[question.id]} too")
        first_with_id.setdefault(question.id, row.where)
        if is_sentinel(question.answer):
            dropped[row.where] = _why_dropped(question.answer)
        else:
            questions.append(question)
    problems.raise_if_any()
    reasons = Counter(dropped.values())
    if dropped:
        _report_dropped(dropped, reasons, len(table.rows), origin)
    return questions, reasons


def _why_dropped(answer: str) -> str:
    return f"placeholder answer {answer.strip()!r}" if answer.strip() else "no answer"


def _report_dropped(dropped: Mapping[str, str], reasons: Mapping[str, int], total: int, origin: str) -> None:
    told = "; ".join(f"{reason}: {count}" for reason, count in reasons.items())
    if len(dropped) == total:
        raise UserError(
            f"{origin}: none of its {total} rows has a final answer ({told}); is 'answer' the right column?"
        )
    first = ", ".join(list(dropped)[:5]) + (", …" if len(dropped) > 5 else "")
    logger.warning(
        "%s: %d of %d rows have no final answer and are left out (%s): %s", origin, len(dropped), total, told, first
    )


# Writing.


def save_questions(questions: Iterable[Question], path: str | os.PathLike[str]) -> None:
    """Write questions to a .jsonl, .json, .parquet or .csv file that ``load_questions`` reads back exactly.

    The file is replaced in one step. In Parquet, an extra column that Arrow cannot hold as it is becomes JSON text,
    marked so in the column's metadata.

    Raises:
        UserError: an unknown suffix, no questions, or questions that ``load_questions`` would refuse or drop.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(suffix_problem(path))
    questions = list(questions)
    if not questions:
        raise UserError(f"{path}: there are no questions to write")
    problems = Problems(f"{path}: not written")
    for question in questions:
        _check_saveable(question, problems)
    for question_id, count in Counter(question.id for question in questions).items():
        if count > 1:
            problems.add(f"question {question_id!r}", "id", f"{count} questions have it")
    problems.raise_if_any()
    write_file(path, [question_record(question) for question in questions])


def question_record(question: Question) -> dict[str, Any]:
    """The question as a line of a JSONL file holds it."""
    ours = {name: getattr(question, name) for name in FIELDS}
    return ours | {"rephrasings": list(question.rephrasings)} | dict(question.extra)


def _check_saveable(question: Question, problems: Problems) -> None:
    where = f"question {question.id!r:.80}"
    for name, value in question.extra.items():
        if not isinstance(name, str) or not name or name in FIELDS:
            problems.add(where, "extra", f"{name!r} cannot name an extra column")
        elif reason := _json_reason(name) or _json_reason(value):
            problems.add(where, str(name), reason)
    parse_row(Row(where, question_record(question)), "", problems)
    if isinstance(question.answer, str) and is_sentinel(question.answer):
        problems.add(where, "answer", f"{question.answer!r} means that there is none; it would be dropped when read")


def _json_reason(value: Any) -> str:
    """Why a value cannot be written as JSON; empty if it can."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        return f"holds half a character, the lone surrogate {error.object[error.start]!r}"
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written: {error}"
    return ""
