r"""Rephrasings by rule, without a model: deterministic, for any question, and modest.

A rule changes how a question is written, never what it says, and makes no proposal where it cannot be sure. Formulas
and figures are not touched, except for a renaming of variables. Every proposal has passed ``checks`` against the
question and the proposals before it, so there may be fewer than were asked for, or none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

from ta_grpo.errors import UserError
from ta_grpo.rephrasing import formulas as mathematics
from ta_grpo.rephrasing.checks import check_rephrasing
from ta_grpo.rephrasing.names import MEN, WOMEN
from ta_grpo.rephrasing.records import Proposal
from ta_grpo.rephrasing.sentences import ABBREVIATION, MASK, masked, sentence_starts, sentences
from ta_grpo.rephrasing.texts import figures_of

MAX_CHARACTERS = 10_000
"""Longer texts are no question that rules are made for; none is proposed."""


def rule_rephrasings(
    question: str, count: int, answer: str = "", transformations: Sequence[str] | None = None, seed: int = 0
) -> list[Proposal]:
    """At most ``count`` rephrasings, each accepted by the checks; the transformations take turns, in random order.

    Args:
        question: the question's text.
        count: how many are wanted, 0 <= count.
        answer: the final answer; names and variables that are in it are not renamed.
        transformations: names out of ``TRANSFORMATIONS``. Default: all.
        seed: another seed, another choice among what the rules can do.

    Raises:
        UserError: a transformation that does not exist, or a negative count.
    """
    names = list(TRANSFORMATIONS if transformations is None else transformations)
    if unknown := [name for name in names if name not in RULES]:
        raise UserError(f"{unknown[0]!r} is no transformation by rule; there are {', '.join(TRANSFORMATIONS)}")
    if count < 0:
        raise UserError(f"count must be at least 0; got {count}")
    accepted: list[Proposal] = []
    if count == 0 or not question.strip() or len(question) > MAX_CHARACTERS:
        return accepted
    rng = Random(f"{seed} {question}")
    proposals = {name: RULES[name](question, answer, rng) for name in rng.sample(names, len(names))}
    weakest = (("wording", text) for text in introduced(question, rng) if "wording" in names)
    for name, text in itertools.chain(_in_turns(proposals), weakest):
        siblings = [proposal.text for proposal in accepted]
        if not check_rephrasing(question, text, answer, siblings):
            accepted.append(Proposal(text, name))
            if len(accepted) == count:
                break
    return accepted


def _in_turns(proposals: Mapping[str, Iterator[str]]) -> Iterator[tuple[str, str]]:
    """One text of each iterator, then the next of each, until all are at their end."""
    for texts in itertools.zip_longest(*proposals.values()):
        yield from ((name, text) for name, text in zip(proposals, texts, strict=True) if text is not None)


# ---- Facts and question ----------------------------------------------------------------------------------------------

_ASKING = re.compile(
    r"^(?:(?:If|Given|Suppose|When|Assuming|In|For|On|At|After|By|To|With|Then|And|So|Now|Based)\b[^?]*?[, ]\s*)?"
    r"(?:how|what|which|find|determine|calculate|compute|evaluate|simplify|express|solve|when|who|where)\b.*",
    re.IGNORECASE | re.DOTALL,
)
# What may stand behind the question: how to write the answer.
_ANSWER_FORM = re.compile(
    r"^\(?(?:Express|Give|Write|Enter|Round|Leave|State|Simplify|Provide|Your answer|Assume|Please)\b.*", re.DOTALL
)


def _parts(question: str) -> tuple[list[str], str] | None:
    """The facts, and the question with what is said of the form of its answer; None if that is not how it is built."""
    if figures_of(question) or "\n" in question.strip() or _has_options(question):
        return None
    parts = sentences(question)
    first = next((index for index, sentence in enumerate(parts) if _asks(sentence)), None)
    if first is None or first == 0:
        return None
    asked, behind = parts[first], parts[first + 1 :]
    if not all(_ANSWER_FORM.match(sentence) for sentence in behind):
        return None
    facts = parts[:first]
    if any("?" in masked(fact) or not re.search(r"[.!]\W*$|\$$|\\\]$", fact) for fact in facts):
        return None
    return facts, " ".join([asked, *behind])


def _asks(sentence: str) -> bool:
    hidden = masked(sentence)
    return hidden.rstrip("\"'”’)").endswith("?") or bool(_COMMAND.match(hidden))


def _has_options(question: str) -> bool:
    return bool(re.search(r"\([A-E]\)|(?:^|\s)[A-E][.)]\s.*(?:^|\s)[B-E][.)]\s", question, re.DOTALL))


# ---- Wording --------------------------------------------------------------------------------------------------------

_VERBS = ("Find", "Determine", "Calculate", "Compute")
_COMMAND = re.compile(r"^(?:Find|Determine|Calculate|Compute|Evaluate|Simplify|Solve|Express)\b")
_NOUN = (
    r"(?:the|his|her|their|its|[A-Z][a-z]+['’]s)\s+(?!most\b|least\b|point of)(?:[a-z-]+\s+){0,3}?"
    r"(?:value|sum|product|difference|area|volume|perimeter|length|width|height|probability|number|remainder|average|"
    r"mean|median|mode|distance|cost|price|profit|total|amount|ratio|percentage|age|speed|weight|time|answer|integer|"
    r"degree|slope|radius|diameter|circumference|measure|coefficient|quotient|digit|constant|result)\b"
)
_WHAT_IS = re.compile(rf"^What (?:is|are) (?P<what>{_NOUN}[^?]*|{MASK}+)\?(?P<rest>.*)$", re.DOTALL)
_MID_WHAT_IS = re.compile(
    rf"^(?P<given>(?:If|Given|When|Suppose)\b[^?]*), what is (?P<what>{_NOUN}[^?]*)\?$", re.DOTALL
)
_COUNT_IN = re.compile(
    r"^How many (?!more|fewer|less|of\b|total)(?P<what>(?:[a-z-]+ ){0,4}[a-z-]+) are(?: there)? "
    r"(?P<where>(?:in|on|at|among|between) [^?]*)\?(?P<rest>.*)$",
    re.DOTALL,
)
_FIND_THE = re.compile(
    rf"^(?:Find|Determine|Calculate|Compute) (?P<what>{_NOUN}[^.]*?|{MASK}+)\.(?P<rest>.*)$", re.DOTALL
)
_TURNABLE = re.compile(
    r"(?:What (?:is|are)|How many|If|Given|When|Suppose|Find|Determine|Calculate|Compute|Evaluate|Simplify|Solve"
    r"|Express)\b"
)
_SEVERAL = re.compile(r"\band\b|\bor\b|;|\ball\b|,")
_SYNONYMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\bevery day\b", ("each day",)),
    (r"\beach day\b", ("every day",)),
    (r"\beach week\b", ("every week",)),
    (r"\bevery week\b", ("each week",)),
    (r"\bin total(?=\?| [a-z])", ("altogether",)),
    (r"\baltogether\b", ("in total",)),
    (r"\bin all(?=\?)", ("altogether", "in total")),
    (r"\bbought\b", ("purchased",)),
    (r"\bbuys\b", ("purchases",)),
    (r"\bpurchased\b", ("bought",)),
    (r"\bkids\b(?!['’])", ("children",)),
    (r"\btwice as (?=many|much|old|long|tall|fast)", ("two times as ",)),
    (r"\bis equal to\b(?! or\b)", ("equals",)),
    (r"\bhow much money\b", ("what amount of money",)),
    (r"\bExpress your answer\b", ("Give your answer", "Write your answer")),
    (r"\bGive your answer\b", ("Express your answer", "Write your answer")),
    (r"^Suppose(?= that\b| [A-Z$" + MASK + r"])", ("Assume",)),
    (r"\bGiven that\b", ("Assuming that",)),
)  # fmt: skip
_PREFIXES = (
    "Solve the following problem.",
    "Consider this problem and work out what is asked.",
    "Here is a problem to solve.",
    "Read the problem below and answer it.",
    "Here is a question for you.",
    "Please answer the question below.",
)


def wording(question: str, answer: str, rng: Random) -> Iterator[str]:
    """Questions as commands and commands as questions, and other words for the same."""
    for text in _turned(question, rng):
        yield _other_words(text, rng)
    if (text := _other_words(question, rng)) != question:
        yield text


def introduced(question: str, rng: Random) -> Iterator[str]:
    """A sentence in front that changes nothing: the weakest rule, for when no other is left."""
    prefixes = rng.sample(_PREFIXES, len(_PREFIXES))
    texts = [*_turned(question, rng), _other_words(question, rng)]
    for prefix, text in zip(prefixes, itertools.cycle(texts), strict=False):
        yield f"{prefix} {text}"
    for prefix in prefixes:
        yield f"{prefix}\n\n{question}"


def _turned(question: str, rng: Random) -> Iterator[str]:
    """The question with its asking sentence turned round or led by another verb."""
    hidden = masked(question)
    asking = [start for start in sentence_starts(hidden) if _TURNABLE.match(hidden[start:])]
    if len(asking) != 1 or hidden.count("?") > 1:
        return
    start = asking[0]
    sentence, shown = question[start:], hidden[start:]
    verbs = rng.sample(_VERBS, len(_VERBS))
    for new in _new_questions(sentence, shown, verbs):
        yield question[:start] + new


def _new_questions(sentence: str, hidden: str, verbs: Sequence[str]) -> Iterator[str]:
    def shown(match: re.Match[str], group: str) -> str:
        return sentence[match.start(group) : match.end(group)]

    if what := _WHAT_IS.match(hidden):
        yield from (f"{verb} {shown(what, 'what')}.{shown(what, 'rest')}" for verb in verbs)
    elif what := _MID_WHAT_IS.match(hidden):
        yield from (f"{shown(what, 'given')}, {verb.lower()} {shown(what, 'what')}." for verb in verbs)
    elif how := _COUNT_IN.match(hidden):
        yield from (
            f"{verb} the number of {shown(how, 'what')} {shown(how, 'where')}.{shown(how, 'rest')}" for verb in verbs
        )
    elif find := _FIND_THE.match(hidden):
        if ABBREVIATION.search(hidden[: find.end("what") + 1]):
            return
        if not _SEVERAL.search(find["what"]) and not re.search(r"\b(?:that|if|when|given)\b", find["what"]):
            yield f"What is {shown(find, 'what')}?{shown(find, 'rest')}"
        written = hidden.split(" ", 1)[0]
        yield from (verb + sentence[len(written) :] for verb in verbs if verb != written)


def _other_words(text: str, rng: Random) -> str:
    """Every word or phrase that has a synonym for sure is replaced by one; formulas stay."""
    for pattern, replacements in _SYNONYMS:
        hidden = masked(text)
        for found in reversed(list(re.finditer(pattern, hidden))):
            text = text[: found.start()] + rng.choice(replacements) + text[found.end() :]
    return text


# ---- Format ---------------------------------------------------------------------------------------------------------

_LAYOUTS = (
    ("Given:", "- ", "Find:"),
    ("Facts:", "* ", "Question:"),
    ("What is known:", "• ", "What is asked:"),
)


def layout(question: str, answer: str, rng: Random) -> Iterator[str]:
    """A list of the facts, then what is asked."""
    parts = _parts(question)
    if parts is None:
        return
    facts, asked = parts
    for head, bullet, foot in rng.sample(_LAYOUTS, len(_LAYOUTS)):
        # A command stands badly behind "Find:".
        foot = "Task:" if _COMMAND.match(asked) else "Question:" if foot == "Find:" else foot
        yield "\n".join([head, *(bullet + fact for fact in facts), f"{foot} {asked}"])
    yield "\n\n".join(["Problem", " ".join(facts), "Question", asked])


# ---- Order ----------------------------------------------------------------------------------------------------------

_IF = re.compile(
    r"^(?P<word>If|Given that|When) (?P<condition>[^?]*), "
    r"(?P<asked>(?:how|what|which|find|determine|compute|calculate)\b[^?,]*)(?P<end>[?.])$",
    re.DOTALL,
)
_REFERS = re.compile(
    r"\b(?:he|she|it|they|him|her|them|his|hers|its|their|theirs|this|that|these|those|such|both|each|all|then|there|other|"
    r"another|same|rest|remaining|left|former|latter|next|after|before|later|now|also|still|again|more|first|last|one|"
    r"some|so|instead|however|finally|together|respectively|two|three|respective|the)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\b(?:he|she|it|they|him|her|them|his|hers|its|their|theirs|this|that|these|those|such|then|there|now|left|"
    r"remaining|respectively)\b",
    re.IGNORECASE,
)

# In front of the story, these words would point at nothing.
_POINTS_UP = re.compile(r"\b(?:this|these|those|such|above|then|therefore|thus|former|latter)\b", re.IGNORECASE)
_PERSON = re.compile(r"\b(?:he|she|him|her|his|hers|himself|herself)\b", re.IGNORECASE)


def order(question: str, answer: str, rng: Random) -> Iterator[str]:
    """What is asked comes first, or a condition behind the question, or two facts that do not refer change places."""
    parts = _parts(question)
    if parts is not None:
        facts, asked = parts
        story = " ".join(facts)
        forms = [
            f"Answer the question about the situation described after it.\nQuestion: {asked}\nSituation: {story}",
            f"To answer: {asked}\n\nInformation needed: {story}",
            f"{asked}\n\nUse these facts: {story}",
        ]
        if not _POINTS_UP.search(masked(asked)) and not re.search(r"\b(?:above|below|following)\b", masked(story)):
            yield from rng.sample(forms, len(forms))
        swapped = None if _PERSON.search(masked(asked)) else _swapped(facts)
        if swapped:
            yield " ".join([*swapped, asked])
    if turned := _condition_behind(question):
        yield turned


def _condition_behind(question: str) -> str | None:
    """ "If A, what is B?" as "What is B if A?", unless B refers to A by a pronoun."""
    if figures_of(question) or _has_options(question):
        return None
    *before, last = sentences(question)
    hidden = masked(last)
    found = _IF.match(hidden)
    if not found or _PRONOUN.search(found["asked"]) or "?" in masked(" ".join(before)):
        return None
    condition, asked = (last[found.start(group) : found.end(group)] for group in ("condition", "asked"))
    if re.search(r", (?:how|what|which|find|and then)\b|\bthen$", masked(condition)):
        return None
    turned = f"{asked[0].upper()}{asked[1:]} {found['word'][0].lower()}{found['word'][1:]} {condition}{found['end']}"
    return " ".join([*before, turned])


def _swapped(facts: Sequence[str]) -> list[str] | None:
    """The facts with the first two neighbours exchanged that refer to nothing and share no variable."""
    for index, (one, other) in enumerate(itertools.pairwise(facts)):
        if any(_REFERS.search(masked(fact)) or not re.match("[A-Z]", fact) for fact in (one, other)):
            continue
        shared = set(_letters(one)) & set(_letters(other))
        names = set(re.findall(r"(?<!^)\b[A-Z][a-z]+", one)) & set(re.findall(r"\b[A-Z][a-z]+", other))
        if shared or names or (index and _REFERS.search(masked(facts[index - 1]))):
            continue
        if any(_PRONOUN.search(masked(fact)) for fact in facts[index + 2 :]):
            continue
        return [*facts[:index], other, one, *facts[index + 2 :]]
    return None


def _letters(text: str) -> list[str]:
    return [letter for formula in mathematics.formulas(text) for letter in mathematics.variables(formula.tokens)]


# ---- Setting: people ------------------------------------------------------------------------------------------------

_ABOUT_NAMES = re.compile(
    r"\b(?:letters?|alphabet\w*|names?|spell\w*|initials?|vowels?|consonants?|anagrams?|rhym\w*)\b", re.I
)
_TIMES = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|May|June|July|August|September|October|November|December"  # noqa: E501
_GROUP = {name: group for group in (WOMEN, MEN) for name in group}


def setting(question: str, answer: str, rng: Random) -> Iterator[str]:
    """Other first names for the people, of the same group; pronouns stay right."""
    if _ABOUT_NAMES.search(masked(question).replace("named", "").replace(" name is ", "")) or figures_of(question):
        return
    hidden = masked(question)
    present = [name for name in dict.fromkeys(re.findall(r"\b[A-Z][a-z]+\b", hidden)) if name in _GROUP]
    if not present or not all(_stands_alone(name, hidden) for name in present):
        return
    if any(name.casefold() in answer.casefold() for name in present) or _short_forms(present, hidden):
        return
    initials = set(re.findall(r"(?<![A-Za-z'’\\])[A-Z](?![A-Za-z'’])", question)) - {"I", "A"}
    initials.update(word[0] for word in re.findall(r"\b[A-Z]{2,3}\b", hidden))
    if initials & {name[0] for name in present}:
        return
    for _ in range(4):
        used, new_names = set(re.findall(r"[A-Za-z]+", question)), {}
        for name in present:
            free = [
                other
                for other in _GROUP[name]
                if other not in used
                and other not in new_names.values()
                and not _alike(other, [*used, *new_names.values()])
            ]
            new_names[name] = rng.choice(free)
        yield _rename_words(question, hidden, new_names)


def _stands_alone(name: str, hidden: str) -> bool:
    """Whether each mention of a name is a first name by itself: no title, no surname, no place or brand."""
    for found in re.finditer(rf"\b{name}\b", hidden):
        before, behind = hidden[: found.start()], hidden[found.end() :]
        if re.match(rf"(?:['’]s)?[ -](?!(?:{_TIMES}|I)\b)[A-Z]|-|\.?[A-Z]|['’](?!s\b|\s|ll\b|d\b)", behind):
            return False
        if re.search(r"\b(?:Mr|Mrs|Ms|Dr|St|Mt)\.\s*$|-$|[a-z]$", before):
            return False
        previous = re.search(r"(?P<lead>^|[.?!:;,\"“”]\s+)?\b(?P<word>[A-Z][\w'’]*)\s+$", before)
        if previous and previous["lead"] is None and not re.fullmatch(rf"{_TIMES}|I", previous["word"]):
            return False
        if previous and previous["lead"] is not None and previous["word"] in _TITLES:
            return False
    return True


_TITLES = frozenset(
    [
        "Saint",
        "San",
        "Santa",
        "King",
        "Queen",
        "Prince",
        "Princess",
        "Lord",
        "Lady",
        "Sir",
        "Uncle",
        "Aunt",
        "Miss",
        "Coach",
        "Lake",
        "Mount",
        "Mister",
        "Captain",
    ]
)


def _short_forms(present: Sequence[str], hidden: str) -> bool:
    """Whether a name and its short form may be one person: Tim and Timothy, Dan and Daniel."""
    words = set(re.findall(r"\b[A-Z][a-z]+", hidden))
    return any(
        word != name and (word.startswith(name[:3]) or (name.startswith(word) and len(word) > 1))
        for name in present
        for word in words
        if word in _GROUP or (len(word) <= 5 and word.startswith(name[:3]))
    )


def _alike(name: str, others: Sequence[str]) -> bool:
    return any(other[:1].isupper() and other[:3] == name[:3] for other in others)


def _rename_words(question: str, hidden: str, new_names: Mapping[str, str]) -> str:
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, new_names))})\b")
    pieces, position = [], 0
    for found in pattern.finditer(hidden):
        pieces += [question[position : found.start()], new_names[found[0]]]
        position = found.end()
    return "".join(pieces) + question[position:]


# ---- Variables ------------------------------------------------------------------------------------------------------

_RENAMABLE = "abckmnpqrstuvwxyz"
# A letter becomes one that is used for the same sort of thing: integers, or any numbers.
_FRESH = ("kmnpqrst", "abcuvwxyzpqrst")
_FIXED_MEANING = re.compile(
    r"axis|axes|coordinate|intercept|\bplane\b|graph|quadrant|parabola|ellipse|hyperbola|polar|integral|derivative|"
    r"alphabet|\bletters?\b|\bbase\b|\\int|\\frac\{d|\\overline|\\partial|\bline\b|circle|triangle|polygon|angle|"
    r"vector|matri|slope|curve|\bsides?\b|\bvertex|\bvertices|\bunits?\b",
    re.IGNORECASE,
)
_COMMANDS_AND_TEXT = re.compile(
    r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\*?\s*\{[^{}]*\}(?:\{[^{}]*\})?|\\[A-Za-z]+|\\."
)


def variables(question: str, answer: str, rng: Random) -> Iterator[str]:
    """Other letters for the variables, each renamed in all formulas.

    Not renamed: capitals, functions, e, i, d, letters in the answer or in plain text. Questions in which letters have
    a fixed meaning (axes, figures, integrals, bases) are left alone.
    """
    spans = [(found.start, found.end) for found in mathematics.formulas(question)]
    if not spans or figures_of(question) or _has_options(question) or _FIXED_MEANING.search(question):
        return
    if any(not question[start:end].startswith(("$", "\\")) for start, end in spans):
        return
    bodies = [_COMMANDS_AND_TEXT.sub(" ", question[start:end]) for start, end in spans]
    if any(re.search(r"[A-Za-z]{5,}|(?:mod|gcd|lcm|sin|cos|tan|log|max|min)", body) for body in bodies):
        return
    prose = set(re.findall(r"(?<![A-Za-z\\'’])[A-Za-z](?![A-Za-z'’])", masked(question)))
    used = {letter for body in bodies for letter in body if letter.isalpha()}
    in_answer = set(re.findall("[A-Za-z]", _COMMANDS_AND_TEXT.sub(" ", answer)))
    present = [letter for letter in _RENAMABLE if letter in used]
    if not present or used & in_answer or any(_is_unit(letter, bodies) for letter in present):
        return
    if (prose - {"a", "A", "I"}) & used:
        return
    for _ in range(3):
        new: dict[str, str] = {}
        for letter in present:
            like = next(letters for letters in _FRESH if letter in letters)
            free = [other for other in like if other not in used | prose | set(new.values())]
            if not free:
                return
            new[letter] = rng.choice(free)
        yield _rename_letters(question, spans, new)


def _is_unit(letter: str, bodies: Sequence[str]) -> bool:
    """Metres, seconds, grams and the like behind a number."""
    return letter in "msgl" and any(re.search(rf"\d\s+{letter}\b|\d{letter}\b(?!\s*[\^_(])", body) for body in bodies)


def _rename_letters(question: str, spans: Sequence[tuple[int, int]], new: Mapping[str, str]) -> str:
    pieces, position = [], 0
    for start, end in spans:
        body, kept = question[start:end], 0
        pieces.append(question[position:start])
        for protected in _COMMANDS_AND_TEXT.finditer(body):
            pieces += ["".join(new.get(letter, letter) for letter in body[kept : protected.start()]), protected[0]]
            kept = protected.end()
        pieces.append("".join(new.get(letter, letter) for letter in body[kept:]))
        position = end
    return "".join(pieces) + question[position:]


Rule = Callable[[str, str, Random], Iterator[str]]
RULES: Mapping[str, Rule] = MappingProxyType(
    {"wording": wording, "format": layout, "order": order, "setting": setting, "variables": variables}
)
TRANSFORMATIONS: tuple[str, ...] = tuple(RULES)
