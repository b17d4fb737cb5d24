"""How a question is changed, and the prompts that ask a model for it.

A prompt is ``frame.txt`` with one of the other templates of ``prompts/`` as its task. Each file begins with the line
``version: N``. The question goes into the prompt as data: placeholders are replaced in one pass, so that a question
that holds braces stays as it is, and it stands between tags that do not occur in it.
"""

from __future__ import annotations

import difflib
import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..errors import UserError
from .formulas import formulas, variables
from .records import Rejection

TRANSFORMATIONS = ("wording", "format", "order", "setting", "variables", "mix")
FRAME, JUDGE = "frame", "judge"
_PLACEHOLDERS = {
    FRAME: ("{task}", "{question}", "{begin}", "{end}"),
    JUDGE: ("{first}", "{second}", "{begin}", "{end}"),
}
_VERSION = re.compile(r"version:[ \t]*(\S+)[ \t]*\n")
_THOUGHTS = re.compile(r"\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_THOUGHT_TAG = re.compile(r"</?(?:think|thinking|reasoning)>", re.IGNORECASE)
# Rejections of this module, beside those of the checks.
FORMAT_CHECK, REASONING_CHECK = "reply_format", "reasoning"


@dataclass(frozen=True)
class Template:
    """A prompt template: its text without the version line."""

    name: str
    version: str
    text: str

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"


class Prompts:
    """The templates in use: ours, and those of a user's folder in place of ours or beside them.

    Args:
        folder: holds ``NAME.txt`` files; a NAME that is not one of ours is a new transformation.

    Raises:
        UserError: no such folder, no template in it, no version line, or a placeholder that is missing or repeated.
    """

    def __init__(self, folder: Path | None = None) -> None:
        ours = resources.files(__spec__.parent) / "prompts"
        self._templates = {
            name: _template(name, (ours / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt")
            for name in (FRAME, JUDGE, *TRANSFORMATIONS)
        }
        if folder is not None:
            self._templates |= _templates_in(folder)

    @property
    def transformations(self) -> list[str]:
        """Names of what can be asked for."""
        return [name for name in self._templates if name not in (FRAME, JUDGE)]

    def labels(self) -> dict[str, str]:
        """Template -> version."""
        return {name: template.version for name, template in self._templates.items()}

    def check(self, names: Sequence[str]) -> None:
        """Refuse transformations that there is no template of.

        Raises:
            UserError: naming the nearest.
        """
        if not names:
            raise UserError(f"--transformations names none; there is: {', '.join(self.transformations)}")
        for name in names:
            if name not in self.transformations:
                near = difflib.get_close_matches(name, self.transformations, n=1)
                nearest = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"--transformations: no {name!r}; there is: {', '.join(self.transformations)}{nearest}")

    def rephrase(self, transformation: str, question: str, variant: int = 0) -> Prompt:
        """The prompt for a rephrasing; ``variant`` above 0: one more by the same transformation."""
        frame, task = self._templates[FRAME], self._templates[transformation]
        tag = _tag("rephrased", question)
        wanted = task.text.strip()
        if variant:
            wanted += f"\nThis is version {variant + 1}: make it differ from what one would write first."
        values = {
            "{task}": wanted,
            "{question}": _between(_tag("question", question), question),
            "{begin}": f"<{tag}>",
            "{end}": f"</{tag}>",
        }
        return Prompt(_filled(frame.text, values), tag, f"{frame.label} {task.label}")

    def judge(self, first: str, second: str) -> Prompt:
        """The prompt that asks whether two questions are the same problem."""
        template = self._templates[JUDGE]
        texts = f"{first}\n{second}"
        tag = _tag("verdict", texts)
        values = {
            "{first}": _between(_tag("first", texts), first),
            "{second}": _between(_tag("second", texts), second),
            "{begin}": f"<{tag}>",
            "{end}": f"</{tag}>",
        }
        return Prompt(_filled(template.text, values), tag, template.label)


@dataclass(frozen=True)
class Prompt:
    """A prompt, the tag that the reply must use, and the templates it was made with."""

    text: str
    tag: str
    template: str


def deal(names: Sequence[str], question: str, count: int, seed: str) -> list[str]:
    """The transformations of ``count`` rephrasings of a question: in turn, beginning at one drawn by the seed.

    Renaming variables is left out for a question without any, unless nothing else was asked for.
    """
    usable = [name for name in names if name != "variables" or _has_variables(question)] or list(names)
    start = random.Random(seed).randrange(len(usable))
    return [usable[(start + number) % len(usable)] for number in range(count)]


def read_reply(reply: str, tag: str) -> str | Rejection:
    """The text between the tags of a reply; what a model thought aloud before it is left out.

    Returns:
        The text, or why there is none: no tags, an open one, several different texts, an empty one, or reasoning that
        does not end.
    """
    answer = _THOUGHTS.sub("", reply, count=1) if _THOUGHTS.match(reply) else reply
    begin, end = f"<{tag}>", f"</{tag}>"
    if begin not in answer:
        if _THOUGHT_TAG.match(answer.lstrip()):
            return Rejection(REASONING_CHECK, "the reply is reasoning that does not come to an end")
        return Rejection(FORMAT_CHECK, f"the reply has no line {begin}")
    blocks = [piece.partition(end) for piece in answer.split(begin)[1:]]
    if any(not closed for _, closed, _ in blocks):
        return Rejection(FORMAT_CHECK, f"the reply has {begin} without {end} after it")
    texts = list(dict.fromkeys(text.strip() for text, _, _ in blocks))
    if len(texts) > 1:
        return Rejection(FORMAT_CHECK, f"the reply has {len(texts)} different texts between {begin} and {end}, not one")
    if not texts[0]:
        return Rejection(FORMAT_CHECK, f"there is nothing between {begin} and {end}")
    if _THOUGHT_TAG.search(texts[0]):
        return Rejection(REASONING_CHECK, "the text holds reasoning tags")
    return texts[0]


def _has_variables(question: str) -> bool:
    return any(variables(formula.tokens) for formula in formulas(question))


def _tag(name: str, text: str) -> str:
    """A tag that does not occur in the text, and is the same every time."""
    number = 0
    while True:
        tag = f"{name}-{hashlib.sha256(f'{number}/{text}'.encode('utf-8', 'replace')).hexdigest()[:6]}"
        if tag not in text:
            return tag
        number += 1


def _between(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Placeholders replaced in one pass, so that what a value holds is not taken for one."""
    return re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], template)


def _templates_in(folder: Path) -> dict[str, Template]:
    if not folder.is_dir():
        raise UserError(f"--prompts: there is no folder {folder}")
    found = {}
    for path in sorted(folder.glob("*.txt")):
        try:
            found[path.stem] = _template(path.stem, path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--prompts: {path} cannot be read as UTF-8 text ({error})") from None
    if not found:
        ours = resources.files(__spec__.parent) / "prompts"
        raise UserError(f"--prompts: {folder} holds no .txt file; copy and change ours, in {ours}")
    return found


def _template(name: str, content: str, where: str) -> Template:
    version = _VERSION.match(content)
    if version is None:
        raise UserError(f"--prompts: {where} must begin with a line such as 'version: 2'")
    text = content[version.end() :]
    for placeholder in _PLACEHOLDERS.get(name, ()):
        if (count := text.count(placeholder)) != 1:
            raise UserError(f"--prompts: {where} holds {placeholder} {count} times; it must hold it once")
    if not text.strip():
        raise UserError(f"--prompts: {where} holds nothing but its version")
    # The text is hashed with the version: an edit that forgets to raise it must not be served old replies' figures.
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return Template(name, f"{version[1]}-{digest}", text)
