"""Checks of what a rephrasing says: its numbers, formulas and variables, no answer given away, the same thing asked."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from . import formulas as mathematics
from .quantities import Mention, mentions
from .texts import ASKS, CheckInput, Text, normalised_words

_MAX_RENAMED = 5

# ---- Numbers --------------------------------------------------------------------------------------------------------

_SHARED_OUT = re.compile(r"\b(?:each|every|both|all|apiece|same|equal\w*|respectively|either|identical)\b")
_POINTS_BACK = re.compile(
    r"\b(?:the|(?:this|that|these|those|all|each|every|both|same|her|his|their|its|said)(?:\W+[a-z]+)?)\W+$"
)
# Words that say a quantity without its number.
_VAGUE = re.compile(r"(?i)\b(?:some|several|a few|many|multiple|numerous|a (?:certain |large |small )?number of)\b")
_MONEY_SIGN = re.compile(r"[$£€]\s*$")
_MONEY_WORD = re.compile(r"^\W{0,2}(?:us )?(?:dollars?|bucks|cents?|euros?)\b", re.IGNORECASE)
_PERCENT = re.compile(r"%|\bper\s?cent|\bpercent")
_NEAR = 25
_FREE = frozenset([Fraction(0), Fraction(1)])
_COUNTS_THINGS = Fraction(2)


def numbers(pair: CheckInput) -> str | None:
    reasons = [*_missing_numbers(pair), *_new_numbers(pair)]
    if bool(_PERCENT.search(pair.original.lower)) != bool(_PERCENT.search(pair.rephrasing.lower)) and not (
        reasons or _percent_respelled(pair)
    ):
        reasons.append("percent in one of the texts only")
    return "; ".join(reasons) or None


def _missing_numbers(pair: CheckInput) -> Iterable[str]:
    """Numbers of the original that the rephrasing does not mention, or mentions too seldom."""
    before = [mention for mention in pair.original.mentions if not mention.loose and mention.values[0] not in _FREE]
    needed = Counter(mention.values[0] for mention in before)
    again = Counter(mention.values[0] for mention in before if _points_back(mention, pair.original))
    after = Counter(value for mention in pair.rephrasing.mentions for value in _stands_for(mention, needed))
    vaguer = pair.rephrasing.count(_VAGUE) > pair.original.count(_VAGUE)
    missing, fewer = [], []
    for mention in {mention.values[0]: mention for mention in before}.values():
        value = mention.values[0]
        have = max(after[value] for value in mention.values)
        if not have:
            missing.append(mention.text)
        elif have < needed[value] - min(again[value], needed[value] - 1) and (
            vaguer or not _shared_out(mention, pair.rephrasing)
        ):
            fewer.append(f"{mention.text} {have} times, not {needed[value]}")
        elif len(_as_money(mention, pair.original)) > len(_as_money(mention, pair.rephrasing)):
            fewer.append(f"{mention.text} only as an amount of money, or never as one")
    if missing:
        yield f"{_listed(missing)} of the original not there"
    if fewer:
        yield f"mentions {_listed(fewer)}"


def _stands_for(mention: Mention, needed: Mapping[Fraction, int]) -> tuple[Fraction, ...]:
    """The values that a mention may cover: another reading than the first only if the first one is not needed."""
    return mention.values[:1] if needed.get(mention.values[0]) else mention.values


def _as_money(number: Mention, text: Text) -> set[bool]:
    """Whether a text mentions a number as an amount of money (True), and whether as another number (False)."""
    kinds = set()
    for there in text.mentions:
        if set(there.values) & set(number.values):
            end = there.start + len(there.text)
            before, behind = text.without_figures[: there.start], text.without_figures[end : end + 12]
            kinds.add(bool(_MONEY_SIGN.search(before[-4:]) or _MONEY_WORD.search(behind)))
    return kinds


def _shared_out(mention: Mention, text: Text) -> bool:
    """Whether one mention serves for several things: "both at $7 each", "three pairs each of"."""
    for there in text.mentions:
        if set(there.values) & set(mention.values):
            end = there.start + len(there.text)
            around = text.without_figures[max(0, there.start - _NEAR) : end + _NEAR]
            if _SHARED_OUT.search(around.casefold()):
                return True
    return False


def _new_numbers(pair: CheckInput) -> Iterable[str]:
    """Numbers that the original does not mention, or that are mentioned again without a word that points back."""
    before = Counter(value for mention in pair.original.mentions for value in set(mention.values))
    after = [mention for mention in pair.rephrasing.mentions if not mention.loose]
    counts = Counter(mention.values[0] for mention in after)
    back = Counter(mention.values[0] for mention in after if _points_back(mention, pair.rephrasing))
    new, more = {}, []
    for value, mention in {mention.values[0]: mention for mention in after}.items():
        have = max(before[value] for value in mention.values)
        said_again = counts[value] - have
        if (value in _FREE and mention.word) or said_again <= 0:
            continue
        if not have and not (value == _COUNTS_THINGS and mention.word and back[value]):
            new[value] = mention.text
        elif have and value not in _FREE and said_again > back[value]:
            more.append(f"{mention.text} {counts[value]} times, not {have}")
    if new:
        yield f"{_listed(new.values())} not in the original"
    if more:
        yield f"mentions {_listed(more)}"


def _points_back(mention: Mention, text: Text) -> bool:
    """``those 4 hours``; a number in a formula too, since formulas are compared as a whole."""
    if any(formula.start <= mention.start < formula.end for formula in text.formulas if len(formula.tokens) > 1):
        return True
    return bool(_POINTS_BACK.search(text.without_figures[max(0, mention.start - 40) : mention.start].casefold()))


def _percent_respelled(pair: CheckInput) -> bool:
    """``50%`` as "half": a number that is there as its hundredth only."""
    values = {value for mention in pair.rephrasing.mentions for value in mention.values}
    return any(len(mention.values) > 1 and mention.values[1] in values for mention in pair.original.mentions) or any(
        len(mention.values) > 1 for mention in pair.rephrasing.mentions
    )


def _listed(items: Iterable[str]) -> str:
    items = list(items)
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return ", ".join(item[:40] for item in items[:5]) + more


# ---- Formulas and variables -----------------------------------------------------------------------------------------

# Words that may stand for a sign in a short formula.
_IN_WORDS: dict[str, str] = {
    "=": r"\b(?:equals?|is|are|be|was|were|has|have|of|satisf\w+|same)\b",
    "<": r"\b(?:less|below|under|smaller|fewer|between|negative|exceeds?|before)\b",
    ">": r"\b(?:greater|more|above|over|larger|exceed\w*|positive|between|bigger)\b",
    r"\leq": r"\b(?:most|less|not exceed\w*|no more|up to|maximum|between|from|through|inclusive|range)\b",
    r"\geq": r"\b(?:least|greater|no less|no fewer|not less|minimum|non-?negative|up|starting)\b",
    r"\neq": r"\b(?:not|distinct|different|other|non-?zero|unequal|except)\b",
    r"\cdot": r"\b(?:times|by|product|multipl\w+)\b",
    "+": r"\b(?:plus|sum|add\w*|positive|total|increase\w*)\b",
    "-": r"\b(?:minus|difference|subtract\w*|negative|below|decrease\w*)\b",
    "/": r"\b(?:over|divided|per|quotient|ratio|half|third|quarter|to|by)\b",
    r"\frac": r"\b(?:over|divided|quotient|ratio|half|third|quarter|\d+/\d+|\w+ths?)\b",
    "^": r"\b(?:squared?|cubed?|power|raised|degrees?|square|cube)\b",
    r"\circ": r"\b(?:degrees?)\b|°",
    r"\%": r"\bper\s?cent|%",
    r"\sqrt": r"\broots?\b",
    r"\triangle": r"\btriangles?\b",
    r"\angle": r"\bangles?\b",
    r"\pi": r"\bpi\b|π",
    r"\pmod": r"\b(?:modulo?|remainder)\b",
    r"\equiv": r"\bcongruent\b",
    r"\perp": r"\bperpendicular\b",
    r"\parallel": r"\bparallel\b",
    "|": r"\babsolute|magnitude|distance\b", ":": r"\b(?:ratio|to)\b",
}  # fmt: skip
_SHORT = 5


def formulas(pair: CheckInput) -> str | None:
    before = [formula.tokens for formula in pair.original.formulas]
    after = [formula.tokens for formula in pair.rephrasing.formulas]
    first: str | None = None
    for new_name in _renamings(before, after):
        old_name = {new: old for old, new in new_name.items()}
        lost = _not_in(_renamed(before, new_name), after, pair.rephrasing)
        new = _not_in(_renamed(after, old_name), before, pair.original)
        if lost is None and new is None:
            return None
        found = f"the formula {lost} is not there as it was" if lost else f"the formula {new} is not in the original"
        first = first or found
    return first


def _renamed(formulas: Sequence[tuple[str, ...]], names: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [tuple(names.get(token, token) for token in tokens) for tokens in formulas]


def _renamings(before: Sequence[tuple[str, ...]], after: Sequence[tuple[str, ...]]) -> Iterable[dict[str, str]]:
    """Ways to rename the variables that are gone to the ones that are new; no renaming comes last, if not alone."""
    gone, new = _gone_and_new(before, after)
    if 0 < len(gone) == len(new) <= _MAX_RENAMED:
        yield from (dict(zip(gone, order, strict=True)) for order in itertools.permutations(new))
    yield {}


def _gone_and_new(before: Sequence[tuple[str, ...]], after: Sequence[tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Variables of the first texts only, and of the second only, in order of appearance."""
    was, now = (
        dict.fromkeys(letter for tokens in side for letter in mathematics.variables(tokens)) for side in (before, after)
    )
    return [letter for letter in was if letter not in now], [letter for letter in now if letter not in was]


