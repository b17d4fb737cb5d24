"""Log-probs of completions under a prompt, by direct forward passes, and what follows from two of them.

Shapes: B rows, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """Sums over the tokens of a completion: log-probs, and entropies of the distributions they were drawn from."""

    logp: float
    entropy: float


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float,
    rows_a_pass: int,
) -> list[Scored]:
    """Each completion under its prompt, in passes of ``rows_a_pass`` rows padded on the right.

    A causal model does not look at what follows, so that padding changes nothing but rounding. Logits are divided by
    the temperature, as in training. A completion without tokens scores 0.

    Raises:
        UserError: a pass does not fit into memory.
    """
    import torch

    scored = []
    with torch.no_grad():
        for start in range(0, len(prompts), rows_a_pass):
            part = slice(start, start + rows_a_pass)
            try:
                scored += _score_pass(model, prompts[part], completions[part], temperature)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"a forward pass of {rows_a_pass} completions does not fit into the GPU's memory; go on with "
                    "--resume and a lower --rows-a-pass"
                ) from None
    return scored


def _score_pass(
    model: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float
) -> list[Scored]:
    import torch

    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    ids_BS = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
    mask_BS = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=model.device)
    first = min(map(len, prompts)) - 1  # nothing before it predicts a completion's token
    logits_BSV = model(input_ids=ids_BS, attention_mask=mask_BS, logits_to_keep=width - first, use_cache=False).logits
    scored = []
    for logits_SV, prompt, completion in zip(logits_BSV, prompts, completions, strict=True):
        begin = len(prompt) - 1 - first
        scored.append(_score_row(logits_SV[begin : begin + len(completion)], completion, temperature))
    return scored


def _score_row(logits_TV: Tensor, completion: Sequence[int], temperature: float) -> Scored:
    import torch

    logps_TV = (logits_TV.float() / temperature).log_softmax(-1)
    ids_T1 = torch.tensor(completion, dtype=torch.long, device=logps_TV.device)[:, None]
    # Tokens that a model forbids have -inf, and 0 * -inf is no number.
    entropy = -torch.where(logps_TV.isneginf(), 0.0, logps_TV.exp() * logps_TV).sum()
    return Scored(logp=logps_TV.gather(1, ids_T1).double().sum().item(), entropy=entropy.item())


def surrogate_gap(sampled_C: ArrayLike, original_C: ArrayLike, tokens_C: ArrayLike) -> float:
    """Mean over tokens of log pi(o | q_n) - log pi(o | q_0), from sums over each of C completions sampled under q_n.

    An estimate of the KL divergence a token between answering q_n and answering q_0. NaN without tokens.
    """
    tokens = np.sum(tokens_C)
    return float(np.sum(np.subtract(sampled_C, original_C)) / tokens) if tokens else float("nan")


def ess_share(sampled_C: ArrayLike, original_C: ArrayLike) -> float:
    """Effective sample size of the sequence weights w = pi(o | q_0) / pi(o | q_n), as a share of C.

        ESS / C = (sum w)^2 / (C * sum w^2)

    1: as good as sampled under q_0. 1 / C, the least there can be: one completion has all the weight.
    """
    log_weights_C = np.subtract(original_C, sampled_C).astype(np.float64)
    weights_C = np.exp(log_weights_C - log_weights_C.max())
    return float(weights_C.sum() ** 2 / (len(weights_C) * (weights_C**2).sum()))
