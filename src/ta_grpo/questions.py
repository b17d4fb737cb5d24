"""Questions: the record, reading and writing question files, and the prompt made of a question.

A file that does not hold what it should is refused as a whole, with every bad row named at once. Nothing is repaired
or left out in silence; rows without a final answer (``SENTINEL_ANSWERS``) are the one exception that is dropped, and
that is counted and logged.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import logging
import math
import numbers
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, overload

from .errors import UserError

logger = logging.getLogger(__name__)

QUESTION_MARK = "{question}"
DEFAULT_PROMPT_TEMPLATE = (
    "Solve the problem below. Reason step by step, then give your final answer inside \\boxed{}.\n\n" + QUESTION_MARK
)
SENTINEL_ANSWERS = frozenset({"", "proof", "none", "null", "n/a", "nan", "no answer", "notfound", "not found"})
"""Answers that mean "there is none", compared without case and outer white space. Absent and null count as well."""

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
ENTRY_POINT_GROUP = "ta_grpo.question_sets"

_FIELDS = ("id", "question", "answer", "rephrasings", "source")
_MOST_SHOWN = 20


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
            return QuestionSet(self._questions[index], self.name, self.path, self.dropped, self.prompt_template)
        return self._questions[index]

    def __repr__(self) -> str:
        return f"QuestionSet({len(self)} questions, name={self.name!r})"


# The prompt.


def check_prompt_template(template: str) -> None:
    """Refuse a template that does not hold ``{question}`` exactly once.

    Raises:
        UserError: with the template.
    """
    count = template.count(QUESTION_MARK)
    if count != 1:
        raise UserError(f"prompt template {template!r:.200} holds {QUESTION_MARK} {count} times; it must hold it once")


def question_prompt(text: str, template: str, conversational: bool) -> str | list[dict[str, str]]:
    """The prompt that asks ``text``: plain text, or one user message.

    ``{question}`` is replaced literally, so braces elsewhere in template or text stay as they are.
    """
    prompt = template.replace(QUESTION_MARK, text)
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
