"""Checks of how a rephrasing is written: whole, in the same language, neither a copy nor talk about the task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .texts import CheckInput, Text, normalised_words

NEAR_COPY = 0.03
"""Two texts of which at most this share of words differs, or one word, are copies."""
LENGTH_RATIO = (0.4, 3.0)
"""A rephrasing is this many times as long as the original, at least and at most; more is allowed for short ones."""
_LENGTH_SLACK = 120

# ---- The text itself ------------------------------------------------------------------------------------------------

_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ud800-\udfff]|\r(?!\n)"
    r"|\t(?=(?:imes|heta|au|frac|ext|riangle|herefore|o|an)(?![a-z]))|\n(?=(?:eq|abla|u)(?![a-z.:]))"
)
_EATEN = {"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


def characters(pair: CheckInput) -> str | None:
    found = _CONTROL.search(pair.rephrasing.raw)
    if not found or (found[0] in pair.original.raw and found[0] not in "\t\n"):
        return None
    around = pair.rephrasing.raw[max(0, found.start() - 10) : found.start() + 12]
    eaten = f"; a JSON reader makes that of LaTeX that begins with {_EATEN[found[0]]}" if found[0] in _EATEN else ""
    return f"it holds the control character {found[0]!r} in {around!r}{eaten}"


_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable|not able|an ai)|i (?:cannot|can't|won't|apologi[sz]e)|as an ai\b|language model"
    r"|cannot (?:assist|help|comply)|against my (?:policy|guidelines))"
)
_PREAMBLE = re.compile(
    r"^\W*(?:sure\b|certainly\b|of course\b|absolutely\b|okay\b|ok,|great\b"
    r"|here(?:'s| is| are) (?:the|my|your|one|an? (?:re|para|possible|new|version|alternative))"
    r"|below is|thank you|let me\b|i (?:will|would|have|need to)\b|the user\b|we are asked|hmm\b|alright\b)"
)
_ABOUT_THE_TASK = re.compile(
    r"\b(?:re-?phras\w*|re-?word(?:ed|ing)|re-?writ\w*|paraphras\w*"
    r"|(?:original|given|above|following) (?:prompt|question|problem)\b"
    r"|(?:new|another) (?:version|prompt|wording)|same meaning|without solving|the gold)"
)
_TAG = re.compile(r"</?[a-z][a-z_-]*>|<\||\|>|```|\[/?inst\]|^#{1,6} |#[a-z ]+#|\*\*(?:question|problem)", re.MULTILINE)


def reasoning(pair: CheckInput) -> str | None:
    original, text = pair.original.lower, pair.rephrasing.lower
    kinds = [
        (_REFUSAL, "it refuses"),
        (_PREAMBLE, "it begins by talking to the reader"),
        (_ABOUT_THE_TASK, "it speaks of the task of rephrasing"),
        (_TAG, "it holds markup that the original does not hold"),
    ]
    for pattern, problem in kinds:
        for found in pattern.finditer(text):
            if found[0] not in original:
                return f"{problem}: {found[0].strip()!r}"
    return None


_ENDS = re.compile(r"""[.?!…:。？！](?:["'”’)\]*_]|\$|\\\]|\\\))*$|(?:\$|\\\]|\\\)|\\end\{[a-z]+\*?\}|\||[)\]_])$""")
_PAIRS = (("{", "}"), ("(", ")"), ("[", "]"))


def truncation(pair: CheckInput) -> str | None:
    text = pair.rephrasing.without_figures
    if len(re.findall(r"\w", text)) < 4:
        return f"{text[:40]!r} is no question"
    if not _ENDS.search(text) and _ENDS.search(pair.original.without_figures):
        return f"it breaks off: …{text[-30:]!r}"
    for opening, closing in _PAIRS:
        open_before, open_after = (
            _without_faces(side.without_figures).count(opening) - _without_faces(side.without_figures).count(closing)
            for side in (pair.original, pair.rephrasing)
        )
        if open_after not in (0, open_before):
            return f"{abs(open_after)} {opening if open_after > 0 else closing!r} without a partner"
    for opening, closing in ((r"\begin{", r"\end{"), (r"\[", r"\]"), (r"\left", r"\right")):
        if text.count(opening) - text.count(closing) > max(
            0, pair.original.without_figures.count(opening) - pair.original.without_figures.count(closing)
        ):
            return f"{opening} without {closing}"
    if _stray_dollar(pair):
        return "a dollar sign opens or closes no formula"
    return None


_LISTED = re.compile(r"(?:(?<=\s)|^)(?:\d{1,2}|[A-Za-z])\)(?=\s)|[:;]-?[()]|\\[\[\](){}]|[\[(][^\[\](){}$]{0,60}[\])]")


def _without_faces(text: str) -> str:
    """Without ``1)``, ``\\[``, and half-open intervals, which have no partner and need none."""
    return _LISTED.sub(" ", text)


def _stray_dollar(pair: CheckInput) -> bool:
    """Whether a dollar sign opens or closes nothing, in a question whose dollar signs are all those of formulas."""
    stray = re.compile(r"(?<!\\)\$")
    delimits = any(pair.original.without_figures.startswith("$", formula.start) for formula in pair.original.formulas)
    return delimits and not stray.search(pair.original.prose) and bool(stray.search(pair.rephrasing.prose))


# ---- Copies, length, language ---------------------------------------------------------------------------------------


def differing_words(one: Sequence[str], other: Sequence[str]) -> int:
    """Words to change to make one text the other, at most: an upper bound that takes linear time.

    Of texts of one length, the places that differ; of others, what is left between the common beginning and the
    common end of the two, in the longer one.
    """
    start = _common(one, other)
    end = _common(one[start:][::-1], other[start:][::-1])
    between = max(len(one), len(other)) - start - end
    if len(one) != len(other):
        return between
    return min(between, sum(a != b for a, b in zip(one, other, strict=True)))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def copy(pair: CheckInput) -> str | None:
    for number, other in enumerate((pair.original, *pair.siblings)):
        name = "the original" if number == 0 else f"rephrasing {number}"
        longest = max(len(pair.rephrasing.words), len(other.words))
        different = differing_words(pair.rephrasing.words, other.words)
        if different == 0:
            return f"it is a copy of {name}"
        if different <= max(1, NEAR_COPY * longest):
            return f"it is nearly a copy of {name}: {different} of {longest} words differ"
    return None


def length(pair: CheckInput) -> str | None:
    before, after = len(pair.original.without_figures), len(pair.rephrasing.without_figures)
    least, most = LENGTH_RATIO
    if after < least * before or after > most * before + _LENGTH_SLACK:
        return f"{after} characters for {before}; between {least:g} and {most:g} times as many are expected"
    return None


_STOP_WORDS = {
    "English": "the of and to is in that for are with what how many if he she they was has have does it each on at",
    "German": "der die das und ist wie viele den dem ein eine mit wenn er sie für jede hat werden nicht von zu auf",
    "French": "le la les des est une combien pour dans qui que si il elle avec chaque sont du et au sur pas quel",
    "Spanish": "el los las una cuántos cuántas es que por con si cada tiene son del para cuál y en se hay su un",
    "Italian": "il gli una quanti quante è che per con se ogni ha sono del della quale di e nel non un lo",
    "Portuguese": "os as uma quantos quantas é que por com se cada tem são do da para qual e em um não ele ela",
    "Dutch": "het een hoeveel van en is dat voor met als elke heeft zijn wat op niet hij zij de er worden",
}
_STOP_SETS = {language: frozenset(words.split()) for language, words in _STOP_WORDS.items()}
# A single Greek or Cyrillic letter is a sign, not a word.
_SCRIPTS = (
    ("Latin", re.compile("[A-Za-zÀ-ɏ]+")),
    ("Greek", re.compile("[Ͱ-Ͽ]{2,}")),
    ("Cyrillic", re.compile("[Ѐ-ӿ]{2,}")),
    ("Arabic", re.compile("[؀-ۿ]{2,}")),
    ("Devanagari", re.compile("[ऀ-ॿ]{2,}")),
    ("Chinese or Japanese", re.compile("[぀-ヿ㐀-鿿]+")),
    ("Korean", re.compile("[가-힯]+")),
)
_MIN_WORDS = 8


def language(pair: CheckInput) -> str | None:
    before, after = _scripts(pair.original), _scripts(pair.rephrasing)
    total = sum(after.values())
    for script, count in after.items():
        if count > max(3, 0.02 * total) and before[script] <= 0.01 * sum(before.values()):
            return f"{count} of its {total} letters are {script}; the original has {before[script]}"
    language, was = _stop_language(pair.rephrasing), _stop_language(pair.original)
    if language and was and language != was:
        return f"it seems to be {language}; the original is {was}"
    return None


def _scripts(text: Text) -> Counter[str]:
    return Counter({name: sum(map(len, letters.findall(text.raw))) for name, letters in _SCRIPTS})


def _stop_language(text: Text) -> str | None:
    """The language whose small words are most frequent; None if the text is short or none is clear."""
    words = re.findall(r"(?<!\\)\b[^\W\d_]+", text.prose)
    if len(words) < _MIN_WORDS:
        return None
    shares = {language: sum(word in stop for word in words) / len(words) for language, stop in _STOP_SETS.items()}
    best, next_best = sorted(shares, key=lambda language: -shares[language])[:2]
    return best if shares[best] > 0.12 and shares[best] > 1.3 * shares[next_best] else None


# ---- Figures and options --------------------------------------------------------------------------------------------


def figure(pair: CheckInput) -> str | None:
    before, after = (
        Counter("".join(code.split()) for code in side.figures) for side in (pair.original, pair.rephrasing)
    )
    if before == after and pair.original.raw.count("[asy]") == pair.rephrasing.raw.count("[asy]"):
        return None
    kept = sum((before & after).values())
    return (
        f"{kept} of the {sum(before.values())} figures are kept as they are, and {sum((after - before).values())} new"
    )


_OPTION = re.compile(r"(?:(?<=[\s{,;$])|^)(?:\(([A-J])\)|\\textbf\{\(([A-J])\)[^}]{0,9}\}|([A-J])[.)](?=\s))")


def options(pair: CheckInput) -> str | None:
    before, after = _read_options(pair.original), _read_options(pair.rephrasing)
    if len(before) < 2 and len(after) < 2:
        return None
    if list(before) != list(after):
        return f"the options are {' '.join(after) or 'gone'}; the original has {' '.join(before) or 'none'}"
    changed = [label for label in before if before[label] != after[label]]
    return f"option {changed[0]} is another one" if changed else None


def _read_options(text: Text) -> dict[str, list[str]]:
    """Options by letter, if the letters run from A on; what stands behind the last one is read to the line's end."""
    found = list(_OPTION.finditer(text.without_figures))
    letters = [match[1] or match[2] or match[3] for match in found]
    if not letters or letters != [chr(ord("A") + i) for i in range(len(letters))]:
        return {}
    ends = [match.start() for match in found[1:]] + [len(text.without_figures)]
    contents = [text.without_figures[match.end() : end] for match, end in zip(found, ends, strict=True)]
    contents[-1] = contents[-1].lstrip().split("\n")[0]
    return {letter: normalised_words(content) for letter, content in zip(letters, contents, strict=True)}
