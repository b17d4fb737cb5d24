"""One fixture for the core, TRL and verl: questions, phrasings, completions and rewards, with what must come of them.

``python tests/parity.py`` makes ``tests/data/parity.json`` anew, from the embedded policy.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).parent / "data" / "parity.json"
N, K = 3, 8
G = K // (N + 1)
EPSILON = 0.2
LENGTH = 32
# Of the training questions: two that the policy gets right under some phrasings, and one that it gets wrong under all.
NUMBERS = (4, 10, 11)


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def padded(rows: list[list[float]], fill: float = 0.0) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)


def advantages(rewards: list[float], eps: float) -> list[float]:
    """A = (r - mean) / (std + eps), std unbiased; in plain Python, apart from the code under test."""
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (std + eps) for reward in rewards]


def token_losses(completion: dict[str, Any], advantage: float) -> list[float]:
    """-min(r A, clip(r) A) of each token, r = exp(log pi(o|q_0) - old log-prob)."""
    losses = []
    for now, old in zip(completion["log_probs"], completion["old_log_probs"], strict=True):
        ratio = math.exp(now - old)
        clipped = min(max(ratio, 1 - EPSILON), 1 + EPSILON)
        losses.append(-min(ratio * advantage, clipped * advantage))
    return losses


def log_probs(model: Any, prompt_ids: list[int], completion_ids: list[int]) -> list[float]:
    """log pi(o_t | prompt, o_<t), by one pass without padding."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt_ids, *completion_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion_ids)[:, None])[:, 0].tolist()


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def build() -> dict[str, Any]:
    """Sample from the embedded policy. The old log-probs are the current ones, moved so that ratios are in and out of
    the clipping range on both sides."""
    from ta_grpo.tiny import load_policy, questions
    from ta_grpo.verifier import verify

    model, tokenizer = load_policy()
    torch.manual_seed(1)
    groups = []
    for number in NUMBERS:
        question = questions("train")[number]
        original = prompt_ids(tokenizer, question.question)
        completions = []
        for text in [question.question, *question.rephrasings[:N]]:
            asked = prompt_ids(tokenizer, text)
            for _ in range(G):
                output = model.generate(torch.tensor([asked]), do_sample=True, top_k=0, max_new_tokens=LENGTH)
                ids = output[0, len(asked) :].tolist()
                now = log_probs(model, original, ids)
                old = [value - 0.3 * math.sin(7 * place + len(completions)) for place, value in enumerate(now)]
                verdict = verify(tokenizer.decode(ids, skip_special_tokens=True), question.answer)
                completions.append(
                    {
                        "phrasing": len(completions) // G,
                        "ids": ids,
                        "reward": float(verdict.correct),
                        "log_probs": [round(value, 6) for value in now],
                        "old_log_probs": [round(value, 6) for value in old],
                    }
                )
        exact = (
            advantages([completion["reward"] for completion in completions], 0.0) if mixed(completions) else [0.0] * K
        )
        for completion, advantage in zip(completions, exact, strict=True):
            completion["advantage"] = advantage
            completion["token_losses"] = [round(loss, 6) for loss in token_losses(completion, advantage)]
        groups.append(
            {
                "id": question.id,
                "question": question.question,
                "rephrasings": list(question.rephrasings[:N]),
                "answer": question.answer,
                "completions": completions,
            }
        )
    return {"num_rephrasings": N, "num_generations": K, "epsilon": EPSILON, "groups": groups}


def mixed(completions: list[dict[str, Any]]) -> bool:
    return len({completion["reward"] for completion in completions}) > 1


if __name__ == "__main__":
    FILE.write_text(json.dumps(build()) + "\n", encoding="utf-8")
