"""A reward of one's own, for questions that are not maths: words in alphabetical order, in examples/word_order.jsonl.

From this folder:

    ta-grpo train --config ../recipes/word_order.yaml --output-dir ../runs/words

A reward function has TRL's signature: it gets the completions and, as keywords, every column of the questions; of
TA-GRPO's own, ``phrasing_index`` (0: the original) and ``sampled_prompt``. It returns a number for each completion, or
None where nothing can be said. It must not raise. Here it is graded, so that a group is seldom uniform.
"""

from __future__ import annotations

import re
from typing import Any


def in_order(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """Share of the pairs of words that stand in the right order; a word that is missing is in none.

    Args:
        completions: (B,) texts, or conversations of one message.
        answer: (B,) the words in the right order, with commas.
    """
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [_share_of_pairs(text, words.split(", ")) for text, words in zip(texts, answer, strict=True)]


def _share_of_pairs(text: str, right: list[str]) -> float:
    said = [word for word in re.findall(r"[a-z]+", text.lower()) if word in right]
    place = {word: i for i, word in enumerate(said)}  # where a word is said twice, the last time counts
    pairs = [(a, b) for i, a in enumerate(right) for b in right[i + 1 :]]
    return sum(a in place and b in place and place[a] < place[b] for a, b in pairs) / len(pairs)