def _not_in(formulas: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]], text: Text) -> str | None:
    """The first formula that is neither part of the others nor said in the words of their text."""
    stream = f" {' '.join(token for tokens in others for token in tokens)} "
    for tokens in formulas:
        if len(tokens) > 1 and f" {' '.join(tokens)} " not in stream and not _in_words(tokens, text):
            return _shown(tokens)
    return None


def _in_words(tokens: tuple[str, ...], text: Text) -> bool:
    """Whether the text says a short formula in words: its variables and a word for each sign, close together.

    Its numbers are left to the check of numbers.
    """
    letters = [token for token in tokens if token in mathematics.GREEK or re.fullmatch("[A-Za-z]", token)]
    signs = [token for token in tokens if token not in letters and not re.fullmatch(r"\d.*|\.\d+", token)]
    if len(tokens) > _SHORT or not signs or any(sign not in _IN_WORDS for sign in signs):
        return False
    windows = [text.said]
    if letters:
        places = itertools.islice(_letter_at(letters[0]).finditer(text.said), _MOST_PLACES)
        windows = [text.said[max(0, at.start() - _WINDOW) : at.end() + _WINDOW] for at in places]
    return any(
        all(_letter_at(letter).search(window) for letter in letters)
        and all(re.search(_IN_WORDS[sign], window) for sign in signs)
        for window in windows
    )


