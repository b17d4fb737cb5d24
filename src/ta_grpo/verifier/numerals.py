r"""Numbers that are written out: read exactly, compared by value.

Integers and fractions are exact. A decimal is what somebody made of an exact value: it stands for that value if it has
at least six significant digits and is the value rounded or cut off at its own last place. So ``0.333333`` is 1/3,
``0.3333`` is not, and ``1.6e-19`` is not ``1.9e-19``, however small both are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# Fewer digits do not show that the exact value was known.
MIN_DIGITS = 6
# A decimal with this many digits came out of floating-point arithmetic.
_FLOAT_DIGITS = 16
_FLOAT_NOISE = Fraction(1, 10**15)
_MAX_EXPONENT = 5_000


@dataclass(frozen=True)
class Number:
    """A number as written.

    Attributes:
        value: exactly what is written; of ``35\\%`` it is 35.
        ulp: of a decimal, the value of one unit in its last place that is not 0 (1/100 for 18.95); None for an exact
            number: an integer, a fraction, or a decimal like 18.0.
        percent: a percent sign follows.
    """

    value: Fraction
    ulp: Fraction | None = None
    percent: bool = False

    @property
    def digits(self) -> int:
        """Significant digits of a decimal, without zeros at its end."""
        return len(str(abs(self.value) // self.ulp)) if self.ulp else 0


_DECIMAL = r"(?:\d{1,3}(?:(?:,|\s)\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)"
_SIMPLE = re.compile(rf"(?P<sign>[-+]?)\s*(?P<decimal>{_DECIMAL})")
_POWER = r"10\s*\^\s*(?:\{\s*(?P<braced>[-+]?\s*\d+)\s*\}|(?P<bare>\d))"
_SCIENTIFIC = re.compile(rf"(?P<sign>[-+]?)\s*(?:(?P<decimal>{_DECIMAL})\s*(?:\\times|\\cdot|x|X)\s*)?{_POWER}")
_RATIO = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<whole>\d+)?\s*(?P<gap>\s?)"
    rf"(?:\\frac\s*\{{\s*(?P<top>[-+]?\s*{_DECIMAL})\s*\}}\s*\{{\s*(?P<bottom>[-+]?\s*{_DECIMAL})\s*\}}"
    rf"|(?<!\d)(?P<plain_top>\d+)\s*/\s*(?P<plain_bottom>\d+))"
)
_REPEATING = re.compile(
    r"(?P<sign>[-+]?)(?P<whole>\d*)\.(?P<fixed>\d*)\\(?:overline|bar)\s*\{\s*(?P<repeated>\d+)\s*\}"
)
_NUMBER_NAMES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip
_WORDS: dict[str, int] = {name: number for number, name in enumerate(_NUMBER_NAMES)}
_MULTIPLES = {"hundred": 100, "dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MULTIPLE = re.compile(rf"(?P<number>.*[\d}}])\s*(?:\\text\s*\{{\s*)?(?P<word>{'|'.join(_MULTIPLES)})(?:\s*\}})?")


def parse_number(text: str) -> Number | None:
    r"""The number that a normalised text is, or None if it is anything else.

    Reads integers, decimals, thousands separators (comma or blank), ``a/b``, ``\frac{a}{b}``, mixed numbers, scientific
    notation, repeating decimals, percent, ``2 \text{ million}`` and the words up to twenty.
    """
    text = _unwrapped(text)
    if text.endswith(r"\%"):
        number = parse_number(text[:-2])
        return Number(number.value, number.ulp, percent=True) if number and not number.percent else None
    if multiple := _MULTIPLE.fullmatch(text):
        number = parse_number(multiple["number"])
        factor = _MULTIPLES[multiple["word"]]
        return Number(number.value * factor, number.ulp and number.ulp * factor) if number else None
    word = re.fullmatch(r"(?:\\text\s*\{)?\s*([A-Za-z]+)\s*\}?", text)
    if word and word[1].lower() in _WORDS:
        return Number(Fraction(_WORDS[word[1].lower()]))
    for pattern, read in ((_SIMPLE, _decimal), (_SCIENTIFIC, _scientific), (_RATIO, _ratio), (_REPEATING, _repeating)):
        if match := pattern.fullmatch(text):
            return read(match)
    return None


def _unwrapped(text: str) -> str:
    """Without brackets that hold nothing but a number: ``(-5)``."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")") and re.fullmatch(r"[-+\d.,/\s]*", text[1:-1]) and "," not in text:
        return text[1:-1].strip()
    return text


