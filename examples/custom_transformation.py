"""A transformation of one's own: as a prompt for a model, and as plain code; both are checked like any other.

With a model, a transformation is a template in a folder (prompts/headline.txt), named by its file:

    ta-grpo rephrase q.jsonl -o out.jsonl -n 1 --prompts prompts --transformations headline --base-url URL --model NAME

In code it is a function from text to text, and this script shows the rest: python custom_transformation.py OUTPUT.jsonl
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace

from ta_grpo.questions import Question, save_questions
from ta_grpo.rephrasing import check_rephrasing


def question_first(text: str) -> str:
    """What is asked comes first, then the facts."""
    *facts, asked = re.split(r"(?<=[.?!])\s+", text.strip())
    return " ".join([asked, *facts])


def with_accepted(question: Question, texts: list[str]) -> Question:
    """The question with those of the texts that keep the problem; the others are told."""
    accepted = list(question.rephrasings)
    for text in texts:
        rejections = check_rephrasing(question.question, text, question.answer, siblings=accepted)
        for rejection in rejections:
            print(f"{question.id}: {rejection.check}: {rejection.reason}")
        if not rejections:
            accepted.append(text)
    return replace(question, rephrasings=tuple(accepted))


if __name__ == "__main__":
    asked = Question("pens", "A box holds 6 pens. Ann has 7 boxes. How many pens does Ann have?", "42")
    # The second has lost a number, and is rejected.
    made = with_accepted(asked, [question_first(asked.question), "A box holds pens. How many do 7 boxes hold?"])
    save_questions([made], sys.argv[1])
    print(f"{len(made.rephrasings)} accepted: {made.rephrasings[0]}")