_WINDOW = 60
_MOST_PLACES = 50


@functools.lru_cache(maxsize=256)
def _letter_at(letter: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z\\]){re.escape(letter)}(?![A-Za-z])", re.IGNORECASE)


def _shown(tokens: tuple[str, ...]) -> str:
    written = " ".join(tokens)
    return repr(written if len(written) <= 60 else written[:57] + "…")


_FIXED = frozenset(["e", "i"])


def variables(pair: CheckInput) -> str | None:
    before = [formula.tokens for formula in pair.original.formulas]
    after = [formula.tokens for formula in pair.rephrasing.formulas]
    gone, new = _gone_and_new(before, after)
    prose = set(re.findall(r"(?<![\w\\'])[A-Za-z](?![\w'])", pair.rephrasing.without_figures))
    in_formulas = {letter for tokens in before if len(tokens) > 1 for letter in mathematics.variables(tokens)}
    lost = [letter for letter in gone if letter in in_formulas and letter not in prose]
    if len(new) == len(gone):
        if fixed := _FIXED & {*gone, *new}:
            return f"{sorted(fixed)[0]} may be a constant and is not renamed"
        return None
    if new and len(new) < len(gone) - len([letter for letter in gone if letter not in in_formulas]):
        return f"{len(gone)} variables ({_listed(gone)}) have become {len(new)} ({_listed(new)})"
    if lost and not new:
        return f"the variable {_listed(lost)} is not there"
    used = Counter(letter for tokens in after if len(tokens) > 1 for letter in mathematics.variables(tokens))
    said = set(re.findall(r"(?<![\w\\'])[A-Za-z](?![\w'])", pair.original.without_figures))
    extra = [letter for letter in new if letter not in said and (used[letter] or before)]
    if len(new) > len(gone) and extra:
        return f"the variable {_listed(extra)} is new"
    return None


