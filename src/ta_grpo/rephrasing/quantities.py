r"""The numbers that a text mentions, in digits, in words or in LaTeX, by value.

What counts as the same number is the policy of the check ``numbers``:

- ``12``, ``12.0``, ``twelve`` and ``12th`` are 12; ``1,000``, ``1{,}000``, ``1 thousand`` are 1000; ``1/2``,
  ``\frac12``, ``0.5``, ``half`` and ``one-half`` are 1/2; ``40%`` is 40 and also 0.4; ``half an hour`` is also 30;
  ``5 cents`` are also 0.05. ``7:13`` is a time of the day, and after "ratio" 7 and 13.
- ``twice``, ``double``, ``two times`` are 2; ``thrice``, ``triple`` 3; ``dozen`` 12. These carry meaning.
- ``both``, ``pair``, ``single``, ``once``, ``no`` may stand for their number, but need not be there: such a mention is
  *loose*. So is an ordinal in words; since ``third`` may be the part, it may stand for 1/3.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
CARDINALS = {name: value for value, name in enumerate(_UNITS)} | {
    name: 10 * value for value, name in enumerate(_TENS, 2)
}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10,
    "eleventh": 11, "twelfth": 12, "fifteenth": 15, "sixteenth": 16, "twentieth": 20, "hundredth": 100,
    "thousandth": 1000,
}  # fmt: skip
_PART_NAMES = _PARTS | {f"{name}s": value for name, value in _PARTS.items()} | {"half": 2, "halves": 2}
_MULTIPLES = {
    **dict.fromkeys(["twice", "double", "doubled", "doubles", "doubling", "twofold"], 2),
    **dict.fromkeys(["thrice", "triple", "tripled", "triples", "tripling", "threefold"], 3),
    **dict.fromkeys(["quadruple", "quadrupled", "quadruples", "fourfold"], 4),
    **dict.fromkeys(["dozen", "dozens"], 12),
    **dict.fromkeys(["half", "halved", "halve", "halving", "halfway"], Fraction(1, 2)),
}
_LOOSE_VALUES = {
    **dict.fromkeys(["one", "single", "once", "first", "initial", "initially", "sole", "solo"], 1),
    **dict.fromkeys(["both", "pair", "pairs", "couple", "twin", "twins", "duo", "either"], 2),
    **dict.fromkeys(["trio", "triplet", "triplets"], 3),
    **dict.fromkeys(["no", "none", "nothing", "zero", "never"], 0),
    "decade": 10,
    "century": 100,
}
_LOOSE = {name: Fraction(value) for name, value in _LOOSE_VALUES.items()}
# "third" is the ordinal or the part; the ordinal 12th in digits is a number like others.
_LOOSE |= {name: Fraction(1, value) for name, value in _PARTS.items() if name != "quarter"}

_DECIMAL = r"\d{1,3}(?:(?:,|\{,\}|,\\!)\d{3})+(?!\d)(?:\.\d+)?|\d+\.\d+|\d+|(?<![\d\w])\.\d+"
_MENTION = re.compile(
    r"\\[dtc]?frac\s*(?:\{\s*(?P<top>\d{1,40})\s*\}\s*\{\s*(?P<bottom>\d{1,40})\s*\}|\s*(?P<digits>\d\d)(?!\d))"
    r"|(?P<clock>(?<![\d:])\d{1,2}:[0-5]\d(?![\d:]))"
    r"|(?<![\d.,/])(?P<over>\d{1,40}/\d{1,40})(?![\d/]|\.\d)"
    rf"|(?P<number>{_DECIMAL})(?P<ordinal>(?:st|nd|rd|th)(?![A-Za-z]))?"
    r"|\\[A-Za-z]+"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<percent>\\?%)"
    r"|(?P<vulgar>[¼-¾⅐-⅞])"
)
_VULGAR = {
    "¼": (1, 4), "½": (1, 2), "¾": (3, 4), "⅓": (1, 3), "⅔": (2, 3), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
    "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅐": (1, 7),
}  # fmt: skip
# Before ``7:13``, which is no time of the day then.
_RATIO = re.compile(r"(?i)\b(?:ratios?|proportions?)\b[^\d.?!]{0,40}$")
_MAX_DIGITS = 400


@dataclass(frozen=True)
class Mention:
    """A number in a text.

    Attributes:
        values: what it may mean; the first is how it is written.
        text: as written.
        loose: it may stand for the number, but says little ("both", "first").
        word: it is written as a word.
        start: where it stands.
    """

    values: tuple[Fraction, ...]
    text: str
    loose: bool = False
    word: bool = False
    start: int = 0


@dataclass(frozen=True)
class _Piece:
    """A number or a word, with what separates it from the next piece."""

    text: str
    start: int
    end: int
    value: Fraction | None = None
    word: str = ""
    percent: bool = False


def mentions(text: str) -> list[Mention]:
    """The numbers of a text, in order."""
    pieces = list(_pieces(text))
    found: list[Mention] = []
    position = 0
    while position < len(pieces):
        length, mention = _read(text, pieces, position)
        if mention:
            found.append(replace(mention, start=pieces[position].start))
        position += length
    return found


def _pieces(text: str) -> Iterator[_Piece]:
    for match in _MENTION.finditer(text):
        value: Fraction | None = None
        word = (match["word"] or "").lower()
        if match["top"] or match["digits"]:
            top, bottom = (match["top"], match["bottom"]) if match["top"] else match["digits"]
            if not int(bottom):
                continue
            value = Fraction(int(top), int(bottom))
        elif match["clock"]:
            one, other = match["clock"].split(":")
            if _RATIO.search(text[max(0, match.start() - 60) : match.start()]):
                yield _Piece(one, match.start(), match.start() + len(one), Fraction(int(one)))
                yield _Piece(other, match.end() - len(other), match.end(), Fraction(int(other)))
                continue
            value = Fraction(int(one)) + Fraction(int(other), 60)
        elif match["over"]:
            top, bottom = match["over"].split("/")
            if not int(bottom):
                continue
            value = Fraction(int(top), int(bottom))
        elif match["number"]:
            digits = re.sub(r"[,{}\\!]", "", match["number"])
            # Longer ones are told apart by a checksum of their digits, which is enough to see a change.
            value = Fraction(digits) if len(digits) <= _MAX_DIGITS else Fraction(zlib.crc32(digits.encode()))
        elif match["vulgar"]:
            value = Fraction(*_VULGAR.get(match["vulgar"], (0, 1)))
        elif not word and not match["percent"]:
            continue
        yield _Piece(match[0], match.start(), match.end(), value, word, bool(match["percent"]))


def _joined(text: str, one: _Piece, other: _Piece) -> bool:
    """Whether only a blank or a hyphen stands between two pieces."""
    return other.start - one.end <= 1 and text[one.end : other.start] in (" ", "-", "\n", "‑", "")


def _read(text: str, pieces: list[_Piece], position: int) -> tuple[int, Mention | None]:
    """The number that begins at a piece, and how many pieces it takes; None where there is none."""
    piece = pieces[position]
    if piece.value is None and piece.word not in CARDINALS and piece.word not in _MULTIPLES:
        return _read_part(text, pieces, position)
    if piece.word in _MULTIPLES:
        value = Fraction(_MULTIPLES[piece.word])
        return 1, Mention(_with_minutes(value, pieces, position + 1), piece.text, word=True)
    length, value = _cardinal(text, pieces, position)
    more, part = _part_behind(text, pieces, position + length)
    if part and value.denominator == 1:
        length, value = length + more, value + part
        last = pieces[position + length - 1]
        return length, Mention((value,), text[piece.start : last.end], word=piece.value is None)
    following = pieces[position + length] if position + length < len(pieces) else None
    last = pieces[position + length - 1]
    written = text[piece.start : last.end]
    if following and _joined(text, last, following):
        if following.percent or (following.word in ("percent", "per") and _is_percent(pieces, position + length)):
            return length + 1, Mention((value, value / 100), written)
        is_word = piece.value is None
        if following.word in ("cent", "cents"):
            return length, Mention((value, value / 100), written, word=is_word)
        part = _PART_NAMES.get(following.word)
        if part and is_word and (following.word.endswith(("s", "half")) or value == 1) and value < part:
            value /= part
            return length + 1, Mention(_with_minutes(value, pieces, position + length + 1), written, word=True)
        if following.word in ("fold", "times") and value.denominator == 1:
            return length + 1, Mention((value,), written, word=is_word)
    if piece.word in ("one", "zero") and length == 1:
        return 1, Mention((value,), written, loose=True, word=True)
    return length, Mention((value,), written, word=piece.value is None)


def _part_behind(text: str, pieces: list[_Piece], position: int) -> tuple[int, Fraction | None]:
    """What makes a mixed number of the number before: ``2 1/2``, ``two and a half``; how many pieces it takes."""
    behind = pieces[position : position + 3]
    if not behind or not _joined(text, pieces[position - 1], behind[0]):
        return 0, None
    value = behind[0].value
    if value is not None and 0 < value < 1 and "." not in behind[0].text:
        return 1, value
    words = [piece.word for piece in behind]
    if words[:2] == ["and", "half"]:
        return 2, Fraction(1, 2)
    if len(words) == 3 and words[0] == "and" and words[1] in ("a", "one") and words[2] in _PART_NAMES:
        return 3, Fraction(1, _PART_NAMES[words[2]])
    return 0, None


def _is_percent(pieces: list[_Piece], position: int) -> bool:
    return pieces[position].word == "percent" or (
        position + 1 < len(pieces) and pieces[position + 1].word in ("cent", "hundred")
    )


def _read_part(text: str, pieces: list[_Piece], position: int) -> tuple[int, Mention | None]:
    """``a third``, ``a quarter of``, and loose words."""
    piece = pieces[position]
    following = pieces[position + 1] if position + 1 < len(pieces) else None
    if piece.word in ("a", "an") and following and _joined(text, piece, following):
        if following.word in ("half", "dozen"):
            return 1, None
        if following.word in _PARTS:
            value = Fraction(1, _PARTS[following.word])
            return 2, Mention(_with_minutes(value, pieces, position + 2), f"{piece.text} {following.text}", word=True)
    if piece.word == "quarter":
        return 1, Mention(_with_minutes(Fraction(1, 4), pieces, position + 1), piece.text, loose=True, word=True)
    if piece.word in _LOOSE:
        return 1, Mention((_LOOSE[piece.word],), piece.text, loose=True, word=True)
    return 1, None


def _with_minutes(part: Fraction, pieces: list[_Piece], position: int) -> tuple[Fraction, ...]:
    """Half an hour is 30 minutes too."""
    near = [piece.word for piece in pieces[position : position + 3]]
    return (part, part * 60) if "hour" in near and part < 1 else (part,)


def _cardinal(text: str, pieces: list[_Piece], position: int) -> tuple[int, Fraction]:
    """``two hundred and fifty``, ``twenty-five``, ``1.5 million``: how many pieces, and the value."""
    start = position
    total, group = Fraction(0), Fraction(0)
    previous: str | Fraction | None = None
    while position < len(pieces):
        piece = pieces[position]
        if position > start and not _joined(text, pieces[position - 1], piece):
            break
        if piece.word == "and" and previous in ("hundred", "thousand") and position + 1 < len(pieces):
            follower = pieces[position + 1]
            if follower.word not in CARDINALS or not _joined(text, piece, follower):
                break
            position += 1
            continue
        if piece.word in _SCALES and position > start:
            scale = _SCALES[piece.word]
            if scale == 100:
                group *= 100
            else:
                total, group = total + group * scale, Fraction(0)
            previous = piece.word
        elif piece.word in CARDINALS:
            value = CARDINALS[piece.word]
            follows_tens = isinstance(previous, str) and previous in _TENS and 1 <= value <= 9
            if position > start and not follows_tens and previous not in ("hundred", "thousand", "million"):
                break
            group += value
            previous = piece.word
        elif piece.value is not None and position == start:
            group, previous = piece.value, piece.value
        else:
            break
        position += 1
    if pieces[position - 1].word == "and":
        position -= 1
    return position - start, total + group
