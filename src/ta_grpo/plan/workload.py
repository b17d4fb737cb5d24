"""How much there is to do: responses, tokens, floating-point operations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UserError
from ..questions import load_questions
from .model_size import ModelSize
from .settings import PlanSettings


@dataclass(frozen=True)
class Workload:
    """Counts of a run; tokens are means times counts, so at most those where only the longest lengths are known."""

    questions: int
    rephrasings_to_make: int
    phrasings: int
    completions_per_phrasing: int
    generation_batches: int
    responses_per_batch: int
    responses: int
    completion_tokens: int
    tokens_scored: int
    tokens_trained: int
    lengths_are_upper_bounds: bool


def count_questions(questions: str) -> int:
    """A number as it is, else the questions of a file or named set.

    Raises:
        UserError: as ``load_questions``.
    """
    if questions.replace("_", "").replace(",", "").isdigit():
        count = int(questions.replace(",", ""))
        if count < 1:
            raise UserError("questions must be 1 or more")
        return count
    return len(load_questions(questions))


def workload(settings: PlanSettings) -> Workload:
    """Count a run.

        generation batches = floor(questions / questions_per_step) * epochs, or max_steps / num_iterations
        responses          = generation batches * questions_per_step * (N + 1) * G
        tokens scored      = responses * (prompt + completion) * forward passes
        tokens trained     = responses * (prompt + completion) * num_iterations

    Forward passes beside training: one for pi_old where completions are trained on more than once, one for the
    reference where beta > 0 (TRL 1.16, ``_generate_and_score_completions``).

    Raises:
        UserError: fewer questions than a generation batch takes.
    """
    questions = count_questions(settings.questions)
    if questions < settings.questions_per_step:
        raise UserError(
            f"{questions} questions do not fill a generation batch of questions_per_step={settings.questions_per_step}"
        )
    if settings.max_steps is None:
        batches = math.ceil(questions // settings.questions_per_step * settings.num_train_epochs)
    else:
        batches = math.ceil(settings.max_steps / settings.num_iterations)
    per_batch = settings.questions_per_step * settings.num_generations
    responses = batches * per_batch
    prompt, completion = settings.mean_lengths
    tokens = responses * (prompt + completion)
    passes = (settings.num_iterations > 1) + (settings.beta > 0)
    return Workload(
        questions=questions,
        rephrasings_to_make=questions * settings.num_rephrasings,
        phrasings=settings.num_rephrasings + 1,
        completions_per_phrasing=settings.num_generations // (settings.num_rephrasings + 1),
        generation_batches=batches,
        responses_per_batch=per_batch,
        responses=responses,
        completion_tokens=round(responses * completion),
        tokens_scored=round(tokens * passes),
        tokens_trained=round(tokens * settings.num_iterations),
        lengths_are_upper_bounds=settings.mean_prompt_length is None or settings.mean_completion_length is None,
    )


def forward_flops(size: ModelSize) -> float:
    """Floating-point operations of one token's forward pass: 2 * parameters (Kaplan et al., arXiv 2001.08361, 2.1).

    Attention over earlier tokens is not in it, nor are adapters; an input embedding of its own is, though it multiplies
    nothing.
    """
    return 2.0 * size.parameters


def update_flops(size: ModelSize, settings: PlanSettings) -> float:
    """Floating-point operations of one token in an update.

    Forward 2P; backward 4P, of which 2P are gradients of weights (none where the weights are frozen); 2P more where
    activations are computed again.
    """
    passes = 1 + (1 if settings.use_peft else 2) + (1 if settings.gradient_checkpointing else 0)
    return passes * forward_flops(size)
