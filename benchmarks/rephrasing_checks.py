"""How well the deterministic checks tell good rephrasings from corrupted ones.

    python benchmarks/rephrasing_checks.py REPHRASINGS.jsonl [--seed N] [--questions FILE.jsonl ...] [--show KIND]

REPHRASINGS.jsonl has a line for each question: ``question_id, original, answer, rephrasings`` (good ones). Each good
rephrasing is checked, against its original and the good ones before it, and then a corrupted copy of each kind is made
of it and checked. Aims: accept at least 95 % of the good ones; reject at least 95 % of the copies of each kind that
the checks can see. What only a model can see is reported too: there the figure is how much would pass.

The questions are split in halves by a hash of their id: "tuning" is the half that the checks were written with,
"held out" the other one, until misses of both were read on corruptions of ``--seed`` 101. Intervals are Wilson's, 95 %;
rephrasings of one question are counted as independent.

With ``--questions`` the checks are also run on plain question files (``question, answer``): each question against
itself in a harmless rewrite, so that false alarms on LaTeX show; and against rephrasings by rule with one thing in a
formula changed, where there are formulas. The rules' own yield is printed as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import binomtest

from ta_grpo.rephrasing.checks import check_rephrasing
from ta_grpo.rephrasing.formulas import formulas, variables
from ta_grpo.rephrasing.quantities import CARDINALS
from ta_grpo.rephrasing.rules import rule_rephrasings

HALVES = ("tuning", "held out")


@dataclass(frozen=True)
class Case:
    """A good rephrasing with what a corruption may need."""

    original: str
    good: str
    answer: str
    siblings: tuple[str, ...]
    others: tuple[dict, ...]


Corruption = Callable[[Case, random.Random], str | None]

# Larger than one: of the number 1 in plain text nobody can say whether it is needed.
NUMBER = re.compile(
    r"(?<![\d.,:/])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d:/]|[.,]\d)"
    rf"|\b(?:{'|'.join(name for name, value in CARDINALS.items() if value > 1)})\b(?!-)"
)
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def numbers_of(text: str) -> list[re.Match[str]]:
    return [found for found in NUMBER.finditer(text) if found[0] not in ("0", "1")]


def another_number(written: str, rng: random.Random) -> str:
    """Another number in the same spelling and of about the same size."""
    if written.isalpha():
        return rng.choice([name for name, value in CARDINALS.items() if value > 1 and name != written])
    value = float(written.replace(",", ""))
    while True:
        near = value + rng.choice([-1, 1]) * rng.choice([1, 2, 5, 10])
        changed = near if value > 20 else rng.randint(2, 30)
        text = f"{changed:,.{len(written.partition('.')[2])}f}" if "," in written or "." in written else f"{changed:g}"
        if text != written:
            return text


def change_number(case: Case, rng: random.Random) -> str | None:
    found = numbers_of(case.good)
    if not found:
        return None
    number = rng.choice(found)
    return case.good[: number.start()] + another_number(number[0], rng) + case.good[number.end() :]


# Behind these words a number is said again, and may go without harm: "these two days".
SAID_AGAIN = re.compile(r"\b(?:these|those|the|previous|all)\s+$")


def drop_number(case: Case, rng: random.Random) -> str | None:
    found = [number for number in numbers_of(case.good) if not SAID_AGAIN.search(case.good[: number.start()])]
    if not found:
        return None
    number = rng.choice(found)
    instead = rng.choice(["", "some", "several", "a number of"])
    text = case.good[: number.start()].rstrip("$") + instead + case.good[number.end() :].lstrip("%")
    return " ".join(text.split())


def add_number(case: Case, rng: random.Random) -> str | None:
    sentences = SENTENCE.split(case.good)
    value = str(rng.randint(2, 99)) if rng.random() < 0.7 else rng.choice([n for n, v in CARDINALS.items() if v > 2])
    extra = rng.choice(
        [
            "Another {} are set aside.",
            "This takes {} minutes.",
            "There are {} people there.",
            "It happened {} days ago.",
        ]
    )
    sentences.insert(rng.randrange(len(sentences)), extra.format(value))
    return " ".join(sentences)


def give_answer(case: Case, rng: random.Random) -> str:
    form = rng.choice(
        [
            "{} The answer is {}.",
            "{} (Answer: {})",
            "{} Show that it is {}.",
            "{} Hint: it is {}.",
            "{} It comes to {}.",
            "{} \\boxed{{{}}}",
            "{} Is it {}?",
        ]
    )
    return form.format(case.good, case.answer)


def cut_off(case: Case, rng: random.Random) -> str:
    words = case.good.split(" ")
    return " ".join(words[: rng.randint(len(words) * 3 // 10, len(words) * 9 // 10)])


def another_question(case: Case, rng: random.Random) -> str:
    return rng.choice(rng.choice(case.others)["rephrasings"])


def copy_original(case: Case, rng: random.Random) -> str:
    text = rng.choice([case.original, *case.siblings])
    words = text.split()
    place = rng.randrange(len(words))
    plain = [word for word in range(len(words)) if words[word].isalpha() and words[word].islower()]
    edits: list[Callable[[], str]] = [
        lambda: text,
        lambda: text.upper(),
        lambda: "  ".join(words),
        lambda: "\n".join(words) + " ",
        lambda: text.replace(",", "").replace(".", ";").replace("'", "’"),
        lambda: " ".join([*words[:place], "really", *words[place:]]),
        lambda: " ".join(word for index, word in enumerate(words) if index != plain[0]),
    ]
    return rng.choice(edits)()


def solution(case: Case, rng: random.Random) -> str:
    """What a model writes that solves instead of rephrasing."""
    sentences = SENTENCE.split(case.good)
    numbers = [found[0] for found in numbers_of(case.good)] or ["3"]
    first, second = numbers[0], numbers[-1]
    facts = " ".join(sentences[:-1]) or sentences[0].rstrip("?") + "."
    return rng.choice(
        [
            f"{facts} Therefore, the result is {case.answer}.",
            f"Step 1: take {first}. Step 2: combine it with {second}. That makes {case.answer}.",
            f"{facts} First we compute {first} × {second} = {case.answer}. So there are {case.answer} in total.",
            f"{facts} That leaves {case.answer}.",
            f"To solve this, multiply {first} by {second}. {facts} The answer is {case.answer}.",
            f"{case.good}\n\nSolution: {first} * {second} = {case.answer}",
            f"{facts} <<{first}+{second}={case.answer}>>{case.answer}\n#### {case.answer}",
        ]
    )


def refuse(case: Case, rng: random.Random) -> str:
    return rng.choice(
        [
            "I'm sorry, but I can't help with that.",
            f"Sure, here is a rephrased version: {case.good}",
            f"<think>The user wants another wording.</think> {case.good}",
            f"Rephrased question: {case.good}",
            f"#Rewritten Prompt#\n{case.good}",
            f"Okay, let me think. {case.good}",
            f"```\n{case.good}\n```",
        ]
    )


def eaten_latex(case: Case, rng: random.Random) -> str:
    words = case.good.split(" ")
    words.insert(rng.randrange(1, len(words)), rng.choice(["\frac{1}{2}", "\times", "\theta", "\binom42", "\rho"]))
    return " ".join(words)


def without_a_fact(case: Case, rng: random.Random) -> str | None:
    sentences = SENTENCE.split(case.good)
    silent = [i for i, sentence in enumerate(sentences[:-1]) if not numbers_of(sentence)]
    if not silent:
        return None
    gone = rng.choice(silent)
    return " ".join(sentence for i, sentence in enumerate(sentences) if i != gone)


def another_thing_asked(case: Case, rng: random.Random) -> str | None:
    """The same facts with a question about something else."""
    sentences = SENTENCE.split(case.good)
    if len(sentences) < 2 or numbers_of(sentences[-1]):
        return None
    asked = ["What is the sum of all amounts named here?", "Which amount named here is the largest?",
             "How much would it be if the first amount were left out?"]  # fmt: skip
    return " ".join([*sentences[:-1], rng.choice(asked)])


def other_question_same_numbers(case: Case, rng: random.Random) -> str | None:
    """Another question of as many numbers, with the numbers of this one."""
    ours = [found[0] for found in numbers_of(case.good)]
    others = [text for other in case.others for text in other["rephrasings"] if len(numbers_of(text)) == len(ours)]
    if not ours or not others:
        return None
    rest = iter(ours)
    return NUMBER.sub(lambda found: found[0] if found[0] in ("0", "1") else next(rest), rng.choice(others))


RELATIONS = {
    "more": "fewer", "fewer": "more", "less": "more", "older": "younger", "younger": "older", "before": "after",
    "after": "before", "first": "last", "higher": "lower", "increase": "decrease",
}  # fmt: skip


def relation_turned(case: Case, rng: random.Random) -> str | None:
    found = list(re.finditer(rf"\b(?:{'|'.join(RELATIONS)})\b", case.good))
    if not found:
        return None
    word = rng.choice(found)
    return case.good[: word.start()] + RELATIONS[word[0]] + case.good[word.end() :]


VISIBLE: dict[str, Corruption] = {
    "one number changed": change_number,
    "one number dropped": drop_number,
    "one number added": add_number,
    "the answer given away": give_answer,
    "cut off": cut_off,
    "another question": another_question,
    "copy of the original or a sibling": copy_original,
    "solution instead of a question": solution,
    "refusal, preamble, reasoning": refuse,
    "LaTeX eaten by JSON": eaten_latex,
}
FOR_A_MODEL: dict[str, Corruption] = {
    "a fact without a number removed": without_a_fact,
    "another thing asked": another_thing_asked,
    "another question, same numbers": other_question_same_numbers,
    "a relation turned round": relation_turned,
}


def half_of(question_id: str) -> str:
    return HALVES[hashlib.sha256(question_id.encode()).digest()[-1] % 2]


def cases(groups: Sequence[dict]) -> Iterator[tuple[str, Case]]:
    for group in groups:
        others = tuple(other for other in groups if other is not group)
        good = group["rephrasings"]
        for index, text in enumerate(good):
            yield (
                group["question_id"],
                Case(group["original"], text, group["answer"], tuple(good[:index] + good[index + 1 :]), others),
            )


def interval(count: int, total: int) -> str:
    if not total:
        return "none"
    low, high = binomtest(count, total).proportion_ci(method="wilson")
    return f"{100 * count / total:5.1f} [{100 * low:5.1f}, {100 * high:5.1f}]  n={total}"


def measure(groups: Sequence[dict], repeats: int, show: str, seed: int) -> None:
    accepted: dict[tuple[str, str], list[bool]] = defaultdict(list)
    by_check: Counter[tuple[str, str]] = Counter()
    began = time.process_time()
    for question_id, case in cases(groups):
        half = half_of(question_id)
        accepted["good", half].append(told("good", case, case.good, half, show, by_check))
        for kind, corrupt in {**VISIBLE, **FOR_A_MODEL}.items():
            rng = random.Random(f"{seed or ''}{kind} {question_id} {case.good}")
            for _ in range(repeats):
                text = corrupt(case, rng)
                if text is not None and text != case.good:
                    accepted[kind, half].append(told(kind, case, text, half, show, by_check))
    milliseconds = 1000 * (time.process_time() - began) / sum(map(len, accepted.values()))
    print(f"{milliseconds:.1f} ms of CPU time a text, corrupting it included\n")
    print(f"{'':36}{HALVES[0]:32}{HALVES[1]}")
    print("accepted, %")
    row("good", [sum(accepted["good", half]) for half in HALVES], [len(accepted["good", half]) for half in HALVES])
    print("rejected, %")
    for kind in VISIBLE:
        row(kind, [accepted[kind, h].count(False) for h in HALVES], [len(accepted[kind, h]) for h in HALVES])
    print("for a model to see: passes these checks, %")
    for kind in FOR_A_MODEL:
        row(kind, [sum(accepted[kind, half]) for half in HALVES], [len(accepted[kind, half]) for half in HALVES])
    print("\ncheck that rejects, all halves (a text may fail several)")
    for kind in ("good", *VISIBLE, *FOR_A_MODEL):
        named = ", ".join(f"{check} {count}" for (of, check), count in by_check.most_common() if of == kind)
        print(f"  {kind:36}{named or 'none'}")


def told(kind: str, case: Case, text: str, half: str, show: str, by_check: Counter[tuple[str, str]]) -> bool:
    """Whether the text passes. A copy is measured with its siblings, all else without."""
    siblings = case.siblings if kind == "copy of the original or a sibling" else ()
    rejections = check_rephrasing(case.original, text, case.answer, siblings)
    by_check.update((kind, rejection.check) for rejection in rejections)
    if show == kind and half == HALVES[0] and bool(rejections) == (kind == "good"):
        reasons = "; ".join(f"{rejection.check}: {rejection.reason}" for rejection in rejections)
        print(
            f"original: {case.original}\ntext:     {text}\nanswer:   {case.answer}\n          {reasons or 'accepted'}\n"
        )
    return not rejections


def row(name: str, counts: Sequence[int], totals: Sequence[int]) -> None:
    print(f"  {name:34}" + "".join(f"{interval(*pair):32}" for pair in zip(counts, totals, strict=True)).rstrip())


# Rewrites that change nothing, for false alarms on questions full of LaTeX.
HARMLESS: dict[str, Callable[[str], str]] = {
    "a sentence before": lambda text: f"Here comes a problem about mathematics that has one right result. {text}",
    "a sentence behind": lambda text: f"{text.rstrip()} State the requested value in its simplest exact form, please.",
    "other spelling of formulas": lambda text: (
        "Work on this carefully: "
        + (
            text
            if "[asy]" in text
            else text.replace("=", " = ").replace("\\frac", "\\dfrac").replace("\\le ", "\\leq ")
        )
    ),
}


def false_alarms(path: Path) -> None:
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    print(f"\n{path.name}: harmless rewrites accepted, %")
    for name, rewrite in HARMLESS.items():
        checked = [
            check_rephrasing(row["question"], rewrite(row["question"]), str(row["answer"]), skip=("copy",))
            for row in rows
        ]
        reasons = Counter(rejection.check for rejections in checked for rejection in rejections)
        named = ", ".join(f"{check} {count}" for check, count in reasons.most_common())
        print(f"  {name:34}{interval(sum(not rejections for rejections in checked), len(rows)):32}{named}")


def _another_letter(found: re.Match[str], text: str) -> str | None:
    letters = {letter for formula in formulas(text) for letter in variables(formula.tokens)} - {found[0]}
    return min(letters, default=None)


_TURNED = {r"\le": r"\ge", r"\ge": r"\le", r"\leq": r"\geq", r"\geq": r"\leq", "<": ">", ">": "<", "+": "-", "-": "+"}
# What is looked for in a formula, and what is put in its place.
IN_FORMULAS: dict[str, tuple[str, Callable[[re.Match[str], str], str | None]]] = {
    "a digit": (r"\d", lambda found, _: str((int(found[0]) + 1) % 10)),
    "a sign": (r"\+|(?<=[\w)} ])-", lambda found, _: _TURNED[found[0]]),
    "a relation": (r"\\[lg]eq?(?![a-z])|[<>]", lambda found, _: _TURNED[found[0]]),
    "an exponent dropped": (r"\^(?:\d|\{[^{}]*\})", lambda *_: ""),
    "one variable": (r"(?<![A-Za-z\\{])[a-z](?![A-Za-z])", _another_letter),
    "a function": (r"\\(?:sin|cos|sqrt|log)(?![a-z])", lambda *_: r"\tan"),
    "a brace lost": (r"\}", lambda *_: ""),
}


def damaged_formulas(path: Path) -> None:
    """Rephrasings by rule, as they are and with one change in a formula of more than one token."""
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    rejected: dict[str, list[bool]] = defaultdict(list)
    found: Counter[int] = Counter()
    for row in rows:
        question, answer = row["question"], str(row["answer"])
        for count in (3, 7):
            found[count] += len(rule_rephrasings(question, count, answer))
        for proposal in rule_rephrasings(question, 3, answer):
            rng = random.Random(f"{proposal.text}")
            for kind, (pattern, replace) in IN_FORMULAS.items():
                text = _change_in_formula(proposal.text, pattern, replace, rng)
                if text is not None and text != proposal.text:
                    rejected[kind].append(bool(check_rephrasing(question, text, answer, skip=("copy",))))
    yields = ", ".join(f"{found[count] / len(rows):.2f} of {count}" for count in found)
    print(f"\n{path.name}: rephrasings by rule, mean a question: {yields}")
    if rejected:
        print("with one thing in a formula changed, rejected, %")
    for kind, outcomes in rejected.items():
        print(f"  {kind:34}{interval(sum(outcomes), len(outcomes))}")


def _change_in_formula(
    text: str, pattern: str, replace: Callable[[re.Match[str], str], str | None], rng: random.Random
) -> str | None:
    spans = [formula for formula in formulas(text) if len(formula.tokens) > 1]
    places = [
        place
        for place in re.finditer(pattern, text)
        if any(formula.start < place.start() < formula.end for formula in spans)
    ]
    place = rng.choice(places) if places else None
    new = replace(place, text) if place else None
    return text[: place.start()] + new + text[place.end() :] if place and new is not None else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rephrasings", type=Path)
    parser.add_argument("--questions", type=Path, nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=3, help="corrupted copies of each kind and rephrasing")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions")
    parser.add_argument("--show", default="", help="print what the checks got wrong of this kind (tuning half)")
    chosen = parser.parse_args()
    groups = [json.loads(line) for line in chosen.rephrasings.open(encoding="utf-8")]
    measure(groups, chosen.repeats, chosen.show, chosen.seed)
    for path in chosen.questions:
        false_alarms(path)
        damaged_formulas(path)


if __name__ == "__main__":
    main()
