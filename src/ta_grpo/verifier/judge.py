r"""When two answers are the same.

The structure of an answer (list, set, tuple, interval, matrix, equation, unit, words) is taken apart here, and its
numbers are compared here. What is left, one expression against another, is algebra and goes to an ``Algebra``.

Policies, where people differ:

* Units: a unit may be left out; two different units of measurement are wrong (``12 cm``, ``12 m``); nothing is
  converted.
* Percent: ``35\%`` is 35 and 0.35; but 35 is not 0.35.
* Decimals stand for an exact value from six significant digits on; a rounded reference is what it is (33.3 is not
  100/3).
* The base of a numeral may be left out; another base is wrong.
* Lists and sets have no order, and each element once; tuples and intervals have. A bare list may stand for a tuple in
  its order, ``x=1, y=4`` for (1, 4); a set may not. A column or row vector may be written as a tuple.
* Part of a list, or more than the list, is wrong: ``27`` for ``8, 27``, and ``\pm 7`` for ``7``.
* An equation names its value: of ``x = 6/2 = 3`` the last side counts, and ``x = 7 = 3`` contradicts itself and is
  wrong.
* ``\sqrt{2} \approx 1.41`` is read as its exact side.
* Ratios are compared as quotients (2:3 is 4:6); with two digits behind the colon they are times of day.
* ``1.6e-19`` is a number, never a multiple of Euler's e; two numbers with a blank between are no product.
* Option letters are capitals; where the reference is one, a letter with its text (``(B) 12``) counts, several do not.
* Words: case, articles, punctuation and the order of day and month do not count. Symbols have case: ``a`` is not
  ``A``.
* An interval may be written as an inequality, and the other way round.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from ta_grpo.verifier.notation import closing, normalise, split_at, strip_outer
from ta_grpo.verifier.numerals import parse_number, parse_ratio, same_number
from ta_grpo.verifier.words import (
    is_prose,
    read_numeral,
    read_option,
    read_time,
    read_words,
    same_numeral,
    same_time,
    split_unit,
    units_conflict,
)

# What people put where there is no answer to compare with.
_SENTINELS = frozenset(
    ["", "proof", "null", "none given", "n/a", "na", "notfound", "not found", "nan", "none", "unknown"]
)
# Long answers are taken apart in a worker, under the deadline.
_MAX_PLAIN_CHARACTERS = 200


class Algebra(Protocol):
    """Decides what needs algebra; ``algebra.MathVerify`` does."""

    def check_gold(self, gold: str) -> None:
        """Raise UnusableGoldError unless the expression can be compared with others."""
        ...

    def equal(self, gold: str, answer: str) -> bool:
        """Whether two expressions are the same; an answer that cannot be read is not."""
        ...


class UnusableGoldError(Exception):
    """The reference cannot be read, so no answer can be compared with it."""


class NeedsAlgebraError(Exception):
    """Cannot be decided without algebra."""


class _NoAlgebra:
    def check_gold(self, gold: str) -> None:
        raise NeedsAlgebraError

    def equal(self, gold: str, answer: str) -> bool:
        raise NeedsAlgebraError


def is_sentinel(gold: str) -> bool:
    """Whether a reference is one of the words that stand for "there is no answer"."""
    return gold.strip().strip("$.").lower() in _SENTINELS


def decide_plainly(gold: str, answer: str) -> bool | None:
    """Whether the answer is right, where that takes no algebra; else None. Says what ``decide`` would say."""
    if max(len(gold), len(answer)) > _MAX_PLAIN_CHARACTERS:
        return None
    try:
        return decide(gold, answer, _NoAlgebra())
    except (NeedsAlgebraError, UnusableGoldError, RecursionError):
        return None


def decide(gold: str, answer: str, algebra: Algebra) -> bool:
    """Whether the answer is right.

    Raises:
        UnusableGoldError: from ``check_gold``; or because the answer asks for the reference to be read in a way that
            it cannot be, as a set for instance. After ``check_gold``, only the latter.
    """
    check_gold(gold, algebra)
    return _same(normalise(gold), normalise(answer), algebra)


def check_gold(gold: str, algebra: Algebra) -> None:
    """Raise UnusableGoldError unless every part of the reference can be compared with something.

    A question of the reference alone, so that the answers to one question are all scored or none is.
    """
    if is_prose(gold):
        raise UnusableGoldError(gold)
    _check_parts(normalise(gold), algebra)


def _check_parts(gold: str, algebra: Algebra) -> None:
    if read_option(gold) or read_words(gold) or read_time(gold) or read_numeral(gold):
        return
    structure = _structure(gold)
    if structure.kind != "single":
        for item in structure.items:
            _check_parts(item, algebra)
        return
    value = split_unit(_value_of_equation(structure.items[0]))[0]
    if not (parse_number(value) or parse_ratio(value) or read_words(value) or value in _SIGNS):
        algebra.check_gold(value)


def _same(gold: str, answer: str, algebra: Algebra) -> bool:
    if not answer:
        return False
    plain = _same_words(gold, answer, algebra)
    if plain is not None:
        return plain
    golds, answers = _structure(gold), _structure(answer)
    if golds.kind == answers.kind == "single":
        return _same_single(golds.items[0], answers.items[0], algebra)
    if len(golds.items) == len(answers.items) == 1 and {golds.kind, answers.kind} <= {"single", "set"}:
        return _same(golds.items[0], answers.items[0], algebra)
    if golds.kind != answers.kind and (_is_set_expression(golds) or _is_set_expression(answers)):
        # An interval against an inequality, a union against "x < 2 or x > 5".
        gold = golds.items[0] if golds.kind == "single" else gold
        answer = answers.items[0] if answers.kind == "single" else answer
        return algebra.equal(gold, answer)
    return _same_structure(golds, answers, algebra)


# ---- Not mathematics ------------------------------------------------------------------------------------------------


def _same_words(gold: str, answer: str, algebra: Algebra) -> bool | None:
    """Options, times, numerals in a base and words; None where the reference is none of them."""
    answer = _named(answer, ["="]).value
    if gold_option := read_option(gold):
        answer_option = read_option(answer)
        if answer_option:
            return gold_option.letter == answer_option.letter
        return bool(gold_option.value) and _same(gold_option.value, answer, algebra)
    if (answer_option := read_option(answer)) and answer_option.value:
        return _same(gold, answer_option.value, algebra)
    gold_time, answer_time = read_time(gold), read_time(answer)
    if gold_time:
        return answer_time is not None and same_time(gold_time, answer_time)
    gold_numeral, answer_numeral = read_numeral(gold), read_numeral(answer)
    if gold_numeral or answer_numeral:
        return same_numeral(gold_numeral, answer_numeral, gold, answer)
    gold_words, answer_words = read_words(gold), read_words(answer)
    if gold_words and not parse_number(gold):
        if answer_words is None:
            # `Nadia` may be written without \text, where it looks like a product.
            answer_words = read_words(rf"\text{{{answer}}}")
        return gold_words == answer_words
    if answer_words and parse_number(gold) and not parse_number(split_unit(_value_of_equation(answer))[0]):
        return False
    return None


# ---- Structure ------------------------------------------------------------------------------------------------------


class _Structure(NamedTuple):
    """kind: single, list, set, tuple, interval or vector; ``form`` tells apart what is not the same within a kind."""

    kind: str
    items: list[str]
    form: str = ""


_SEPARATORS = (",", ";", r"\text{and}", r"\text{or}")
_MATRIX = re.compile(
    r"[\[(]?\s*\\begin\s*\{(?P<name>[bpB]?matrix|array|smallmatrix)\}(?:(?<=array\})\s*\{[^{}]*\})?"
    r"(?P<body>(?:(?!\\begin).)*)\\end\s*\{(?P=name)\}\s*[\])]?",
    re.DOTALL,
)
_SET_BUILDER = re.compile(
    r"\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\||\\mid(?![A-Za-z])|:)\s*(?P<condition>[^|:]*)\\\}"
)
_NAMED_POINT = re.compile(r"[A-Z]'?\s*(?P<coordinates>\([^()]*,[^()]*\))")
_SET_OPERATOR = re.compile(r"\\(?:cup|cap|setminus|mathbb|emptyset|in|notin)(?![A-Za-z])")
_RELATION = re.compile(r"[<>]|\\(?:leq|geq|neq)(?![A-Za-z])")


def _structure(text: str) -> _Structure:
    if parse_number(text):
        return _Structure("single", [text])
    if matrix := _MATRIX.fullmatch(split_unit(text)[0]):
        rows = [split_at(row, ["&"]) for row in split_at(matrix["body"], [r"\\"])]
        rows = [row for row in rows if row != [""]]
        kind = "vector" if len(rows) == 1 or all(len(row) == 1 for row in rows) else "matrix"
        shape = "" if kind == "vector" else f"{[len(row) for row in rows]}"
        return _Structure(kind, [strip_outer(item) for row in rows for item in row], shape)
    if builder := _SET_BUILDER.fullmatch(text):
        return _Structure("single", [builder["condition"]])
    if point := _NAMED_POINT.fullmatch(text):
        return _structure(point["coordinates"])
    items = [item for item in split_at(text, _SEPARATORS) if item]
    if len(items) > 1:
        return _elements("list", items)
    name, value = _named(text, ["=", r"\in"])
    if name:
        structure = _structure(value)
        if structure.kind == "list":  # x = \pm 7, where each value keeps the name
            return _Structure("list", [f"{name}={item}" for item in structure.items])
        return structure if structure.kind != "single" else _Structure("single", [text])
    if bracketed := _bracketed(split_unit(text)[0]):
        return bracketed
    written_out = _elements("list", [text])
    return written_out if len(written_out.items) > 1 else _Structure("single", [text])


def _is_set_expression(structure: _Structure) -> bool:
    """An inequality, inequalities joined by "or" or "and", or an expression of sets."""
    return structure.kind in ("single", "list") and all(
        _RELATION.search(item) or _SET_OPERATOR.search(item) for item in structure.items
    )


def _bracketed(text: str) -> _Structure | None:
    opening = r"\{" if text.startswith(r"\{") else text[:1]
    if opening not in (r"\{", "(", "["):
        return None
    end = closing(text, 0)
    if end is None:
        return None
    closer, inside = text[end:], text[len(opening) : end]
    if opening == r"\{" and closer == r"\}":
        if re.search(r"\||\\mid|:", inside):
            return None
        return _elements("set", [item for item in split_at(inside, _SEPARATORS) if item])
    items = split_at(inside, [",", ";"])
    if closer not in (")", "]") or len(items) < 2 or not all(items):
        return None
    form = opening + closer
    return _Structure("interval" if len(items) == 2 and form != "()" else "tuple", items, form)


def _elements(kind: str, items: list[str]) -> _Structure:
    r"""A list or set with ``\pm`` written out."""
    written_out = []
    for item in items:
        if r"\pm" in item and not _RELATION.search(item):
            for first, second in (("+", "-"), ("-", "+")):
                written_out.append(normalise(item.replace(r"\pm", first).replace(r"\mp", second)))
        else:
            written_out.append(item)
    return _Structure(kind, written_out)


def _same_structure(gold: _Structure, answer: _Structure, algebra: Algebra) -> bool:
    kinds = (gold.kind, answer.kind)
    if gold.kind in ("list", "set") and answer.kind in ("list", "set"):
        return _same_elements(gold.items, answer.items, algebra)
    if kinds in (("tuple", "list"), ("list", "tuple"), ("vector", "tuple"), ("tuple", "vector"), ("vector", "list")):
        return _same_sequence(_in_order_of_names(gold.items), _in_order_of_names(answer.items), algebra)
    if gold.kind == answer.kind and gold.form == answer.form:
        return _same_sequence(gold.items, answer.items, algebra)
    return False


def _same_sequence(gold: list[str], answer: list[str], algebra: Algebra) -> bool:
    return len(gold) == len(answer) and all(_same(g, a, algebra) for g, a in zip(gold, answer, strict=True))


def _same_elements(gold: list[str], answer: list[str], algebra: Algebra) -> bool:
    """Each element of one is an element of the other, in any order."""
    unmatched = list(answer)
    for item in gold:
        match = next((other for other in unmatched if _same(item, other, algebra)), None)
        if match is None:
            return False
        unmatched.remove(match)
    return not unmatched


def _in_order_of_names(items: list[str]) -> list[str]:
    """The values of ``y=4, x=1`` in the order of their names; other items as they stand."""
    named = [_named(item, ["="]) for item in items]
    if all(item.name for item in named) and len({item.name for item in named}) == len(items):
        named.sort()
    return [item.value for item in named]


# ---- Equations and values -------------------------------------------------------------------------------------------

# What stands for itself, and is not computed with.
_SIGNS = (r"\ldots", r"\infty", r"-\infty", r"\emptyset")
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|omega|Delta|Omega"
_SYMBOL = rf"(?:\\(?:{_GREEK})|[A-Za-z]+'*(?:\^\{{-1\}})?|\\text\s*\{{[^{{}}]*\}})(?:_\s*(?:\w|\{{[^{{}}]*\}}))?"
_NAME = re.compile(
    rf"{_SYMBOL}(?:\s*\(\s*[\w,\s]+\))?|m?\s*\\angle\s*\w+|\|?\s*(?:\\overline\s*\{{)?[A-Z]{{2}}\}}?\s*\|?|\(\s*[a-z](?:\s*,\s*[a-z])+\s*\)"
)
_VARIABLE = re.compile(rf"\\(?:{_GREEK}|angle|triangle|text)(?![A-Za-z])|(?<![A-Za-z\\])(?![ei](?![A-Za-z]))[A-Za-z]")


class _Named(NamedTuple):
    name: str
    value: str


def _named(text: str, signs: list[str]) -> _Named:
    """``x = 5`` taken apart; without a name, all of it is the value."""
    sides = split_at(text, signs)
    if len(sides) == 2 and _NAME.fullmatch(sides[0]) and sides[1]:
        return _Named(sides[0], sides[1])
    return _Named("", text)


def _exact_side(text: str) -> str:
    r"""Of ``\sqrt{2} \approx 1.41`` the first side, of ``x \approx 1.41`` the second."""
    sides = [side for side in split_at(text, [r"\approx"]) if side]
    if len(sides) < 2:
        return text if not sides else sides[0]
    return sides[1] if _NAME.fullmatch(sides[0]) else sides[0]


def _value_of_equation(text: str) -> str:
    """The value that an assignment gives; of anything else, all of it."""
    text = _exact_side(text)
    sides = split_at(text, ["="])
    return sides[-1] if len(sides) > 1 and _NAME.fullmatch(sides[0]) and not _RELATION.search(text) else text


def _same_single(gold: str, answer: str, algebra: Algebra) -> bool:
    gold, answer = _exact_side(gold), _exact_side(answer)
    if _RELATION.search(gold) or _RELATION.search(answer):
        return algebra.equal(gold, answer)
    gold_sides, sides = split_at(gold, ["="]), split_at(answer, ["="])
    if len(sides) > 1 and _NAME.fullmatch(sides[-1]) and not _NAME.fullmatch(sides[0]):
        sides.reverse()
    if len(gold_sides) > 1:
        if not _NAME.fullmatch(gold_sides[0]):
            return algebra.equal(gold, answer)
        if len(sides) > 1 and not _NAME.fullmatch(sides[0]):
            return algebra.equal(gold, answer)
        if len(sides) > 1 and _compact(gold_sides[0]) != _compact(sides[0]):
            return False
    return _consistent(sides, algebra) and _same_value(gold_sides[-1], sides[-1], algebra)


def _consistent(sides: list[str], algebra: Algebra) -> bool:
    """Whether no side of a chain of equations contradicts the last: ``7 = 5`` is no way to answer 5."""
    return all(_VARIABLE.search(side) or _same_value(sides[-1], side, algebra) for side in sides[:-1])


def _compact(text: str) -> str:
    return re.sub(r"[\s{}]|\\text", "", text)


def _same_value(gold: str, answer: str, algebra: Algebra) -> bool:
    """One value against another, with units, without names."""
    (gold, gold_unit), (answer, answer_unit) = split_unit(gold), split_unit(answer)
    if units_conflict(gold_unit, answer_unit):
        return False
    gold_number, answer_number = parse_number(gold), parse_number(answer)
    if gold_number and answer_number:
        return same_number(gold_number, answer_number)
    if (words := read_words(gold)) and not gold_number:
        return words == read_words(answer)
    if gold in _SIGNS or answer in _SIGNS:
        return gold == answer.removeprefix("+")
    gold_ratio, answer_ratio = parse_ratio(gold), parse_ratio(answer)
    if gold_ratio and answer_ratio:
        return gold_ratio == answer_ratio
    return bool(answer) and algebra.equal(gold, answer)
