"""A small world of word problems: six families, ten phrasings of each, whole numbers, one right answer.

A problem is a family, its numbers and a setting (who, what). It can be asked in any of its family's phrasings, which
differ in wording, in layout and in the order of the facts, never in the numbers. The splits are fixed: numbers, order
and phrasings come from seeded generators, and no numbers of a family are both in a training and in a test split.

Standard library only.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

IN_USE = 8  # phrasings 0..7 of a family; the rest are held out for the split test_phrasings
REPHRASINGS = IN_USE - 1
SIZES = {"train": 1500, "test": 300, "test_phrasings": 204, "ood": 204}
SPLITS = tuple(SIZES)

# Every tuple of numbers falls in one of ten buckets. The pretraining text and the train split use the first seven.
BUCKETS = 10
TRAIN_BUCKETS = range(7)
SPLIT_BUCKETS = {"train": TRAIN_BUCKETS, "test": (7, 8), "test_phrasings": (9,), "ood": range(BUCKETS)}

NAMES = ("Ana", "Ben", "Kim", "Lea", "Max", "Sam", "Tom", "Zoe")
THINGS = ("apples", "cards", "pens", "shells", "stones", "nuts")

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
Step = tuple[str, int, int]  # operation, and the positions of its operands among the numbers and earlier results


@dataclass(frozen=True)
class Family:
    """One kind of problem.

    ``steps`` is the way to the answer: a position below ``len(numbers)`` means a given number, a later one the result
    of an earlier step. ``draw(rng, hard)`` draws the given numbers; the hard ones lie outside the usual ranges.
    """

    name: str
    steps: tuple[Step, ...]
    draw: Callable[[Random, bool], tuple[int, ...]]
    phrasings: tuple[str, ...]


def _draw_bags(rng: Random, hard: bool) -> tuple[int, ...]:
    return rng.randint(3, 9), rng.randint(11, 59), rng.randint(50, 89) if hard else rng.randint(3, 49)


def _draw_purse(rng: Random, hard: bool) -> tuple[int, ...]:
    start = rng.randint(150, 189) if hard else rng.randint(40, 149)
    return start, rng.randint(11, 39), rng.randint(11, 89)


def _draw_share(rng: Random, hard: bool) -> tuple[int, ...]:
    children, each = rng.randint(3, 9), rng.randint(60, 69) if hard else rng.randint(11, 59)
    return children * each, children, rng.randint(2, each - 2)


def _draw_trip(rng: Random, hard: bool) -> tuple[int, ...]:
    hours, speed, rest = rng.randint(3, 9), rng.randint(11, 59), rng.randint(100, 149) if hard else rng.randint(5, 99)
    return hours * speed + rest, hours, speed


def _draw_pair(rng: Random, hard: bool) -> tuple[int, ...]:
    return rng.randint(11, 99), rng.randint(70, 99) if hard else rng.randint(3, 69)


def _draw_stall(rng: Random, hard: bool) -> tuple[int, ...]:
    price = rng.randint(40, 49) if hard else rng.randint(11, 39)
    return rng.randint(3, 9), price, rng.randint(3, 9), rng.randint(4, 39)


FAMILIES = (
    Family(
        "bags",
        (("*", 0, 1), ("+", 3, 2)),
        _draw_bags,
        (
            "{name} has {0} bags of {1} {thing} and {2} loose {thing}. How many {thing} are there?",
            "bags | per bag | loose | {thing}\n{0} | {1} | {2} | ?",
            "How many {thing} does {name} have with {2} loose ones and {0} bags that hold {1} each?",
            "Given: {2} loose {thing}; in each bag {1}; bags {0}. Find: all {thing}.",
            "There are {1} {thing} in a bag. {name} fills {0} bags and {2} are left over. Count them all.",
            "- loose: {2}\n- a bag: {1} {thing}\n- bags: {0}\nTotal of {thing}?",
            "{name} found {2} {thing} and then got {0} bags, each with {1} {thing}. What is the total?",
            "Let each of {0} bags contain {1} {thing}; {2} more lie outside. Compute the sum.",
            "{name} has {2} loose {thing} and {0} bags of {1} {thing}. How many {thing} are there?",
            "Given: bags {0}; in each bag {1} {thing}; loose {2}. Find: the total.",
        ),
    ),
    Family(
        "purse",
        (("-", 0, 1), ("+", 3, 2)),
        _draw_purse,
        (
            "{name} has {0} coins, spends {1} and earns {2}. How many coins does {name} have now?",
            "Given: start {0}; out {1}; in {2}. Find: coins at the end.",
            "{name} spent {1} coins out of {0} and later got {2}. What is in the purse?",
            "in | out | at first | now\n{2} | {1} | {0} | ?",
            "How many coins are left when {name} pays {1}, is given {2} and began with {0}?",
            "- earned: {2}\n- at first: {0}\n- spent: {1}\nCoins of {name}?",
            "A purse of {0} coins loses {1} and then gains {2}. Compute what it holds.",
            "After work {name} gets {2} coins. Before that there were {0}, less {1} for food. Count the coins.",
            "{name} has {0} coins, earns {2} and spends {1}. How many coins are left now?",
            "at first | out | in | now\n{0} | {1} | {2} | ?",
        ),
    ),
    Family(
        "share",
        (("/", 0, 1), ("-", 3, 2)),
        _draw_share,
        (
            "- children: {1}\n- {thing}: {0}\n- each gives back: {2}\nLeft for each?",
            "{1} children share {0} {thing} equally. {name} gives {2} away. How many does {name} keep?",
            "How many {thing} has {name} left after losing {2} of a fair share of {0} among {1}?",
            "{thing} | shared by | lost | left\n{0} | {1} | {2} | ?",
            "Split {0} {thing} evenly in {1} heaps; take {2} from one heap. Compute what it holds.",
            "Given: {2} lost from one part; parts {1}; {thing} in all {0}. Find: that part now.",
            "{name} ate {2} of the {thing} that were dealt to {name} when {0} went to {1} friends. What is left?",
            "A sack of {0} {thing} is for {1} children. Each one drops {2}. Count what one child has.",
            "{0} {thing} are shared by {1} children equally. {name} gives {2} away. How many does {name} keep?",
            "- {thing}: {0}\n- children: {1}\n- lost: {2}\nLeft for each?",
        ),
    ),
    Family(
        "trip",
        (("*", 1, 2), ("-", 0, 3)),
        _draw_trip,
        (
            "Given: way {0} km; time {1} h; speed {2} km/h. Find: km to go.",
            "A road is {0} km long. {name} rides {1} hours at {2} km an hour. How far is the end?",
            "{name} drives at {2} km an hour for {1} hours. How much of {0} km is left?",
            "km/h | hours | way | left\n{2} | {1} | {0} | ?",
            "How many km remain of {0} when {name} has gone {2} km in each of {1} hours?",
            "- hours: {1}\n- km an hour: {2}\n- whole way: {0} km\nStill to go?",
            "Each hour {name} walks {2} km. The town is {0} km away. Compute the rest after {1} hours.",
            "After {1} hours of {2} km each, what is missing from a trip of {0} km?",
            "{name} rides {1} hours at {2} km an hour on a road of {0} km. How far is the end?",
            "Given: speed {2} km/h; time {1} h; way {0} km. Find: the rest.",
        ),
    ),
    Family(
        "pair",
        (("+", 0, 1), ("+", 0, 2)),
        _draw_pair,
        (
            "first | second has more | both\n{0} | {1} | ?",
            "{name} has {0} {thing}. A friend has {1} more than {name}. How many do both have?",
            "A friend has {1} {thing} more than {name}, who has {0}. What do they own together?",
            "Given: one part {0}; the other larger by {1}. Find: the whole.",
            "How many {thing} are on two heaps if one has {0} and the other {1} more?",
            "- more than {name}: {1}\n- {name}: {0} {thing}\nBoth together?",
            "With {1} {thing} more, {name} would have as many as a friend. {name} has {0}. Count both.",
            "Let a row hold {0} {thing} and the next row {1} more. Compute the sum of the rows.",
            "One heap has {0} {thing} and the other {1} more. How many do both have?",
            "Given: {thing} {0}; the other has {1} more. Find: both together.",
        ),
    ),
    Family(
        "stall",
        (("*", 0, 1), ("*", 2, 3), ("+", 4, 5)),
        _draw_stall,
        (
            "{name} buys {0} {thing} at {1} cents each and {2} cups at {3} cents each. What is the price?",
            "- {thing}: {0}, each {1}\n- cups: {2}, each {3}\nCents in all?",
            "How much does {name} pay for {2} cups of {3} cents and {0} {thing} of {1} cents?",
            "Given: a cup costs {3}, one of the {thing} {1}; cups {2}, {thing} {0}. Find: all cents.",
            "what | count | cents\n{thing} | {0} | {1}\ncups | {2} | {3}\nall | | ?",
            "A cup costs {3} cents and {name} takes {2}. Then come {0} {thing} for {1} each. Count the cents.",
            "At {1} cents each {name} gets {0} {thing}, and at {3} cents each {2} cups. Compute the cost.",
            "Sold: {2} cups and {0} {thing}. A cup brings {3} cents, the {thing} {1} each. What came in?",
            "{name} buys {2} cups at {3} cents each and {0} {thing} at {1} cents each. What is the cost?",
            "what | cents | count\n{thing} | {1} | {0}\ncups | {3} | {2}\nall | | ?",
        ),
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}


@dataclass(frozen=True)
class Problem:
    """A family's problem with its numbers and setting, asked in phrasing number ``phrasing``."""

    id: str
    family: str
    numbers: tuple[int, ...]
    name: str
    thing: str
    phrasing: int

    def text(self, phrasing: int) -> str:
        """The question in another phrasing of the family."""
        return BY_NAME[self.family].phrasings[phrasing].format(*self.numbers, name=self.name, thing=self.thing)

    @property
    def question(self) -> str:
        return self.text(self.phrasing)

    @property
    def results(self) -> list[int]:
        """The result of each step; the last is the answer."""
        return work_out(BY_NAME[self.family].steps, self.numbers)

    @property
    def answer(self) -> int:
        return self.results[-1]

    @property
    def solution(self) -> str:
        return write_solution(BY_NAME[self.family].steps, self.numbers, self.results)

    @property
    def rephrasings(self) -> tuple[str, ...]:
        """Seven other phrasings in use, in an order that depends on the id alone."""
        others = [phrasing for phrasing in range(IN_USE) if phrasing != self.phrasing]
        Random(f"rephrasings of {self.id}").shuffle(others)
        return tuple(self.text(phrasing) for phrasing in others[:REPHRASINGS])