# ---- Answers and solutions ------------------------------------------------------------------------------------------

_ANSWER_GIVEN = re.compile(
    r"\\boxed|\\fbox|####"
    r"|(?i:\banswer ?(?:is|was|equals|comes|would be|will be)\b(?! ?[?_])|\banswer ?[=:](?! ?[?_])"
    r"|\b(?:result|total|solution) (?:is|=|equals) (?:\\?\$ ?)*-?\d|\bshow that (?:it|the answer|this) (?:is|equals)"
    r"|\b(?:hint|note that the answer|which (?:comes|amounts) to)\b)"
)


def leak(pair: CheckInput) -> str | None:
    if pair.rephrasing.count(_ANSWER_GIVEN) > pair.original.count(_ANSWER_GIVEN):
        found = [match[0] for match in _ANSWER_GIVEN.finditer(pair.rephrasing.without_figures)]
        return f"it gives an answer: {found[-1].strip()!r}"
    if not pair.answer.strip():
        return None
    before, after = (_times_said(pair.answer, side) for side in (pair.original, pair.rephrasing))
    if after > before == 0:
        return f"it says the answer {pair.answer[:40]!r}, and the original does not"
    return None


def _times_said(answer: str, text: Text) -> int:
    """How often a text says the answer: by value if it is a number, else as a run of words or tokens."""
    values = [mention.values[0] for mention in mentions(answer)]
    bare = re.fullmatch(
        r"\s*\$?\s*-?(?:\\\$)?\s*[\d.,/{}\\!fracdt]+\s*(?:\\?%|\\text\{[^{}]*\}|\^\\circ)?\s*\$?\s*", answer
    )
    if bare and len(values) == 1:
        if values[0] in _FREE or values[0] == _COUNTS_THINGS:
            return sum(not said.word and values[0] == said.values[0] for said in text.mentions)
        return sum(not said.loose and values[0] in said.values[:1] for said in text.mentions)
    tokens = mathematics.tokens_of(answer)
    if len(tokens) > 2 and not answer.replace(" ", "").isalpha():
        stream = f" {' '.join(token for formula in text.formulas for token in formula.tokens)} "
        return stream.count(f" {' '.join(tokens)} ")
    words = normalised_words(re.sub(r"\\text\{([^{}]*)\}", r"\1", answer))
    if not words or len("".join(words)) < 3:
        return 0
    return f" {' '.join(text.words)} ".count(f" {' '.join(words)} ")


