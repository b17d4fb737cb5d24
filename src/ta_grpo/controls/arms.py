"""The built-in arms of an experiment, each defined by what differs from plain training of the same model.

With N rephrasings, G completions a phrasing, Q questions a step and S steps:
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..questions import Question

METHOD, BASELINE = "ta-grpo", "grpo-matched"
"""The question that is asked first; the chain tells what the answer is made of."""

DATA_SCALE = 2.5
"""Questions of ``grpo-data`` over those of the other arms (the paper's data scaling)."""


@dataclass(frozen=True)
class Shape:
    """The size of an experiment: N, G, Q and S."""

    num_rephrasings: int
    generations_per_phrasing: int
    questions_per_step: int
    max_steps: int

    @property
    def phrasings(self) -> int:
        return self.num_rephrasings + 1

    @property
    def group(self) -> int:
        """(N + 1) * G."""
        return self.phrasings * self.generations_per_phrasing


@dataclass(frozen=True)
class Arm:
    """What an arm differs in.

    Attributes:
        about: one line.
        settings: of the verb train, from the experiment's shape.
        questions: changes the training questions; None leaves them.
        more_questions: how many times as many questions it trains on.
        against: the arm that it is compared with, outside the chain.
    """

    about: str
    settings: Callable[[Shape], Mapping[str, Any]]
    questions: Callable[[Question], Iterator[Question]] | None = None
    more_questions: float = 1.0
    against: str = BASELINE


def one_question_a_phrasing(question: Question) -> Iterator[Question]:
    """Every phrasing of a question as a question of its own, without rephrasings."""
    for index, text in enumerate([question.question, *question.rephrasings]):
        yield Question(f"{question.id}#{index}", text, question.answer, source=question.source)


def _grpo(shape: Shape) -> dict[str, Any]:
    return {"num_rephrasings": 0, "num_generations": shape.generations_per_phrasing}


def _matched(shape: Shape) -> dict[str, Any]:
    return {"num_rephrasings": 0, "num_generations": shape.group}


def _joint(**settings: Any) -> Callable[[Shape], dict[str, Any]]:
    return lambda shape: {"num_rephrasings": shape.num_rephrasings, "num_generations": shape.group, **settings}


def _longer(scale: Callable[[Shape], float]) -> Callable[[Shape], dict[str, Any]]:
    return lambda shape: _grpo(shape) | {"max_steps": round(shape.max_steps * scale(shape))}


def _dynamic(shape: Shape) -> dict[str, Any]:
    """DAPO's dynamic sampling and clip-higher (arXiv 2503.14476), until as many completions are sampled."""
    responses = shape.questions_per_step * shape.group * shape.max_steps
    return _matched(shape) | {"dynamic_sampling": 3.0, "epsilon_high": 0.28, "max_responses": responses}


def _rephrased_data(shape: Shape) -> dict[str, Any]:
    return _grpo(shape) | {"questions_per_step": shape.questions_per_step * shape.phrasings}


ARMS: Mapping[str, Arm] = {
    "grpo": Arm("G completions on q_0: a smaller budget", _grpo),
    "grpo-matched": Arm("(N + 1) * G completions on q_0", _matched),
    "grpo-longer": Arm("grpo for N + 1 times the steps", _longer(lambda shape: shape.phrasings)),
    "grpo-data": Arm(
        f"grpo on {DATA_SCALE} times the questions", _longer(lambda _: DATA_SCALE), more_questions=DATA_SCALE
    ),
    "rephrased-data": Arm(
        "every phrasing a question of its own: own group, own prompt", _rephrased_data, one_question_a_phrasing
    ),
    "ta-own-prompt": Arm("joint group, own-prompt ratio (the authors' code)", _joint(ratio_anchor="sampled")),
    "ta-per-phrasing": Arm("anchored, normalised within each phrasing", _joint(advantage_scope="per_phrasing")),
    "ta-importance": Arm("joint group, ratio across prompts", _joint(ratio_anchor="importance")),
    "ta-grpo": Arm("joint group, anchored: the method", _joint()),
    "ta-pull": Arm("the method without negative off-prompt advantages", _joint(off_prompt_negatives="drop")),
    "ta-both": Arm(
        "joint group, own-prompt ratio, off-prompt successes once more under q_0",
        _joint(ratio_anchor="sampled", pull_to_original=1.0),
    ),
    "ta-adaptive": Arm(
        "the method with more phrasings only where rewards are alike, on more questions",
        _joint(adaptive_rephrasings=True),
        against=METHOD,
    ),
    "dapo": Arm("grpo-matched with dynamic sampling and clip-higher, fewer updates", _dynamic),
    "entropy": Arm("grpo-matched with an entropy bonus", lambda shape: _matched(shape) | {"entropy_coef": 0.01}),
}

CHAIN = ("grpo-matched", "rephrased-data", "ta-own-prompt", "ta-grpo", "ta-pull")
"""Each step changes one thing: the data, the pooling, the anchoring, the negatives."""

CHAIN_STEPS = ("data", "pooling", "anchoring", "negatives")
