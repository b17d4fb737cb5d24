"""Completions of every phrasing of the probe questions, verified and scored under q_n and under q_0 as they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..questions import Question, question_prompt
from ..rundir import append_jsonl
from ..sampling import Completion, SamplingSettings, TransformersSampler, keep_whole_batches, plan_batches
from ..verifier import verify_many
from .passes import Scored, outside_range, score


@dataclass(frozen=True)
class CompletionWithIds(Completion):
    """A completion with its tokens, the end-of-sequence token included: text may be tokenized in another way."""

    ids: tuple[int, ...] = ()


class SamplerWithIds(TransformersSampler):
    """The only change: completions keep their tokens."""

    def _completion(self, ids: list[int]) -> CompletionWithIds:
        drawn = super()._completion(ids)
        return CompletionWithIds(**asdict(drawn), ids=tuple(ids[: drawn.tokens]))


@dataclass(frozen=True)
class Block:
    """G completions of one question in one phrasing; q_0 has N + 1 blocks."""

    question: Question
    phrasing: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.question.id} (phrasing {self.phrasing}, block {self.number})"

    @property
    def text(self) -> str:
        return self.question.rephrasings[self.phrasing - 1] if self.phrasing else self.question.question


def blocks_of(questions: Sequence[Question], num_rephrasings: int) -> list[Block]:
    """N + 1 blocks of the original question and one of each rephrasing, question by question."""
    return [
        block
        for question in questions
        for block in (
            *(Block(question, 0, number) for number in range(num_rephrasings + 1)),
            *(Block(question, phrasing, 0) for phrasing in range(1, num_rephrasings + 1)),
        )
    ]


def count_completions(num_questions: int, num_rephrasings: int, per_phrasing: int) -> int:
    """(2 N + 1) * G of each question."""
    return num_questions * (2 * num_rephrasings + 1) * per_phrasing


def count_off_prompt(num_questions: int, num_rephrasings: int, per_phrasing: int) -> int:
    """Those of them that are sampled under a rephrasing, N * G of each question, and scored under two prompts."""
    return num_questions * num_rephrasings * per_phrasing


def probe(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    path: Path,
    *,
    num_rephrasings: int,
    settings: SamplingSettings,
    template: str,
    conversational: bool,
    chat_template_kwargs: dict[str, Any],
    rows_a_pass: int,
    epsilon: tuple[float, float],
    reference: Any = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw, verify and score all completions, appending a batch of lines at a time; whole batches are kept.

    A line: ``id``, ``phrasing``, ``block``, ``sample``, ``completion``, ``tokens``, ``finished``, ``outcome``,
    ``extracted``, and sums over its tokens: ``logp``, ``entropy`` and with a reference ``kl`` and ``kl_exact`` (see
    ``passes.Scored``), each ``…_sampled`` under the prompt it was sampled from and ``…_original`` under q_0. Also how
    many tokens' ratio pi(o_t | q_0) / pi(o_t | q_n) leaves the clipping range: ``ratio_below`` and ``ratio_above``.

    Args:
        settings: ``num_samples`` is G.
        rows_a_pass: completions of one forward pass.
        epsilon: clipping range below and above 1.
        reference: pi_ref of the KL; None: no KL.

    Raises:
        UserError: a prompt that does not fit, or a file that holds other samples.
    """
    sampler = SamplerWithIds(model, tokenizer, settings, chat_template_kwargs)
    blocks = blocks_of(questions, num_rephrasings)
    names = [block.name for block in blocks]
    prompts = sampler.prepare({block.name: question_prompt(block.text, template, conversational) for block in blocks})
    of_question = dict(zip(names, prompts, strict=True))
    originals = [of_question[Block(block.question, 0, 0).name] for block in blocks]
    lengths = [len(prompt) for prompt in prompts]
    batches = plan_batches(names, lengths, settings)
    done = keep_whole_batches(path, ([_place(blocks[n], sample) for n, sample in batch.rows] for batch in batches))
    total = len(blocks) * settings.num_samples
    written = min(done * settings.batch_size, total)
    if on_progress:
        on_progress(written, total)
    for batch in itertools.islice(plan_batches(names, lengths, settings), done, None):
        drawn: Any = sampler.complete([prompts[number] for number, _ in batch.rows], batch.seed)
        scored = _scored_twice(
            model,
            [(prompts[number], originals[number]) for number, _ in batch.rows],
            [completion.ids for completion in drawn],
            settings.temperature,
            rows_a_pass,
            reference,
        )
        verdicts = verify_many(
            (completion.text, blocks[number].question.answer)
            for completion, (number, _) in zip(drawn, batch.rows, strict=True)
        )
        append_jsonl(
            path,
            (
                {
                    **_place(blocks[number], sample),
                    "completion": completion.text,
                    "tokens": completion.tokens,
                    "finished": completion.finished,
                    "outcome": verdict.outcome,
                    "extracted": verdict.extracted,
                    **_sums("sampled", sampled),
                    **_sums("original", original),
                    **_ratio_counts(sampled, original, epsilon),
                }
                for (number, sample), completion, verdict, (sampled, original) in zip(
                    batch.rows, drawn, verdicts, scored, strict=True
                )
            ),
        )
        written += len(batch.rows)
        if on_progress:
            on_progress(written, total)


def _scored_twice(
    model: Any,
    prompts: Sequence[tuple[list[int], list[int]]],
    completions: Sequence[Sequence[int]],
    temperature: float,
    rows_a_pass: int,
    reference: Any,
) -> list[tuple[Scored, Scored]]:
    """Each completion under both of its prompts, (q_n, q_0); once where they are the same."""
    own = score(model, [asked for asked, _ in prompts], completions, temperature, rows_a_pass, reference)
    off_prompt = [row for row, (asked, original) in enumerate(prompts) if asked != original]
    under_original = score(
        model,
        [prompts[row][1] for row in off_prompt],
        [completions[row] for row in off_prompt],
        temperature,
        rows_a_pass,
        reference,
    )
    others = dict(zip(off_prompt, under_original, strict=True))
    return [(scored, others.get(row, scored)) for row, scored in enumerate(own)]


def _sums(under: str, scored: Scored) -> dict[str, float]:
    sums = {"logp": scored.logp, "entropy": scored.entropy, "kl": scored.kl, "kl_exact": scored.kl_exact}
    return {f"{name}_{under}": value for name, value in sums.items() if value is not None}


def _ratio_counts(sampled: Scored, original: Scored, epsilon: tuple[float, float]) -> dict[str, int]:
    return dict(
        zip(("ratio_below", "ratio_above"), outside_range(original.logps_T - sampled.logps_T, *epsilon), strict=True)
    )


def _place(block: Block, sample: int) -> dict[str, Any]:
    return {"id": block.question.id, "phrasing": block.phrasing, "block": block.number, "sample": sample}
