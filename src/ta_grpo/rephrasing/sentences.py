"""The sentences of a question, of which formulas and abbreviations end none."""

from __future__ import annotations

import re

from . import formulas as mathematics

MASK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for a character of a formula."""

ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Mt|Jr|Sr|vs|etc|No|Fig|approx|ft|in|lb|lbs|oz|hr|min|sec|[A-Za-z]\.[A-Za-z]|[A-Z])\.$"
)
_END = re.compile(r"[.?!][\"'”’)]*(?=\s+[\"“'(]?[A-Z\d$\\" + MASK + r"])")


def masked(text: str) -> str:
    """The text with every character of a formula replaced by a mark, so that places stay the same."""
    pieces, position = [], 0
    for formula in mathematics.formulas(text):
        pieces += [text[position : formula.start], MASK * (formula.end - formula.start)]
        position = formula.end
    return "".join(pieces) + text[position:]


def sentences(text: str) -> list[str]:
    """The sentences of a text, outer blanks removed; full stops in formulas and abbreviations end none."""
    starts = sentence_starts(masked(text))
    ends = [*starts[1:], len(text)]
    found = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [sentence for sentence in found if sentence]


def sentence_starts(hidden: str) -> list[int]:
    """Where the sentences of a masked text begin."""
    starts = [0]
    for end in _END.finditer(hidden):
        if not ABBREVIATION.search(hidden, max(starts[-1], end.start() - 8), end.end()):
            starts.append(len(hidden) - len(hidden[end.end() :].lstrip()))
    return starts
