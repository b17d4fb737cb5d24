r"""Find the final answer in what a model wrote.

In this order:

1. Thinking does not count. Only the text after the last ``</think>`` is read; a ``<think>`` that was never closed
   means that the model never came to an answer. (Where the chat template opens the thinking in the prompt, a completion
   that was cut off before ``</think>`` holds neither tag, and is read as an answer.)
2. The last complete ``\boxed{…}`` or ``\fbox{…}`` that is not empty. A box that was cut off does not count, the
   complete one before it does. Boxes joined by nothing but "and", "or", a comma or the like are one answer, a list:
   ``\boxed{8}`` or ``\boxed{27}`` is a hedge and not the answer 27.
   One thing goes before a box that holds neither a number nor an option: a later line that does nothing but name an
   option, such as ``**Answer: D**``.
3. ``<answer>…</answer>``, ``#### …`` (the form of GSM8K), or "the (final) answer is …" / "Answer: …".

Numbers that merely stand in the text are never taken for an answer.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from typing import NamedTuple


class _Box(NamedTuple):
    """Where a box stands in the text, ``\\boxed`` to the closing brace, and what it holds."""

    start: int
    end: int
    content: str


_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*\{?|\\.|[{}]", re.DOTALL)
# `\boxed 5`, as TeX allows it.
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+(?P<content>[-+\w.,/]*\w)")
# Between boxes that make up one answer: punctuation, a joining word, and perhaps a name (`and $y = \boxed{2}`).
_JOINT = re.compile(
    r"[\s$,;.&:*()\\]*(?:(?:and|or)\b)?[\s$,;:*()\\]*(?:(?:also|maybe|possibly|perhaps)\b)?"
    r"[\s$*()\\]*(?:[A-Za-z]\w?\s*=)?[\s$]*"
)
_MAX_JOINT = 40

# Repetitions are bounded wherever text could make them run over each other again and again.
_OPTION_LINE = re.compile(
    r"^[ \t*#>]{0,20}(?:the\s)?(?:final\s|correct\s)?(?:answer|option|choice)(?:\sis)?[ *]{0,20}:?[ *]{0,20}"
    r"(?P<letter>\(?[A-J]\)?)[ \t*.]{0,20}$",
    re.IGNORECASE | re.MULTILINE,
)
# What may stand around an option letter.
_MARKUP = re.compile(r"\\(?:text|math)[a-z]*|\\mbox|\\[ ,;!]|[{}]")
_NUMBER_OR_OPTION = re.compile(r"\d|^\W*[A-Ja-j]\W*$")
_ANSWER_TAG = re.compile(r"<answer>(?P<answer>(?:(?!<answer>).){1,4000}?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"^####[ \t]*(?P<answer>\S.*)$", re.MULTILINE)
_STATEMENT = re.compile(r"\banswer\b[*_\s]{0,20}(?:(?:is|=)[*_ \t]{0,20}:?|:)[*_\s]{0,20}", re.IGNORECASE)
_MAX_STATED = 4000
# The answer within a statement: bold, or mathematics, or the sentence up to its end.
_STATED = re.compile(
    r"\*\*(?P<bold>[^*]+)\*\*|\$\$?(?P<dollar>[^$]+)\$|\\\((?P<paren>.+?)\\\)|\\\[(?P<bracket>.+?)\\\]"
    r"|(?P<plain>.+?)(?=[.!?]?[*_]*(?:\s*$|[.!?]\s))"
)


def extract_answer(completion: str) -> str | None:
    """The final answer, as the model wrote it; None where it gave none. Never raises for any text.

    The rules are those of this module's head. Takes time linear in the length of the text.
    """
    text = _after_thinking(completion)
    if text is None:
        return None
    boxes = [box for box in _outer_boxes(text) if box.content.strip()]
    if not boxes:
        return _stated_answer(text)
    option = _last_match(_OPTION_LINE, text, boxes[-1].end)
    if option and not _NUMBER_OR_OPTION.search(_MARKUP.sub("", boxes[-1].content)):
        return option["letter"].strip("()").upper()
    return _joined(text, boxes)


def _after_thinking(completion: str) -> str | None:
    answer = completion.rpartition("</think>")[2]
    return None if "<think>" in answer else answer


def _outer_boxes(text: str) -> Iterator[_Box]:
    """Complete boxes that lie in no other complete box, in order. One pass: nesting may be thousands deep."""
    open_braces: list[int | None] = []
    complete: list[tuple[int, int, int]] = []
    for token in _BOX_OR_BRACE.finditer(text):
        if token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}":
            opening = open_braces.pop() if open_braces else None
            if opening is not None:
                while complete and complete[-1][0] > opening:
                    complete.pop()
                content_start = text.index("{", opening) + 1
                complete.append((opening, token.end(), content_start))
        elif _BOX_COMMAND.match(token[0]):
            if token[0].endswith("{"):
                open_braces.append(token.start())
            elif bare := _BARE_BOX.match(text, token.start()):
                complete.append((token.start(), bare.end(), bare.start("content")))
    for start, end, content_start in complete:
        yield _Box(start, end, text[content_start : end - (text[end - 1] == "}")])


def _joined(text: str, boxes: list[_Box]) -> str:
    """The last box, with those before it that are joined to it; repetitions once."""
    contents = [boxes[-1].content.strip()]
    for before, after in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        between = text[before.end : after.start]
        if len(between) > _MAX_JOINT or not _JOINT.fullmatch(between):
            break
        contents.insert(0, before.content.strip())
    return ", ".join(dict.fromkeys(contents))


def _stated_answer(text: str) -> str | None:
    for pattern in (_ANSWER_TAG, _HASHES):
        if found := _last_match(pattern, text):
            return found["answer"].strip() or None
    statement = _last_match(_STATEMENT, text)
    if not statement:
        return None
    line = text[statement.end() : statement.end() + _MAX_STATED].partition("\n")[0]
    found = _STATED.match(" ".join(line.split()))
    return found[found.lastgroup or 0].strip("*_ ") or None if found else None


def _last_match(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    last = collections.deque(pattern.finditer(text, start), maxlen=1)
    return last[0] if last else None