_WORKING = [
    (re.compile(r"(?i)\bstep\s*(?:\d|one\b|by step)"), "numbered steps"),
    (re.compile(r"(?im)^\W*(?:solution|answer|explanation|reasoning|working)\W*(?:[:.]|$)"), "a heading of a solution"),
    (
        re.compile(
            r"(?:^|(?<=[.!?]\s)|(?<=\n))\s*(?:Therefore|Hence|Thus|So|Consequently|It follows)\b,?\s+"
            r"(?!what|how|which|when|who|where|calculate|find|determine|that\b)"
        ),
        "a conclusion",
    ),
    (
        re.compile(
            r"(?i)\b(?:let's|let us|we|you) (?:can |must |need to |have to |first |then |will |should |now )*"
            r"(?:solve|calculate|compute|subtract|multiply|divide|add up|get|obtain|substitute|simplify)\b"
            r"(?!(?:[^.?!]|\b(?:mrs?|ms|dr|st)\.|\.\d)*\?)"
        ),
        "working",
    ),
    (
        re.compile(r"\d[\s)]*(?:[-+*/×÷x]|\\times|\\cdot|\\div)\s*\(?\\?\$?\s*\d[\d.,]*\)?[^=.?!]{0,25}=\s*\\?\$?\d"),
        "a sum worked out",
    ),
    (re.compile(r"<<[^<>]{1,80}>>"), "calculator marks"),
    (re.compile(r"(?i)\b(?:gives us|we get|we have|which gives|which means that there (?:are|is))\b"), "working"),
]


def solution(pair: CheckInput) -> str | None:
    for pattern, kind in _WORKING:
        after = pair.rephrasing.count(pattern)
        if after > pair.original.count(pattern):
            found = pattern.search(pair.rephrasing.without_figures)
            return f"it holds {kind}: {' '.join(found[0].split())[:60]!r}" if found else f"it holds {kind}"
    return None


# ---- The question ---------------------------------------------------------------------------------------------------

_NO_QUESTION = "it asks nothing: no question mark, and no word like find or determine"


def asks(pair: CheckInput) -> str | None:
    if not ASKS.search(pair.rephrasing.without_figures) and ASKS.search(pair.original.without_figures):
        return _NO_QUESTION
    for named, kept, name in _ASKED_FOR:
        if named.search(pair.original.asked) and not kept.search(pair.rephrasing.lower):
            return f"the original asks for {name}, and it names none"
    for form, name in _FORMS:
        if form.search(pair.original.lower) and not form.search(pair.rephrasing.lower):
            return f"the original says {name} of the answer, and it does not"
    before, after = (_extremes(side.asked) for side in (pair.original, pair.rephrasing))
    if len(before) == len(after) == 1 and before != after:
        return f"the original asks for the {before.pop()}, and it for the {after.pop()}"
    return None


