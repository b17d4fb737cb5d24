r"""Answers that are not mathematics, or not only: option letters, units, names, dates, times of day, bases.

All functions take normalised text (``notation.normalise``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

# ---- Option letters -------------------------------------------------------------------------------------------------

_LETTER = "(?P<letter>[A-J])"
_ONLY_LETTER = re.compile(
    rf"(?:(?:option|choice|answer)\s*:?\s*)?(?:\(\s*{_LETTER}\s*\)|{_LETTER.replace('letter', 'bare')}\)?)\.?"
)
_LETTER_AND_TEXT = re.compile(
    rf"(?:\(\s*{_LETTER}\s*\)(?=\s|\d)|{_LETTER.replace('letter', 'bare')}\s*[.:)](?=\s|\d))\s*(?P<rest>\S.*)",
    re.DOTALL,
)
_ANOTHER_LETTER = re.compile(r"\b[A-J]\b|^\s*(?:or|and)\b")


class Option(NamedTuple):
    """A multiple-choice answer: the letter, and what stands behind it (``(B) 12``), or an empty text."""

    letter: str
    value: str


def read_option(text: str) -> Option | None:
    """The option that a text names; None if it names none or several. Capitals A to J only: ``a`` is a variable."""
    bare = " ".join(without_text_command(text).split())
    if only := _ONLY_LETTER.fullmatch(bare):
        return Option(only["letter"] or only["bare"], "")
    both = _LETTER_AND_TEXT.fullmatch(bare)
    if both and not _ANOTHER_LETTER.search(both["rest"]):
        return Option(both["letter"] or both["bare"], both["rest"])
    return None


def without_text_command(text: str) -> str:
    r"""``\text{June} 20`` as ``June 20``."""
    while (bare := re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)) != text:
        text = bare
    return text.strip()


# ---- Units ----------------------------------------------------------------------------------------------------------

# One name for each unit of measurement, so that cm and centimetres agree and cm and m do not.
_SPELLINGS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "mg": "mg milligram",
    "g": "g gram gm",
    "kg": "kg kilogram",
    "lb": "lb pound",
    "oz": "oz ounce",
    "ms": "ms millisecond",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "d": "day",
    "wk": "week",
    "mo": "month",
    "yr": "yr year",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "gal": "gal gallon",
    "deg": "deg degree",
    "rad": "rad radian",
    "usd": "usd dollar",
    "ct": "cent",
    "eur": "eur euro €",
    "gbp": "gbp £",
    "n": "n newton",
    "j": "j joule",
    "kj": "kj kilojoule",
    "w": "w watt",
    "kw": "kw kilowatt",
    "v": "v volt",
    "a": "amp ampere",
    "pa": "pa pascal",
    "kpa": "kpa",
    "hz": "hz hertz",
    "k": "kelvin",
    "mol": "mol mole",
    "mph": "mph",
    "kmh": "kmh kph",
}
_UNIT_NAMES = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings.split()}
# Words behind a number that change what it is.
_NOT_UNITS = frozenset([
    "million", "billion", "trillion", "thousand", "hundred", "dozen", "half", "quarter", "third", "halves",
    "quarters", "thirds", "and", "or", "not", "no", "if", "for", "when", "where", "mod", "modulo", "plus",
    "minus", "times", "squared", "cubed", "choose", "factorial", "base", "by", "to", "of", "than", "less",
    "more",
])  # fmt: skip
_MAX_UNIT_WORDS = 4
_UNIT_TEXT = r"\\text\s*\{(?P<unit>[^{}]*)\}\s*(?:\^\s*\{?\s*-?\d\s*\}?)?"
_TRAILING_UNIT = re.compile(rf"(?P<core>.*\S)(?P<all>\s*(?:[/.]|\\cdot)?\s*{_UNIT_TEXT})", re.DOTALL)
_DEGREES = re.compile(
    r"(?!.*\\(?:sin|cos|tan|cot|sec|csc))(?P<core>.*\S)\s*(?P<all>\^\\circ(?:\s*(?:\\text\s*\{\s*)?[CF](?:\s*\})?)?)",
    re.DOTALL,
)
_PLAIN_UNIT = re.compile(
    r"(?P<core>.*[\d})])(?P<gap>\s*)(?P<all>[A-Za-z]+(?:[ /.]+[A-Za-z]+)*(?:\^\{?\d\}?)?)", re.DOTALL
)
_CURRENCY = re.compile(r"(?P<all>[€£¥₹])\s*(?P<core>.+)", re.DOTALL)


def split_unit(text: str) -> tuple[str, str]:
    r"""What is measured and its unit: ``12\text{ cm}^2`` is ``12`` and ``cm^2``; no unit: an empty text.

    A unit is text behind something that is not text, a degree sign, a currency sign in front, or words in plain text
    behind a number. Counted things (``14 apples``) are units as well. A single letter in plain text is a variable.
    """
    core, unit = text, ""
    while match := _CURRENCY.fullmatch(core) or _DEGREES.fullmatch(core) or _TRAILING_UNIT.fullmatch(core):
        named = match.groupdict().get("unit")
        if not _has_mathematics(match["core"]) or (named is not None and not _may_be_unit(named)):
            break
        core, unit = match["core"].strip(), f"{match['all']} {unit}"
    match = _PLAIN_UNIT.fullmatch(core)
    if match and _has_mathematics(match["core"]) and _may_be_unit(match["all"]):
        words = re.findall("[A-Za-z]+", match["all"])
        known = all(_unit_name(word) for word in words) and len(match["all"]) > 1
        if known or (match["gap"] and all(len(word) >= 3 for word in words)):
            core, unit = match["core"].strip(), f"{match['all']} {unit}"
    return core, without_text_command(unit)


def units_conflict(gold: str, answer: str) -> bool:
    """Whether both name a unit of measurement, and not the same. Units are not converted; things are not units."""
    gold_units, answer_units = _canonical_unit(gold), _canonical_unit(answer)
    return gold_units is not None and answer_units is not None and gold_units != answer_units


def _has_mathematics(core: str) -> bool:
    """Something that is not text, so that there is something to measure."""
    return re.search(r"[\dA-Za-z]", re.sub(r"\\text\s*\{[^{}]*\}|\\circ", "", core)) is not None


def _may_be_unit(words: str) -> bool:
    found = re.findall("[a-z]+", words.lower())
    return (
        len(found) <= _MAX_UNIT_WORDS and not _NOT_UNITS & set(found) and not re.search(r"[\d=<>]", words.split("^")[0])
    )


def _unit_name(word: str) -> str | None:
    word = word.lower()
    return _UNIT_NAMES.get(word) or (_UNIT_NAMES.get(word[:-1]) if word.endswith("s") else None)


def _canonical_unit(unit: str) -> tuple[tuple[str, str], ...] | None:
    """The unit as sorted (name, exponent) pairs, exponents below a slash negative; None unless all of it is known."""
    unit = re.sub(r"\^\\circ", " deg ", unit)
    unit = re.sub(r"\b(?:square|sq)\.?\s+([A-Za-z]+)", r"\1^2", unit)
    unit = re.sub(r"\bcubic\s+([A-Za-z]+)", r"\1^3", unit)
    unit = re.sub(r"\bper\b", "/", unit)
    parts, sign = [], ""
    for slash, word, exponent in re.findall(r"(/)|([A-Za-z€£]+)\s*(?:\^\s*\{?\s*(-?\d)\s*\}?)?", unit):
        if slash:
            sign = "-"
            continue
        name = _unit_name(word)
        if name is None:
            return None
        for part in ("mi", "/h") if name == "mph" else ("km", "/h") if name == "kmh" else (name,):
            power = int(exponent or 1) * (-1 if sign or part.startswith("/") else 1)
            parts.append((part.lstrip("/"), str(power)))
    return tuple(sorted(parts)) or None


# ---- Names, days, dates ---------------------------------------------------------------------------------------------

_MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december",
]  # fmt: skip
_DAYS = [
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
]  # fmt: skip
_SHORT = {name[:3]: name for name in _MONTHS + _DAYS}
# More is prose: a whole solution, perhaps, and no answer to compare others with.
_MAX_WORDS = 12
_OPERATORS = re.compile(r"[=+*/^_<>|\\{}$&#\[\]]|-\s*\d")
_SHORT_WORDS = frozenset([
    "yes", "no", "odd", "even", "all", "none", "not", "may", "monday", "day", "sum", "max", "min", "am", "pm",
])  # fmt: skip


def is_prose(text: str) -> bool:
    """Whether a text has more words than an answer has."""
    return len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", text)) > _MAX_WORDS


def read_words(text: str) -> tuple[str, ...] | None:
    r"""The words of an answer in words, for comparison; None if it is not one.

    Case, punctuation, articles and markup do not count. A date may have its month first or last. Something in
    mathematics is never words: ``xy`` is a product unless it is in ``\text``.
    """
    bare = without_text_command(text)
    words = re.findall(r"[^\W\d_]+|\d+(?:[.,:]\d+)*", re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", bare.lower()))
    named = [word for word in words if not word[0].isdigit()]
    if is_prose(bare) or _OPERATORS.search(bare) or not named or (bare[:1].isdigit() and not set(named) & set(_MONTHS)):
        return None
    if "\\text" not in text and not any(len(word) >= 4 or word in _SHORT_WORDS for word in named):
        return None
    if not any(len(word) > 1 for word in named):
        return None
    words: list[str] = [_SHORT.get(word, word) for word in words]
    # The A of "A and B" is no article.
    articles = ("an", "the") if re.match(r"\s*A\s+(?:and|or)\b", bare) else ("a", "an", "the")
    words = [word for word in words if word not in articles] or words
    return tuple(sorted(words) if set(words) & set(_MONTHS) else words)


_TIME = re.compile(
    r"(?P<hour>\d{1,2})\s*\{?:\}?\s*(?P<minute>[0-5]\d)(?P<half>\s*(?:[ap]\.?\s*m\b\.?))?", re.IGNORECASE
)


class TimeOfDay(NamedTuple):
    """A time as written; ``half`` is ``a`` (am), ``p`` (pm) or empty."""

    hour: int
    minute: int
    half: str


def read_time(text: str) -> TimeOfDay | None:
    """The time of day in a text like ``3:45`` or ``3:45 p.m.``; two digits of minutes tell it from a ratio."""
    match = _TIME.fullmatch(without_text_command(text))
    if not match or int(match["hour"]) > 24:
        return None
    return TimeOfDay(int(match["hour"]), int(match["minute"]), (match["half"] or "").strip()[:1].lower())


def same_time(gold: TimeOfDay, answer: TimeOfDay) -> bool:
    """The same hour and minute; where both say am or pm, the same half of the day."""
    return gold[:2] == answer[:2] and (not gold.half or not answer.half or gold.half == answer.half)


# ---- Numerals in a base ---------------------------------------------------------------------------------------------

_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "sixteen": 16, "binary": 2, "octal": 8, "hex": 16,
}  # fmt: skip
_IN_BASE = re.compile(
    r"\(?\s*(?P<digits>-?[0-9A-Fa-f\s]*[0-9][0-9A-Fa-f\s]*)\)?\s*"
    r"(?:_\s*\{?\s*(?:\\text\s*\{\s*)?(?P<base>\d+|[a-z]+)\s*\}?\s*\}?|(?:\\text\s*\{)?\s*\(?base\s*(?P<named>\d+|[a-z]+)\)?\s*\}?)"
)


class Numeral(NamedTuple):
    """Digits as written, without zeros in front and blanks, and the base they are in; None: not said."""

    digits: str
    base: int | None


def read_numeral(text: str) -> Numeral | None:
    r"""The numeral with its base in ``1011_2``, ``1011_{\text{two}}`` or ``2A \text{ base } 16``; None without one."""
    match = _IN_BASE.fullmatch(text.replace(r"\text{base}", "base"))
    if not match:
        return None
    written = match["base"] or match["named"]
    base = int(written) if written.isdigit() else _BASES.get(written)
    digits = _clean_digits(match["digits"])
    if base is None or not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits.lstrip("-")):
        return None
    return Numeral(digits, base)


def same_numeral(gold: Numeral | None, answer: Numeral | None, gold_text: str, answer_text: str) -> bool:
    """The same digits, and no different base; the base may be left out on one side (the question names it)."""
    gold = gold or Numeral(_clean_digits(gold_text), None)
    answer = answer or Numeral(_clean_digits(answer_text), None)
    return gold.digits == answer.digits and (gold.base is None or answer.base is None or gold.base == answer.base)


def _clean_digits(written: str) -> str:
    digits = re.sub(r"\s", "", written).upper()
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    return sign + (digits.lstrip("0") or "0")
