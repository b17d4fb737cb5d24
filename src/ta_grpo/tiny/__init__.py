"""The embedded default: a small world of word problems and a small base policy, enough to see the method work.

``questions(split)`` needs neither torch nor a network; ``load_policy()`` reads the weights that lie in this package.
How they were made and what they can do: ``policy/README.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..questions import Question, QuestionSet
from .world import SPLITS, problems

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["POLICY_DIR", "SPLITS", "load_policy", "questions"]

POLICY_DIR = Path(__file__).parent / "policy"


def questions(split: str = "train") -> QuestionSet:
    """The questions of a split, always the same; ``extra`` holds ``family`` and ``phrasing``, q_0's number in it.

    Splits: ``train``; ``test``, numbers that training never shows; ``test_phrasings``, such numbers in phrasings that
    training never shows; ``ood``, larger numbers.

    Raises:
        UserError: for an unknown split.
    """
    if split not in SPLITS:
        raise UserError(f"the embedded set has no split {split!r}; use one of {', '.join(SPLITS)}")
    return QuestionSet(
        (
            Question(
                id=problem.id,
                question=problem.question,
                answer=str(problem.answer),
                rephrasings=problem.rephrasings,
                source="tiny",
                extra={"family": problem.family, "phrasing": problem.phrasing},
            )
            for problem in problems(split)
        ),
        name=f"tiny/{split}",
        prompt_template="{question}",
    )


def load_policy() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The base policy in float32, in evaluation mode, and its tokenizer; a fresh copy at each call."""
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    model = LlamaForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(POLICY_DIR)
