"""What a row of questions may hold: each field checked, and every refusal told with its reason."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from .errors import UserError
from .question_files import FIELDS, Row, kind_of

SENTINEL_ANSWERS = frozenset({"", "proof", "none", "null", "n/a", "nan", "no answer", "notfound", "not found"})
"""Answers that mean "there is none", compared without case and outer white space. Absent and null count as well."""

_MOST_SHOWN = 20


class _BadValueError(Exception):
    """A field's value is refused; the message is the reason."""


class Problems:
    """Bad rows, told all at once."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.found: list[str] = []

    def add(self, where: str, field_name: str, reason: str) -> None:
        self.found.append(f"{where}, {field_name}: {reason}" if field_name else f"{where}: {reason}")

    def raise_if_any(self) -> None:
        if not self.found:
            return
        shown = "".join(f"\n  {problem}" for problem in self.found[:_MOST_SHOWN])
        rest = len(self.found) - _MOST_SHOWN
        more = f"\n  and {rest} more" if rest > 0 else ""
        problems = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
        raise UserError(f"{self.origin}: {problems}{shown}{more}")


def is_sentinel(answer: str) -> bool:
    """Whether an answer means that there is none."""
    return answer.strip().casefold() in SENTINEL_ANSWERS


def parse_row(row: Row, default_id: str, problems: Problems) -> dict[str, Any] | None:
    """The fields of a question, ``extra`` among them; None, with the reasons in ``problems``, if any is refused."""
    parsers: dict[str, Callable[[Any], Any]] = {
        "id": lambda value: default_id if value is None else _parse_id(value),
        "question": _parse_text,
        "answer": _parse_answer,
        "rephrasings": _parse_rephrasings,
        "source": lambda value: "" if value is None else _parse_source(value),
    }
    extra = {name: value for name, value in row.values.items() if name not in FIELDS}
    before = len(problems.found)
    parsed: dict[str, Any] = {}
    for name, parse in parsers.items():
        try:
            parsed[name] = parse(row.values.get(name))
        except _BadValueError as error:
            problems.add(row.where, name, str(error))
    if "question" in parsed and "rephrasings" in parsed:
        for reason in _copies(parsed["question"], parsed["rephrasings"]):
            problems.add(row.where, "rephrasings", reason)
    info = extra.get("rephrasing_info")
    if info is not None and "rephrasings" in parsed and len(parsed["rephrasings"]) != _length(info):
        problems.add(row.where, "rephrasing_info", f"must be a list as long as rephrasings; got {kind_of(info)}")
    if len(problems.found) > before:
        return None
    return parsed | {"extra": extra}


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else -1


def _parse_id(value: Any) -> str:
    text = value if isinstance(value, str) else _number_text(value)
    if not text.strip():
        raise _BadValueError("is empty; leave the field out to have one made")
    if any(not character.isprintable() for character in text):
        raise _BadValueError(f"{text!r:.80} holds a character that cannot be printed")
    return text


def _parse_text(value: Any) -> str:
    if value is None:
        raise _BadValueError("is missing")
    if not isinstance(value, str):
        raise _BadValueError(f"must be text; got {kind_of(value)}")
    if not value.strip():
        raise _BadValueError("is empty")
    _check_characters(value)
    return value


def _parse_answer(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return _number_text(value)
    _check_characters(value)
    return value


def _parse_source(value: Any) -> str:
    if not isinstance(value, str):
        raise _BadValueError(f"must be text; got {kind_of(value)}")
    _check_characters(value)
    return value


def _parse_rephrasings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _BadValueError(f"must be a list of texts; got {kind_of(value)}")
    texts = []
    for number, text in enumerate(value, 1):
        try:
            texts.append(_parse_text(text))
        except _BadValueError as error:
            raise _BadValueError(f"number {number} {error}") from None
    return tuple(texts)


def _copies(question: str, rephrasings: Sequence[str]) -> Iterator[str]:
    first_with_words = {" ".join(question.split()): "the question"}
    for number, text in enumerate(rephrasings, 1):
        words = " ".join(text.split())
        if words in first_with_words:
            yield f"number {number} is a copy of {first_with_words[words]}"
        first_with_words.setdefault(words, f"number {number}")


def _number_text(value: Any) -> str:
    """A number in plain digits: 42.0 is "42", 1e-7 is "0.0000001"."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        raise _BadValueError(f"must be text or a number; got {kind_of(value)}")
    if isinstance(value, numbers.Rational):
        return str(value)
    if not math.isfinite(value):
        raise _BadValueError(f"{value} is not a number that can be an answer")
    digits = format(Decimal(str(value)), "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


# Tab and line feed are legitimate, so they count only before letters that complete a LaTeX command and begin no
# English word. JSON has no \v, but other readers have.
_REFUSED_CHARACTER = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
    r"|\r(?![\n\r]|\Z)"
    r"|\t(?=(?:imes|heta|au|frac|herefore|hinspace|riangle(?:left|right)?)(?![A-Za-z])"
    r"|(?:ext(?:bf|it|rm|sf|tt)?|ilde|binom)\{|o[ \\\d-]|an[\\({^_\d])"
    r"|\n(?=(?:eq|abla)(?![A-Za-z.:]))"
    r"|[\ud800-\udfff]"
)
_EATEN_LETTERS = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v"}


def _check_characters(text: str) -> None:
    found = _REFUSED_CHARACTER.search(text)
    if found is None:
        return
    character = found[0]
    context = text[max(0, found.start() - 15) : found.start() + 15]
    if "\ud800" <= character <= "\udfff":
        raise _BadValueError(f"holds half a character, the lone surrogate {character!r} in {context!r}")
    reason = f"holds the control character {character!r} in {context!r}"
    if character in _EATEN_LETTERS:
        rest = re.match(r"[A-Za-z]*", text[found.end() :])
        command = _EATEN_LETTERS[character] + (rest[0] if rest else "")
        reason += rf"; JSON made that of \{command}: in JSON a backslash is written twice, \\{command}"
    raise _BadValueError(reason)