def work_out(steps: tuple[Step, ...], numbers: tuple[int, ...]) -> list[int]:
    """The result of each step."""
    values = list(numbers)
    for sign, left, right in steps:
        values.append(OPERATIONS[sign](values[left], values[right]))
    return values[len(numbers) :]


def write_solution(steps: tuple[Step, ...], numbers: tuple[int, ...], results: list[int]) -> str:
    r"""The steps with the given results, right or not, one a line, then ``\boxed{last result}``."""
    values = [*numbers, *results]
    lines = [
        f"{values[left]}{sign}{values[right]}={result}\n"
        for (sign, left, right), result in zip(steps, results, strict=True)
    ]
    return "".join(lines) + f"\\boxed{{{results[-1]}}}"


def bucket(family: str, numbers: tuple[int, ...]) -> int:
    """0..9, the same on every machine; it decides which splits may hold these numbers."""
    digest = hashlib.sha256(f"{family} {numbers}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS


def draw_problem(rng: Random, family: Family, split: str, problem_id: str = "") -> Problem:
    """A random problem with numbers that the split may hold, in one of the phrasings that it shows."""
    numbers = family.draw(rng, split == "ood")
    while bucket(family.name, numbers) not in SPLIT_BUCKETS[split]:
        numbers = family.draw(rng, split == "ood")
    shown = range(IN_USE, len(family.phrasings)) if split == "test_phrasings" else range(IN_USE)
    return Problem(problem_id, family.name, numbers, rng.choice(NAMES), rng.choice(THINGS), rng.choice(shown))


def problems(split: str) -> Iterator[Problem]:
    """The split's problems, always the same: the families take turns, and no family repeats its numbers.

    Raises:
        KeyError: for a split that is not in ``SPLITS``.
    """
    rng = Random(f"tiny/{split}")
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for index in range(SIZES[split]):
        family = FAMILIES[index % len(FAMILIES)]
        problem = draw_problem(rng, family, split, f"tiny/{split}/{index}")
        while (family.name, problem.numbers) in seen:
            problem = draw_problem(rng, family, split, problem.id)
        seen.add((family.name, problem.numbers))
        yield problem
