"""Completions of questions, appended to a file that an interrupted run can take up again.

What a batch holds does not depend on where a run was interrupted: a resumed file equals an unbroken one, on the same
machine and libraries.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..questions import Question, check_prompt_template, question_prompt
from ..rundir import append_jsonl, iter_jsonl, read_json, write_json_atomic
from .arrived import Arrived
from .plan import Completion, Sampler, digest_of, plan_batches

SAMPLE_FIELDS = {"id": str, "sample": int, "completion": str, "tokens": (int, type(None)), "finished": bool}
"""What a line holds at least, and of which types."""


def sample_to_file(
    sampler: Sampler,
    questions: Sequence[Question],
    path: Path,
    template: str,
    conversational: bool,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw ``num_samples`` completions of each original question and append them to a JSONL file.

    A line is ``{"id", "sample", "completion", "tokens", "finished"}``; the lines of a question follow each other. A
    batch of lines is on disk before the next is drawn, and what a slow backend has of an unfinished batch is in
    ``NAME.arrived.jsonl``. What decides the samples stands in ``NAME.meta.json``. If the file is there already, its
    whole batches are kept, a part of one is cut, and the rest is drawn.

    Args:
        on_progress: called with (completions on disk, completions wanted), at the start and whenever some are drawn.

    Raises:
        UserError: no questions or a duplicate id, a bad template, a prompt that does not fit, or a file that was begun
            with other settings, questions or another model.
    """
    check_prompt_template(template)
    if not questions:
        raise UserError("there are no questions to sample from")
    ids = [question.id for question in questions]
    if len(set(ids)) < len(ids):
        raise UserError("two questions have the same id; samples could not be told apart")
    asked = {question.id: question_prompt(question.question, template, conversational) for question in questions}
    prompts = sampler.prepare(asked)
    meta = {
        **asdict(sampler.settings),
        "prompt_template": template,
        "conversational": conversational,
        "questions": digest_of([ids, prompts]),
        **sampler.describe(),
    }
    _check_meta(path, meta)
    lengths = [len(prompt) for prompt in prompts]
    batches = plan_batches(ids, lengths, sampler.settings)
    planned = ([{"id": ids[number], "sample": sample} for number, sample in batch.rows] for batch in batches)
    done = keep_whole_batches(path, planned)
    total = len(ids) * sampler.settings.num_samples
    written = min(done * sampler.settings.batch_size, total)

    def tell(in_hand: int = 0) -> None:
        if on_progress:
            on_progress(written + in_hand, total)

    arrived = Arrived(path.with_suffix(".arrived.jsonl"), tell)
    tell()
    for batch in itertools.islice(plan_batches(ids, lengths, sampler.settings), done, None):
        completions = sampler.complete([prompts[number] for number, _ in batch.rows], batch.seed, arrived)
        append_jsonl(path, (_line(ids, row, drawn) for row, drawn in zip(batch.rows, completions, strict=True)))
        arrived.clear()
        written += len(batch.rows)
        tell()


def _line(ids: Sequence[str], row: tuple[int, int], drawn: Completion) -> dict[str, Any]:
    number, sample = row
    return {
        "id": ids[number],
        "sample": sample,
        "completion": drawn.text,
        "tokens": drawn.tokens,
        "finished": drawn.finished,
    }


def _check_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Write down what decides the samples, or compare it with what the file was begun with."""
    meta_path = path.with_suffix(".meta.json")
    now = json.loads(json.dumps(meta))
    if not meta_path.exists():
        if path.exists():
            raise UserError(
                f"{path} is there, but {meta_path.name} is not, so nobody knows how it was drawn; move it away"
            )
        write_json_atomic(meta_path, now)
        return
    before = read_json(meta_path)
    changed = [
        f"{name} (then {before.get(name)!r:.60}, now {now.get(name)!r:.60})"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise UserError(
            f"{path} was begun with another {', '.join(changed)}; go on with the same, or write to another directory"
        )


def keep_whole_batches(path: Path, planned: Iterable[Sequence[Mapping[str, Any]]]) -> int:
    """How many planned batches a file of samples holds in full; lines of an unfinished one are cut.

    Args:
        path: of the file; it need not be there.
        planned: of each batch, what its lines must hold to be the ones that were planned.

    Raises:
        UserError: the file holds other lines.
    """
    lines = iter_jsonl(path, SAMPLE_FIELDS)
    done = end = 0
    for batch in planned:
        found = list(itertools.islice(lines, len(batch)))
        if any(not wanted.items() <= line.items() for wanted, (line, _) in zip(batch, found, strict=False)):
            raise _not_as_planned(path)
        if len(found) < len(batch):
            break
        done, end = done + 1, found[-1][1]
    if next(lines, None) is not None:
        raise _not_as_planned(path)
    if path.exists():
        os.truncate(path, end)
    return done


def _not_as_planned(path: Path) -> UserError:
    return UserError(f"{path} holds other samples than were planned; something else has written to it: move it away")
