"""Log-probs of completions under a prompt, by direct forward passes, and what follows from two of them.

Shapes: B rows, T tokens of a completion, V vocabulary, C completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """One completion under one prompt; sums over its T tokens, but for the log-probs.

    Attributes:
        logps_T: log pi(o_t | prompt, o_<t).
        entropy: of the distributions that the tokens were drawn from.
        kl: the k3 estimate of KL(pi || pi_ref), sum of exp(d_t) - d_t - 1 with d_t = log pi_ref(o_t) - log pi(o_t).
            An estimate of that divergence only where the completion was sampled under this prompt; of another it is
            what a KL term in training would add up, and no divergence. None without a reference.
        kl_exact: the same divergence over the whole vocabulary, sum of KL(pi(. | prompt, o_<t) || pi_ref(. | same)).
            A divergence under any prompt, at the beginnings that this completion has. None without a reference.
    """

    logps_T: NDArray[np.float64]
    entropy: float
    kl: float | None = None
    kl_exact: float | None = None

    @property
    def logp(self) -> float:
        """log pi(o | prompt)."""
        return float(self.logps_T.sum())


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float,
    rows_a_pass: int,
    reference: Any = None,
) -> list[Scored]:
    """Each completion under its prompt, in passes of ``rows_a_pass`` rows padded on the right.

    A causal model does not look at what follows, so that padding changes nothing but rounding. Logits are divided by
    the temperature, as in training, those of the reference too. A completion without tokens scores 0.

    Args:
        reference: pi_ref, with the same vocabulary; None: no KL.

    Raises:
        UserError: a pass does not fit into memory, or the reference has another vocabulary.
    """
    import torch

    scored = []
    with torch.no_grad():
        for start in range(0, len(prompts), rows_a_pass):
            part = slice(start, start + rows_a_pass)
            try:
                scored += _score_pass(model, reference, prompts[part], completions[part], temperature)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"a forward pass of {rows_a_pass} completions does not fit into the GPU's memory; go on with "
                    "--resume and a lower --rows-a-pass"
                ) from None
    return scored


def _score_pass(
    model: Any,
    reference: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float,
) -> list[Scored]:
    import torch

    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    ids_BS = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
    mask_BS = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=model.device)
    first = min(map(len, prompts)) - 1  # nothing before it predicts a completion's token
    batch = {"input_ids": ids_BS, "attention_mask": mask_BS, "logits_to_keep": width - first, "use_cache": False}
    logits_BSV = model(**batch).logits
    ref_logits_BSV = None if reference is None else logits_BSV if reference is model else reference(**batch).logits
    if ref_logits_BSV is not None and ref_logits_BSV.shape != logits_BSV.shape:
        raise UserError(
            f"the base model has a vocabulary of {ref_logits_BSV.shape[-1]} tokens and the checkpoint one of "
            f"{logits_BSV.shape[-1]}, so that there is no KL between them; add --no-kl"
        )
    scored = []
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        begin = len(prompt) - 1 - first
        part = slice(begin, begin + len(completion))
        ref_logits_TV = None if ref_logits_BSV is None else ref_logits_BSV[row, part]
        scored.append(_score_row(logits_BSV[row, part], ref_logits_TV, completion, temperature))
    return scored


def _score_row(
    logits_TV: Tensor, ref_logits_TV: Tensor | None, completion: Sequence[int], temperature: float
) -> Scored:
    import torch

    from ..trl.metrics import k3_kl

    ids_T1 = torch.tensor(completion, dtype=torch.long, device=logits_TV.device)[:, None]
    logps_TV = (logits_TV.float() / temperature).log_softmax(-1)
    logps_T = logps_TV.gather(1, ids_T1)[:, 0].double()
    scored = Scored(logps_T.cpu().numpy(), entropy=-_mean_under(logps_TV, logps_TV).sum().item())
    if ref_logits_TV is None:
        return scored
    ref_logps_TV = (ref_logits_TV.float() / temperature).log_softmax(-1)
    ref_logps_T = ref_logps_TV.gather(1, ids_T1)[:, 0].double()
    return replace(
        scored,
        kl=k3_kl(logps_T, ref_logps_T).sum().item(),
        kl_exact=_mean_under(logps_TV, logps_TV - ref_logps_TV).sum().item(),
    )


def _mean_under(logps_TV: Tensor, values_TV: Tensor) -> Tensor:
    """(T,) means of values under the distributions."""
    import torch

    # Tokens that a model forbids have -inf, and 0 * -inf is no number.
    return torch.where(logps_TV.isneginf(), 0.0, logps_TV.exp() * values_TV).double().sum(-1)


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


def outside_range(log_ratio_T: NDArray[np.float64], epsilon_low: float, epsilon_high: float) -> tuple[int, int]:
    """Tokens whose ratio lies below 1 - epsilon_low, and above 1 + epsilon_high.

    The clip takes the gradient of the former away where the advantage is negative, of the latter where it is positive.
    """
    ratio_T = np.exp(log_ratio_T)
    return int((ratio_T < 1 - epsilon_low).sum()), int((ratio_T > 1 + epsilon_high).sum())
