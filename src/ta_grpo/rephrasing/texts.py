"""What the checks of a rephrasing look at: its text and the original's, each part read once."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import formulas as mathematics
from .quantities import Mention, mentions

_FIGURE = re.compile(
    r"\[asy\](?:(?!\[asy\]).)*?\[/asy\]|\\begin\{(?P<kind>tikzpicture|asy)\}(?:(?!\\begin).)*?\\end\{(?P=kind)\}"
    r"|\\includegraphics(?:\[[^\]]{0,200}\])?\{[^}]{0,400}\}|!\[[^\]]{0,400}\]\([^)]{0,800}\)|<img[^>]{0,800}>",
    re.DOTALL,
)


ASKS = re.compile(
    r"\?|(?i:\b(?:find|determine|calculate|compute|evaluate|what|which"
    r"|how (?:many|much|long|far|old|fast|often|tall|big)"
    r"|express|simplify|solve|count|give|state|list|work out|figure out|identify|name|write|convert|factor|expand"
    r"|estimate|prove|show|enter|graph|compare|select|choose|fill|ascertain|establish|deduce|tell|report|round|locate"
    r"|specify|obtain|provide|derive|who|when|where)\b)|_{3,}"
)


class Text:
    """A text and what the checks read from it, each part read once."""

    def __init__(self, raw: str) -> None:
        self.raw = raw

    @functools.cached_property
    def figures(self) -> list[str]:
        return figures_of(self.raw)

    @functools.cached_property
    def without_figures(self) -> str:
        return _FIGURE.sub(" ", self.raw).strip()

    @functools.cached_property
    def mentions(self) -> list[Mention]:
        return mentions(self.without_figures)

    @functools.cached_property
    def formulas(self) -> list[mathematics.Formula]:
        return mathematics.formulas(self.without_figures)

    @functools.cached_property
    def words(self) -> list[str]:
        return normalised_words(self.raw)

    @functools.cached_property
    def lower(self) -> str:
        return self.without_figures.casefold().replace("’", "'")

    @functools.cached_property
    def prose(self) -> str:
        """The text without its formulas, in lower case."""
        return self._without(self.formulas)

    @functools.cached_property
    def said(self) -> str:
        """The text without its formulas of more than one token, in lower case: "$x$ is 3" is said, "$x = 3$" not."""
        return self._without([formula for formula in self.formulas if len(formula.tokens) > 1])

    def _without(self, formulas: Sequence[mathematics.Formula]) -> str:
        pieces, position = [], 0
        for formula in formulas:
            pieces.append(self.without_figures[position : formula.start])
            position = formula.end
        return " ".join([*pieces, self.without_figures[position:]]).casefold()

    @functools.cached_property
    def asked(self) -> str:
        """The sentences that ask, in lower case; the whole text if none does."""
        asking = [sentence for sentence in re.split(r"(?<=[.?!;])\s+", self.lower) if ASKS.search(sentence)]
        return " ".join(asking) or self.lower

    def count(self, pattern: re.Pattern[str]) -> int:
        return sum(1 for _ in pattern.finditer(self.without_figures))


@dataclass(frozen=True)
class CheckInput:
    """What a check looks at. ``siblings`` are the question's other rephrasings."""

    original: Text
    rephrasing: Text
    answer: str
    siblings: tuple[Text, ...] = ()


Check = Callable[[CheckInput], str | None]


def figures_of(text: str) -> list[str]:
    """The code of the figures in a text: Asymptote, TikZ, images."""
    return [found[0] for found in _FIGURE.finditer(text)]


def normalised_words(text: str) -> list[str]:
    """The words, numbers and signs of a text in lower case, without punctuation and spacing."""
    text = text.casefold().replace("’", "'")
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+|[^\w\s.,;:!?'\"“”‘*_-]", text)
