r"""Is a rephrasing still the same problem? Named checks that look at the two texts only, and say what differs.

``CHECKS`` holds them in order. Each takes a ``CheckInput`` and returns a reason, or None. They are deterministic, take
time linear in the length of the texts, and need neither a model nor torch. What they cannot see is whether the story
still says the same: a fact without a number that is gone, or another question about the same numbers. That is for the
checks with a model.

Policies:

- *Numbers* are compared by value, as ``quantities`` reads them. Every number of the original must be there, in any
  spelling, and no other may. Mentions behind a word that points back ("in those 4 hours") may come and go. Otherwise it
  is mentioned as often as in the original, or next to a word that shares it out ("three pairs each of shorts and
  shoes"). The number 1 in plain text may come and go ("one cup", "a cup").
- *Formulas* are kept to the letter, apart from spacing, fonts, commas, and a consistent renaming of variables. A short
  relation or sign may become words that mean it (``$x = 3$``, "x is 3").
- *The answer* may be in the rephrasing if it is in the original.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ..errors import UserError
from . import check_content, check_writing
from .records import Rejection
from .texts import Check, CheckInput, Text


def check_rephrasing(
    original: str, rephrasing: str, answer: str, siblings: Sequence[str] = (), skip: Collection[str] = ()
) -> list[Rejection]:
    """Why a rephrasing is not accepted; empty means accepted.

    Args:
        original: the question.
        rephrasing: the text that should ask the same.
        answer: the final answer, LaTeX or plain text; empty if it is not known, which leaves ``leak`` half blind.
        siblings: rephrasings of the question that are accepted already.
        skip: names of checks to leave out.

    Raises:
        UserError: if ``skip`` names no check.
    """
    if unknown := [name for name in skip if name not in CHECKS]:
        raise UserError(f"{unknown[0]!r} is no check of rephrasings; the checks are {', '.join(CHECKS)}")
    if not rephrasing.strip():
        return [Rejection("truncation", "it is empty")]
    if len(rephrasing) > 10 * (len(original) + 200):
        return [Rejection("length", f"{len(rephrasing)} characters for {len(original)}; it is not read any further")]
    pair = CheckInput(_read(original), Text(rephrasing), answer, tuple(map(_read, siblings)))
    reasons = ((name, check(pair)) for name, check in CHECKS.items() if name not in skip)
    return [Rejection(name, reason) for name, reason in reasons if reason]


@functools.lru_cache(maxsize=256)
def _read(text: str) -> Text:
    return Text(text)


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "characters": check_writing.characters,
        "reasoning": check_writing.reasoning,
        "truncation": check_writing.truncation,
        "copy": check_writing.copy,
        "length": check_writing.length,
        "language": check_writing.language,
        "figures": check_writing.figure,
        "options": check_writing.options,
        "numbers": check_content.numbers,
        "formulas": check_content.formulas,
        "variables": check_content.variables,
        "leak": check_content.leak,
        "solution": check_content.solution,
        "question": check_content.asks,
    }
)
