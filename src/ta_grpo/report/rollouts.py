"""Which groups of rollouts a page shows, and the data that the browser in it reads.

A group is a question's completions at one step: those that were normalised together. Groups are chosen whole: first
examples of every state a filter asks for, then evenly over runs and steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from ..diagnostics.diversity import distinct_n_grams
from ..errors import UserError
from ..rundir import read_rollouts
from .reading import Run
from .settings import ROLLOUTS_IN_PAGE

STATES = ("mixed", "all_right", "all_wrong", "unscored", "timed_out", "truncated", "no_answer")
"""What a group can be, beside others; a page keeps them as bits in this order."""

DIVERSITY_N_GRAM = 4
_EXAMPLES = 6  # groups of every state, before the others are chosen
_CHARACTERS_IN_PAGE = 8_000_000  # of completions: long ones fill a page before there are 5,000
_ROLLOUTS_IN_FILE = 5_000
_CHARACTERS_IN_FILE = 4_000_000
_NEEDED = ("phrasing_index", "prompt", "sampled_prompt", "completion", "reward", "advantage")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Where a group lies, and what a filter must know of it.

    Attributes:
        run: number of the run.
        step: of training, counted from 1.
        number: of the group within its step.
        states: of STATES, those that hold.
        characters: of its completions.
        distinct: different 4-grams over all, in the first completions of the original question; see ``scan``.
    """

    run: int
    step: int
    number: int
    question_id: str
    question: str
    size: int
    right: int
    states: frozenset[str]
    characters: int
    distinct: float


def scan(number: int, run: Run, sample: int) -> Iterator[Group]:
    """Every group of a run.

    Args:
        number: of the run.
        run: the run.
        sample: completions of the original question that ``distinct`` is taken over: more share more n-grams, so arms
            are compared at equal numbers.

    Raises:
        UserError: a file that holds no rollouts of ours.
    """
    for step, path in run.rollouts.items():
        for place, rows in enumerate(read_groups(run, path)):
            texts = [row["completion"] or "" for row in rows]
            own = [text for row, text in zip(rows, texts, strict=True) if row["phrasing_index"] == 0][:sample]
            yield Group(
                run=number,
                step=step,
                number=place,
                question_id=_id(rows[0]),
                question=rows[0]["sampled_prompt"] or "",
                size=len(rows),
                right=sum((row["reward"] or 0) > 0 for row in rows),
                states=_states(rows),
                characters=sum(map(len, texts)),
                distinct=distinct_n_grams(own, DIVERSITY_N_GRAM),
            )


def read_groups(run: Run, path: Path) -> list[list[Row]]:
    """The rows of a rollouts file, group by group."""
    table = read_rollouts(path)
    if absent := [name for name in _NEEDED if name not in table.column_names]:
        raise UserError(f"{path} holds no rollouts: it has no column {absent[0]}; move it away")
    rows = table.to_pylist()
    size = run.config.get("num_generations")
    if isinstance(size, int) and size > 0 and len(rows) % size == 0:
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        if all(len(set(map(_id, group))) == 1 for group in groups):
            return groups
    return [list(part) for _, part in groupby(rows, key=_id)]  # of different sizes


def _id(row: Row) -> str:
    return str(row["id"]) if row.get("id") is not None else (row["prompt"] or "")[:80]


def _states(rows: Sequence[Row]) -> frozenset[str]:
    """By max - min of the rewards, never by the advantages."""
    rewards = {row["reward"] for row in rows if row["reward"] is not None}
    verdicts = {row.get("verdict") for row in rows}
    state = "mixed" if len(rewards) > 1 else "unscored" if not rewards else "all_wrong"
    if len(rewards) == 1 and max(rewards) > 0:
        state = "all_right"
    told = {name for name in ("timed_out", "no_answer") if name in verdicts}
    return frozenset({state, *told, *(["truncated"] if any(row.get("completion_truncated") for row in rows) else [])})


# Choosing.


def in_order_of_choice(groups: Sequence[Group]) -> list[Group]:
    """All groups, the ones to show first coming first: examples of every state, then evenly over runs and steps."""
    examples = [
        example
        for turn in zip_longest(*(_spread([g for g in groups if state in g.states])[:_EXAMPLES] for state in STATES))
        for example in turn
        if example is not None
    ]
    by_run = [list(part) for _, part in groupby(groups, key=lambda group: group.run)]
    evenly = [group for turn in zip_longest(*map(_spread, by_run)) for group in turn if group is not None]
    return list({(g.run, g.step, g.number): g for g in (*examples, *evenly)}.values())


