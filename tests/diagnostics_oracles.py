"""What the diagnostics are held against: KL divergences from their equations, and an embedder by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def kl_oracle(policy, reference, prompt: list[int], completion: list[int], temperature: float) -> tuple[float, float]:
    """(k3, exact) sums over the tokens, from the equations, one unpadded pass of each model."""
    ids = torch.tensor([prompt + completion])
    part = slice(len(prompt) - 1, -1)
    pi, ref = ((each(ids).logits[0, part].double() / temperature).softmax(-1) for each in (policy, reference))
    k3 = exact = 0.0
    for t, token in enumerate(completion):
        ratio = (ref[t, token] / pi[t, token]).item()
        k3 += ratio - math.log(ratio) - 1
        exact += sum(p * math.log(p / q) for p, q in zip(pi[t].tolist(), ref[t].tolist(), strict=True))
    return k3, exact


class OneHot:
    """Deterministic, and each different text is orthogonal to all others."""

    def embed(self, texts: Sequence[str]) -> Any:
        return np.eye(len(texts))