# What the asking sentence may name, and the spellings of which one must then be somewhere in the rephrasing.
_ASKED_FOR = [
    (re.compile(named), re.compile(kept), name)
    for name, named, kept in [
        ("cents", r"\bcents?\b|¢", r"\bcents?\b|¢"),
        ("a percentage", r"%|\bper\s?cent|\bpercent", r"%|\bper\s?cent|\bpercent"),
        ("hours", r"\bhours?\b", r"\bhour(?:s|ly)?\b|\bhrs?\b|\bmph\b|half-hour|\bclock\b|[ap]\.?m\b"),
        ("minutes", r"\bminutes?\b", r"\bminutes?\b|\bmins?\b|\bhours?\b"),
        ("weeks", r"\bweeks?\b", r"\bweek\w*|day\b"),
        ("months", r"\bmonths?\b", r"\bmonth\w*|\bjanuary\b|\bdecember\b"),
        (
            "years",
            r"\byears?\b",
            r"\byear\w*|\bannual\w*|\bage[sd]?\b|\bold(?:er)?\b|\bbirth\w*|\banniversary\b|\bdecades?\b",
        ),
        ("kilometres", r"\bkilomet(?:er|re)s?\b|\bkm\b", r"\bkilomet(?:er|re)s?\b|\bkm\b"),
        ("miles", r"\bmiles?\b", r"\bmiles?\b|\bmph\b|\bmileage\b"),
        ("inches", r"\binch(?:es)?\b", r"\binch(?:es)?\b|\bin\."),
        ("feet", r"\bfeet\b", r"\bf(?:oo|ee)t\b|\bft\b"),
        ("kilograms", r"\bkilograms?\b|\bkgs?\b", r"\bkilograms?\b|\bkgs?\b"),
        ("pounds", r"\bpounds?\b", r"\bpounds?\b|\blbs?\b|£"),
        ("ounces", r"\bounces?\b", r"\bounces?\b|\boz\b"),
        ("litres", r"\blit(?:er|re)s?\b", r"\blit(?:er|re)s?\b|\d ?l\b"),
        ("gallons", r"\bgallons?\b", r"\bgallons?\b|\bgal\b"),
        ("dozens", r"\bdozens?\b", r"\bdozens?\b"),
        ("radians", r"\bradians?\b", r"\bradians?\b"),
        ("a probability", r"\bprobability\b", r"\bprobabilit|\bchance|\blikel|\bodds\b"),
        (
            "an area",
            r"\barea\b|\bsquare (?:feet|inches|meters|miles|yards|units)\b",
            r"\barea|\bsquare|\bsurface|\bcover|\bsize",
        ),
        ("a perimeter", r"\bperimeter\b", r"\bperimeter\b|\baround\b|\bboundary\b"),
        ("a circumference", r"\bcircumference\b", r"\bcircumference\b|\baround\b|\bperimeter\b"),
        ("a volume", r"\bvolume\b|\bcubic\b", r"\bvolume\b|\bcubic\b|\bcapacity\b"),
        ("an average", r"\b(?:on average|arithmetic mean|average of|average speed)\b", r"\baverag|\bmean\b|\btypical"),
        ("a remainder", r"\bremainder\b", r"\bremainder\b|\bmod(?:ulo)?\b|\\p?mod\b|\bleft ?over\b|\bremain"),
    ]
]
# What is said of the form of the answer.
_FORMS = [
    (re.compile(pattern), name)
    for pattern, name in [
        (r"\bcommon fraction|\bfraction\b|\brational\b|\bfraction", "a common fraction"),
        (r"\bmixed (?:number|numeral|fraction)", "a mixed number"),
        (r"\bnearest\b|\bround", "to round"),
        (r"\bdecimal", "a decimal"),
        (r"\bsimplest\b|\bsimplif|\blowest terms|\breduced\b|\birreducible|\bin simple", "the simplest form"),
        (r"\binterval notation|\binterval", "an interval"),
        (
            r"\bordered (?:pairs?|triples?|quadruples?)|\bpairs?\b|\btriples?\b|\btuples?\b|\bcoordinates?",
            "an ordered tuple",
        ),
        (r"\bscientific notation", "scientific notation"),
        (r"\bbase[- ](?:\$?\d+|\w+)", "the base"),
        (r"\bin terms of\b|\bas a function of\b|\bexpress\w* .*\b(?:using|by|with)\b", "in terms of what"),
        (r"\brelatively prime|\bcoprime|\birreducible|\blowest terms", "relatively prime"),
    ]
]
_COMMON = re.compile(r"\b(?:greatest|highest|largest|least|lowest|smallest) common\b|\bat (?:most|least)\b")
_EXTREMES = {
    "largest": re.compile(r"\b(?:maxim\w+|largest|greatest|biggest|highest|longest|most)\b"),
    "smallest": re.compile(r"\b(?:minim\w+|smallest|lowest|shortest|fewest|least)\b"),
}


def _extremes(asked: str) -> set[str]:
    asked = _COMMON.sub(" ", asked)
    return {name for name, words in _EXTREMES.items() if words.search(asked)}
