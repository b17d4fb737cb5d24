"""What judge and solver add to the deterministic checks of a rephrasing, with a model of your own.

    python benchmarks/rephrasing_model_checks.py REPHRASINGS.jsonl --base-url http://127.0.0.1:8000/v1 \
        --judge-model NAME --solver-model NAME

REPHRASINGS.jsonl as for rephrasing_checks.py, whose kinds of corruption that only a model can see are measured here,
beside the good rephrasings themselves. Of each kind, ``--originals`` questions are drawn by ``--seed``, one text of
each. All texts go through the deterministic checks; what passes is shown to the judge, both ways round, and answered by
the solver, as ``ta-grpo rephrase`` does with the same flags; either may be left out. The solver answers the originals
first: a question that it cannot answer gets no rephrasings, so that all its texts count as rejected.

A useful check rejects the corrupted texts and accepts the good ones; one that rejects all, or none, is of no use.
Intervals are Wilson's, 95 %. Replies are kept in ``--cache``: a broken measurement goes on for nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rephrasing_checks import FOR_A_MODEL, Case, cases, interval

from ta_grpo.openai_client import Endpoint
from ta_grpo.rephrasing.cache import ReplyCache
from ta_grpo.rephrasing.chat import Chat, Limits
from ta_grpo.rephrasing.checks import check_rephrasing
from ta_grpo.rephrasing.model_checks import Judge, Solver
from ta_grpo.rephrasing.transformations import Prompts

GOOD = "good rephrasings"
SAME = "SAME both ways"

Answer = TypeVar("Answer")


@dataclass
class Text:
    """One text with what the checks say of it; None: not asked, since a check before has rejected it."""

    kind: str
    original: str
    text: str
    answer: str
    passes: bool
    judged: str | None = None
    solved: bool | None = None


def drawn(groups: Sequence[dict], originals: int, seed: int) -> list[Text]:
    """One text of each kind for as many questions, question by question; fewer questions are the first of them."""
    of_group: dict[str, list[Case]] = {}
    for question_id, case in cases(groups):
        of_group.setdefault(question_id, []).append(case)
    texts: list[Text] = []
    counts: Counter[str] = Counter()
    for question_id in random.Random(seed).sample(sorted(of_group), len(of_group)):
        for kind in (GOOD, *FOR_A_MODEL):
            rng = random.Random(f"{seed} {kind} {question_id}")
            text = _text_of(kind, of_group[question_id], rng) if counts[kind] < originals else None
            if text is not None:
                counts[kind] += 1
                texts.append(text)
    return texts


def _text_of(kind: str, options: Sequence[Case], rng: random.Random) -> Text | None:
    """None where a kind of corruption has nothing to act on."""
    for case in rng.sample(options, len(options)):
        text = case.good if kind == GOOD else FOR_A_MODEL[kind](case, rng)
        if text is not None and (kind == GOOD or text != case.good):
            return Text(kind, case.original, text, case.answer, not check_rephrasing(case.original, text, case.answer))
    return None


async def judge_all(texts: Sequence[Text], judge: Judge, at_a_time: int) -> None:
    """Sets ``judged`` of each text that passes the checks."""

    async def judged(text: Text) -> str:
        rejection = await judge.check(text.original, text.text)
        return SAME if rejection is None else rejection.reason.removeprefix(f"{judge.model} ")

    asked = [text for text in texts if text.passes]
    for text, verdict in zip(asked, await _in_order(map(judged, asked), at_a_time), strict=True):
        text.judged = verdict


async def solve_all(texts: Sequence[Text], solver: Solver, at_a_time: int) -> dict[str, bool]:
    """Sets ``solved`` of each text that is asked; returns original -> whether it is solved."""

    async def solves(text: str, answer: str) -> bool:
        return await solver.check(text, answer) is None

    answers = {text.original: text.answer for text in texts if text.passes}
    right = await _in_order((solves(*pair) for pair in answers.items()), at_a_time)
    solved = dict(zip(answers, right, strict=True))
    asked = [text for text in texts if text.passes and solved[text.original]]
    right = await _in_order((solves(text.text, text.answer) for text in asked), at_a_time)
    for text, value in zip(asked, right, strict=True):
        text.solved = value
    return solved


async def _in_order(tasks: Iterable[Awaitable[Answer]], at_a_time: int) -> list[Answer]:
    """The results of all; those asked first are asked to the end first. A dot on standard error for each."""
    turn = asyncio.Semaphore(at_a_time)

    async def one(task: Awaitable[Answer]) -> Answer:
        async with turn:
            result = await task
            print(".", end="", file=sys.stderr, flush=True)
            return result

    return await asyncio.gather(*map(one, tasks))


def report(texts: Sequence[Text], has_judge: bool, solved: dict[str, bool] | None) -> None:
    columns = {"checks": lambda text: text.passes}
    if has_judge:
        columns["+ judge"] = lambda text: text.judged == SAME
    if solved is not None:
        columns["+ solver"] = lambda text: text.solved is True
    if has_judge and solved is not None:
        columns["+ both"] = lambda text: text.solved is True and text.judged == SAME
    print("rejected, %" + " " * 25 + "".join(f"{name:32}" for name in columns).rstrip())
    for kind in (GOOD, *FOR_A_MODEL):
        of_kind = [text for text in texts if text.kind == kind]
        shares = (interval(sum(not passes(text) for text in of_kind), len(of_kind)) for passes in columns.values())
        print(f"  {kind:34}" + "".join(f"{share:32}" for share in shares).rstrip())
    if has_judge:
        print("\nthe judge's verdicts on what passes the checks")
        for kind in (GOOD, *FOR_A_MODEL):
            verdicts = Counter(text.judged for text in texts if text.kind == kind and text.judged is not None)
            print(f"  {kind:34}" + "; ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common()))
    if solved is not None:
        print(f"\nthe solver solves {sum(solved.values())} of {len(solved)} originals; of their texts that pass")
        for kind in (GOOD, *FOR_A_MODEL):
            asked = [text.solved for text in texts if text.kind == kind and text.solved is not None]
            print(f"  {kind:34}{sum(asked)} of {len(asked)} solved")


async def measure(texts: Sequence[Text], chosen: argparse.Namespace) -> dict[str, bool] | None:
    endpoint, limits = Endpoint(chosen.base_url), Limits(concurrency=chosen.concurrency)
    cache = ReplyCache(chosen.cache, "model checks")
    asked = {"temperature": chosen.temperature}
    solved = None
    try:
        if chosen.judge_model is not None:
            async with Chat(endpoint, cache, limits, max_tokens=chosen.judge_tokens, **asked) as chat:
                await judge_all(texts, Judge(chat, chosen.judge_model, Prompts(chosen.prompts)), chosen.concurrency)
        if chosen.solver_model is not None:
            async with Chat(endpoint, cache, limits, max_tokens=chosen.solver_tokens, **asked) as chat:
                solver = Solver(chat, chosen.solver_model, chosen.samples)
                solved = await solve_all(texts, solver, chosen.concurrency)
        spent = cache.spent()
    finally:
        cache.close()
    print(f"\n{spent.calls} calls, {spent.tokens_in} tokens in, {spent.tokens_out} out", file=sys.stderr)
    return solved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rephrasings", type=Path)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--judge-model")
    parser.add_argument("--solver-model")
    parser.add_argument("--samples", type=int, default=3, help="answers of the solver to a text")
    parser.add_argument("--originals", type=int, default=30, help="questions of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--judge-tokens", type=int, default=256, help="longest reply of the judge")
    parser.add_argument("--solver-tokens", type=int, default=1024, help="longest answer of the solver")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompts", type=Path, help="directory with a judge.txt of your own")
    parser.add_argument("--cache", type=Path, default=Path("rephrasing_model_checks.sqlite"))
    chosen = parser.parse_args()
    if chosen.judge_model is None and chosen.solver_model is None:
        parser.error("name --judge-model, --solver-model or both")
    groups = [json.loads(line) for line in chosen.rephrasings.open(encoding="utf-8")]
    texts = drawn(groups, chosen.originals, chosen.seed)
    report(texts, chosen.judge_model is not None, asyncio.run(measure(texts, chosen)))


if __name__ == "__main__":
    main()