def _decimal(match: re.Match[str]) -> Number:
    return _signed(match, _plain(match["decimal"]))


def _plain(written: str) -> Number:
    digits = re.sub(r"[,\s]", "", written)
    value = Fraction(digits.rstrip(".") or "0")
    _, _, places = digits.partition(".")
    places = places.rstrip("0")
    return Number(value, Fraction(1, 10 ** len(places)) if places else None)


def _scientific(match: re.Match[str]) -> Number | None:
    exponent = int((match["braced"] or match["bare"]).replace(" ", ""))
    if abs(exponent) > _MAX_EXPONENT:
        return None
    scale = Fraction(10) ** exponent
    mantissa = _plain(match["decimal"] or "1")
    return _signed(match, Number(mantissa.value * scale, mantissa.ulp and mantissa.ulp * scale))


def _ratio(match: re.Match[str]) -> Number | None:
    top = _integer_or_decimal(match["top"] or match["plain_top"])
    bottom = _integer_or_decimal(match["bottom"] or match["plain_bottom"])
    if not bottom:
        return None
    if match["whole"] is None:
        return _signed(match, Number(top / bottom))
    # 2 2/3 is a mixed number; 4 10/3 is nothing, and 22/3 has no whole number before it.
    if not 0 < top < bottom or top.denominator != 1 or bottom.denominator != 1:
        return None
    return _signed(match, Number(int(match["whole"]) + top / bottom))


def _integer_or_decimal(written: str) -> Fraction:
    return Fraction(re.sub(r"[,\s]", "", written).rstrip("."))


def _repeating(match: re.Match[str]) -> Number:
    fixed, repeated = match["fixed"], match["repeated"]
    value = Fraction(int(fixed + repeated) - int(fixed or "0"), 10 ** len(fixed) * (10 ** len(repeated) - 1))
    return _signed(match, Number(int(match["whole"] or "0") + value))


def _signed(match: re.Match[str], number: Number) -> Number:
    return Number(-number.value, number.ulp) if match["sign"] == "-" else number


def same_number(gold: Number, answer: Number) -> bool:
    r"""Whether two numbers are the same value.

    A percent sign on one side only may be left out or written out: ``35\%`` is 35 (the convention of MATH) and 0.35.
    """
    if gold.percent == answer.percent:
        return _same_value(gold, answer)
    percentage, other = (gold, answer) if gold.percent else (answer, gold)
    hundredth = Number(percentage.value / 100, percentage.ulp and percentage.ulp / 100)
    return _same_value(percentage, other) or _same_value(hundredth, other)


def _same_value(one: Number, other: Number) -> bool:
    if one.value == other.value:
        return True
    decimals = [number for number in (one, other) if number.ulp]
    if not decimals or one.value * other.value <= 0:
        return False
    coarse = min(decimals, key=lambda number: number.digits)
    difference = abs(one.value - other.value)
    if max(number.digits for number in decimals) >= _FLOAT_DIGITS and difference <= _FLOAT_NOISE * abs(one.value):
        return True
    return coarse.digits >= MIN_DIGITS and difference < (coarse.ulp or 0)


def parse_ratio(text: str) -> tuple[Fraction, ...] | None:
    """The parts of a ratio like ``2:3`` or ``1:2:4``, divided by the last; None if it is none, or the last is 0."""
    parts = [parse_number(part.strip()) for part in text.split(":")]
    if len(parts) < 2 or not all(parts):
        return None
    values = [part.value for part in parts if part]
    return tuple(value / values[-1] for value in values) if values[-1] else None
