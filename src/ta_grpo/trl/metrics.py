"""What a training step tells about its groups: shares, rewards per phrasing, on-prompt and off-prompt figures.

Names, beside TRL's own (all averaged over a logging interval):

| metric | meaning |
|---|---|
| `questions/original/{all_wrong,all_right,mixed,unscored}` | shares of questions, over the completions of q_0 alone |
| `questions/joint/{all_wrong,all_right,mixed,unscored}` | shares of questions, over the whole group |
| `questions/short_of_rephrasings` | share of questions with fewer than N rephrasings |
| `reward/phrasing_0` … `reward/phrasing_N` | mean reward of the completions sampled under each phrasing |
| `reward/variance_between_phrasings` | share of a question's reward variance between phrasings, bias-corrected |
| `kl/{on,off}_prompt` | KL term over completions sampled under q_0, and under rephrasings (beta > 0) |
| `entropy/{on,off}_prompt` | entropy per token, likewise |
| `clip_ratio/{on,off}_prompt` | share of tokens whose ratio is clipped, likewise |
| `completions/pulled_share` | tokens trained once more under q_0, over all tokens of completions (`pull_to_original`) |
| `dynamic_sampling/sampled` | completions sampled for a batch, over those of the batch (`dynamic_sampling`) |
| `dynamic_sampling/thrown_away` | share of the completions sampled that were not trained on |
| `dynamic_sampling/unfilled` | share of the batch's groups that give no gradient, the budget being spent |
| `adaptive_rephrasings/questions` | questions that a batch was spent on, over those of a batch of full groups |
| `sampling/kept/phrasing_0` … | tokens of each phrasing that the correction for vLLM has not masked |
| `skipped_steps` | updates left out so far because their gradient was not finite |

Shapes: Q questions, K completions of a group, P phrasings, G per phrasing, B rows, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_CLIPPING_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def pass_figures(
    logps_BT: Tensor,
    entropies_BT: Tensor | None,
    inputs: Mapping[str, Any],
    *,
    loss_type: str,
    level: str,
    epsilon: tuple[float, float],
) -> dict[str, Tensor]:
    """Figures of one forward pass, each (B, T): entropy, KL term, clipped tokens, as far as the loss has them.

    Args:
        logps_BT: current log-probs of the completions.
        entropies_BT: entropies at their tokens.
        inputs: the pass's rows, as TRL's loss takes them.
        loss_type, level: TRL's ``loss_type`` and ``importance_sampling_level``.
        epsilon: clipping range below and above.
    """
    mask_BT = inputs["completion_mask"]
    figures: dict[str, Tensor] = {}
    if entropies_BT is not None:
        figures["entropy"] = entropies_BT
    if "ref_per_token_logps" in inputs:
        figures["kl"] = k3_kl(logps_BT, inputs["ref_per_token_logps"])
    if loss_type in _CLIPPING_LOSSES:
        log_ratio_BT = logps_BT - inputs.get("old_per_token_logps", logps_BT)
        if level == "sequence":
            mean_B1 = (log_ratio_BT * mask_BT).sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
            log_ratio_BT = mean_B1.expand_as(log_ratio_BT)
        figures["clip_ratio"] = clipped_tokens(log_ratio_BT, inputs["advantages"], *epsilon).float()
    return figures


def weighted_rewards(rewards_BF: Tensor, weights_F: Tensor) -> Tensor:
    """(B,) rewards of the F reward functions together, NaN where none of them has one."""
    rewards_B = (rewards_BF * weights_F.to(rewards_BF.device)).nansum(dim=1)
    rewards_B[torch.isnan(rewards_BF).all(dim=1)] = torch.nan
    return rewards_B


def clipped_tokens(log_ratio_BT: Tensor, advantages_B: Tensor, epsilon_low: float, epsilon_high: float) -> Tensor:
    """(B, T) bool: tokens whose gradient the clip removes, on the side where the advantage lets it act."""
    ratio_BT = log_ratio_BT.exp()
    advantages_B1 = advantages_B[:, None]
    low_BT = (ratio_BT < 1 - epsilon_low) & (advantages_B1 < 0)
    high_BT = (ratio_BT > 1 + epsilon_high) & (advantages_B1 > 0)
    return low_BT | high_BT


def k3_kl(logps_BT: Tensor, ref_logps_BT: Tensor) -> Tensor:
    """(B, T) k3 estimate exp(d) - d - 1 with d = log pi_ref - log pi."""
    d_BT = ref_logps_BT - logps_BT
    return d_BT.exp() - d_BT - 1


def kept_sums(ratio: Tensor, mask_BT: Tensor, phrasing_B: Tensor, num_phrasings: int) -> Tensor:
    """(P, 2) tokens kept, and all tokens, of each phrasing under TRL's correction for vLLM (0 is a masked token).

    Args:
        ratio: (B, T), or (B, 1) where a whole sequence has one.
        mask_BT: tokens of completions.
        phrasing_B: phrasing index of each row.
        num_phrasings: P.
    """
    kept_B = ((ratio > 0) * mask_BT).sum(dim=1).float()
    sums_P2 = torch.zeros(num_phrasings, 2, device=mask_BT.device)
    return sums_P2.index_add_(0, phrasing_B, torch.stack([kept_B, mask_BT.sum(dim=1).float()], dim=1))


def on_and_off_prompt_sums(values_BT: Tensor, mask_BT: Tensor, off_prompt_B: Tensor) -> Tensor:
    """(2, 2) sums and token counts: row 0 completions sampled under q_0, row 1 under rephrasings.

    Sums and counts add up over processes, so a mean over all of them is exact.
    """
    values_B = (values_BT * mask_BT).sum(dim=1).float()
    counts_B = mask_BT.sum(dim=1).float()
    off_B = off_prompt_B.float()
    return torch.stack(
        [
            torch.stack([(values_B * (1 - off_B)).sum(), (counts_B * (1 - off_B)).sum()]),
            torch.stack([(values_B * off_B).sum(), (counts_B * off_B).sum()]),
        ]
    )