def _spread(groups: Sequence[Group]) -> list[Group]:
    """The first, the last, the middle one, the middles of both halves, and so on."""
    order = [0, len(groups) - 1]
    gaps = [(0, len(groups) - 1)]
    while gaps:
        halves = [(low, (low + high) // 2, high) for low, high in gaps if high - low > 1]
        order += [middle for _, middle, _ in halves]
        gaps = [gap for low, middle, high in halves for gap in ((low, middle), (middle, high))]
    return [groups[place] for place in dict.fromkeys(order)] if groups else []


@dataclass(frozen=True)
class Chosen:
    """Groups of the page, and of each script file beside it, in the order of runs, steps and questions."""

    in_page: Sequence[Group]
    in_files: Sequence[Sequence[Group]]
    rollouts: int
    rollouts_there: int
    groups_there: int

    @property
    def groups(self) -> list[Group]:
        return [*self.in_page, *(group for part in self.in_files for group in part)]


def choose(groups: Sequence[Group], limit: int) -> Chosen:
    """Choose groups of ``limit`` rollouts at most, of which the page takes what opens at once."""
    ordered = in_order_of_choice(groups)
    page, rest = _take(ordered, min(ROLLOUTS_IN_PAGE, limit), _CHARACTERS_IN_PAGE)
    beside, _ = _take(rest, limit - sum(group.size for group in page), None)
    files, beside = [], _sorted(beside)
    while beside:
        # A group alone may be larger than a file should be.
        part = _take(beside, _ROLLOUTS_IN_FILE, _CHARACTERS_IN_FILE)[0] or beside[:1]
        files.append(part)
        beside = beside[len(part) :]
    return Chosen(
        in_page=_sorted(page),
        in_files=files,
        rollouts=sum(group.size for part in (page, *files) for group in part),
        rollouts_there=sum(group.size for group in groups),
        groups_there=len(groups),
    )


def _take(groups: Sequence[Group], rollouts: int, characters: int | None) -> tuple[list[Group], list[Group]]:
    """The first groups that fit, and the others."""
    for count, group in enumerate(groups):
        rollouts -= group.size
        characters = None if characters is None else characters - group.characters
        if rollouts < 0 or (characters is not None and characters < 0):
            return list(groups[:count]), list(groups[count:])
    return list(groups), []


def _sorted(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.run, group.step, group.number))


# What the browser reads.


def index_of(chosen: Chosen, runs: Sequence[Run]) -> dict[str, Any]:
    """All groups, a column a list: which run, step and question, its states as bits, and which file it lies in.

    ``start``: the group to show first, with rephrasings and well mixed if there is such a one.
    """
    part_of = {_place(group): (0, place) for place, group in enumerate(chosen.in_page)}
    for number, part in enumerate(chosen.in_files, 1):
        part_of |= {_place(group): (number, place) for place, group in enumerate(part)}
    groups = _sorted(chosen.groups)
    texts = _Texts()
    most = max(_rephrasings(runs[group.run]) for group in groups)
    telling = [
        (min(group.right, group.size - group.right), -number)
        for number, group in enumerate(groups)
        if _rephrasings(runs[group.run]) == most and part_of[_place(group)][0] == 0
    ]
    return {
        "start": -max(telling)[1] if telling else 0,
        "states": STATES,
        "runs": [run.name for run in runs],
        "run": [group.run for group in groups],
        "step": [group.step for group in groups],
        "number": [group.number for group in groups],
        "id": [group.question_id for group in groups],
        "question": [texts.number(group.question) for group in groups],
        "size": [group.size for group in groups],
        "right": [group.right for group in groups],
        "bits": [sum(1 << bit for bit, state in enumerate(STATES) if state in group.states) for group in groups],
        "file": [part_of[_place(group)][0] for group in groups],
        "place": [part_of[_place(group)][1] for group in groups],
        "texts": texts.all,
    }


def _rephrasings(run: Run) -> int:
    return run.config.get("num_rephrasings") or 0


def contents_of(groups: Sequence[Group], runs: Sequence[Run]) -> dict[str, Any]:
    """The rollouts of groups, in their order: of each the prompts of its phrasings, and its rows.

    A row is phrasing, reward, verdict, extracted answer, advantage, tokens, truncated, completion, and the rewards of
    each reward function where there are several; null for what is not recorded.
    """
    texts = _Texts()
    wanted: dict[tuple[int, int], list[Group]] = {}
    for group in groups:
        wanted.setdefault((group.run, group.step), []).append(group)
    made = {}
    for (run, step), part in wanted.items():
        there = read_groups(runs[run], runs[run].rollouts[step])
        for group in part:
            made[_place(group)] = _content(there[group.number], texts)
    return {"groups": [made[_place(group)] for group in groups], "texts": texts.all}


def _place(group: Group) -> tuple[int, int, int]:
    return group.run, group.step, group.number


def _content(rows: Sequence[Row], texts: _Texts) -> list[Any]:
    prompts = {row["phrasing_index"]: texts.number(row["sampled_prompt"] or "") for row in rows}
    functions = sorted(name for name in rows[0] if name.startswith("reward/"))
    several = functions if len(functions) > 1 else []
    told = [
        [
            row["phrasing_index"],
            _number(row["reward"]),
            row.get("verdict"),
            row.get("extracted"),
            _number(row["advantage"]),
            row.get("completion_tokens"),
            row.get("completion_truncated"),
            row["completion"] or "",
            *([[_number(row[name]) for name in several]] if several else []),
        ]
        for row in rows
    ]
    names = [name.removeprefix("reward/") for name in several]
    return [sorted(prompts.items()), told, *([names] if several else [])]


class _Texts:
    """Texts that come often, kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


def _number(value: float | None) -> float | str | None:
    """Six digits; what has no JSON form as text."""
    if value is None or math.isnan(value):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def script_safe_json(content: Any) -> str:
    """JSON that can stand in a script element or a script file, whatever texts it holds: no <, >, & or line ends."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", errors="replace").decode("utf-8")
