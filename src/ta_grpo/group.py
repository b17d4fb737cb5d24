"""The expanded group: one question, P = N + 1 phrasings, G completions of each, rewards normalised together.

Shapes: Q questions, K completions of a group, P phrasings, G completions per phrasing (K = P * G).
A reward of NaN means "not applicable" (TRL's ``None``): it takes no part in mean or std, and its advantage is 0.
Source of the equations: arXiv 2601.22478. torch is the only dependency, so every back end can use this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# TRL adds 1e-4 to the standard deviation, verl 1e-6.
TRL_EPS = 1e-4


def phrasing_of_slot(slot: int, num_generations: int, num_phrasings: int, available: int | None = None) -> int:
    """Which phrasing the completion in a slot of the expanded group is sampled from; 0 is the original question.

    Slots are dealt in contiguous blocks of G = num_generations / num_phrasings:

        phrasing = (slot // G) mod available

    Args:
        slot: position in the group; a row number of a batch of whole groups works too (it is taken modulo the group).
        num_generations: K, completions that are normalised together.
        num_phrasings: P = N + 1, the phrasings a full question has.
        available: phrasings this question really has, 1 <= available; more than P count as P. Default: P.

    Raises:
        ValueError: if the group does not divide into P blocks, or a count is below 1.
    """
    if num_phrasings < 1 or num_generations < 1:
        raise ValueError(f"a group has at least 1 completion and 1 phrasing; got {num_generations} and {num_phrasings}")
    if num_generations % num_phrasings:
        raise ValueError(
            f"a group of num_generations={num_generations} does not divide into {num_phrasings} phrasings; "
            f"use {' or '.join(map(str, nearest_group_sizes(num_generations, num_phrasings)))}"
        )
    available = num_phrasings if available is None else min(available, num_phrasings)
    if available < 1:
        raise ValueError("a question has at least one phrasing, the original; got available=0")
    completions_per_phrasing = num_generations // num_phrasings
    return (slot % num_generations) // completions_per_phrasing % available


def nearest_group_sizes(num_generations: int, num_phrasings: int) -> list[int]:
    """The multiples of ``num_phrasings`` next to ``num_generations``, at least 2, smaller first."""
    below = num_generations // num_phrasings * num_phrasings
    return [size for size in (below, below + num_phrasings) if size >= 2]


def joint_advantages(rewards_QK: Tensor, eps: float = TRL_EPS) -> Tensor:
    """Advantages of whole expanded groups, normalised over all phrasings together.

        A_k = (r_k - mean(R)) / (std(R) + eps),   R = the group's K rewards, std unbiased (ddof 1)

    Args:
        rewards_QK: (Q, K), NaN where a completion has no reward.
        eps: added to the standard deviation; TRL's value by default.

    Returns:
        (Q, K). Exactly 0 for a uniform group (max = min; rounding in the mean would leave dust), for a group with
        fewer than two rewards, and for NaN rewards.
    """
    scored_QK = ~torch.isnan(rewards_QK)
    count_Q1 = scored_QK.sum(dim=1, keepdim=True)
    mean_Q1 = rewards_QK.nansum(dim=1, keepdim=True) / count_Q1.clamp(min=1)
    deviation_QK = torch.where(scored_QK, rewards_QK - mean_Q1, 0.0)
    std_Q1 = (deviation_QK.square().sum(dim=1, keepdim=True) / (count_Q1 - 1).clamp(min=1)).sqrt()
    return torch.where(uniform_groups(rewards_QK)[:, None], 0.0, deviation_QK / (std_Q1 + eps))


def per_phrasing_advantages(rewards_QK: Tensor, num_phrasings: int, eps: float = TRL_EPS) -> Tensor:
    """Advantages normalised within each phrasing's block of G completions: the ablation of the joint normalisation.

        A_k = (r_k - mean(R_p)) / (std(R_p) + eps),   R_p = the G rewards of k's block

    Args:
        rewards_QK: (Q, K), NaN where a completion has no reward.
        num_phrasings: P; block p holds slots p*G .. (p+1)*G - 1.
        eps: added to the standard deviation.

    Returns:
        (Q, K).

    Raises:
        ValueError: if K is not a multiple of P.
    """
    num_generations = rewards_QK.shape[1]
    if num_generations % num_phrasings:
        raise ValueError(f"{num_generations} rewards a question do not divide into {num_phrasings} phrasings")
    blocks_BG = rewards_QK.reshape(-1, num_generations // num_phrasings)
    return joint_advantages(blocks_BG, eps).reshape(rewards_QK.shape)


def drop_off_prompt_negatives(advantages: Tensor, phrasing: Tensor) -> Tensor:
    """Set to 0 the negative advantages of completions that were sampled under a rephrasing (phrasing >= 1).

    Applied after normalisation, so positives keep the weight that the whole group gave them. Our extension: anchored
    negatives push the policy away from text that it might never have written under the original question.

    Args:
        advantages: any shape.
        phrasing: same shape, integer phrasing index of each completion.
    """
    return advantages.masked_fill((phrasing > 0) & (advantages < 0), 0.0)


def uniform_groups(rewards_QK: Tensor) -> Tensor:
    """(Q,) bool: groups that give no gradient, decided by max - min = 0 over the scored completions.

    Never by advantage = 0: twelve equal rewards of 0.1 have a float32 mean that differs from them. Groups with no or
    one scored completion are uniform.
    """
    missing_QK = torch.isnan(rewards_QK)
    highest_Q = rewards_QK.masked_fill(missing_QK, -torch.inf).amax(dim=1)
    lowest_Q = rewards_QK.masked_fill(missing_QK, torch.inf).amin(dim=1)
    return highest_Q <= lowest_Q


@dataclass(frozen=True)
class GroupOutcomes:
    """What a batch's groups teach; four disjoint (Q,) bool masks that cover every question.

    A uniform group counts as all right when its reward is above 0, else as all wrong. ``unscored``: no completion of
    the group has a reward.
    """

    all_wrong_Q: Tensor
    all_right_Q: Tensor
    mixed_Q: Tensor
    unscored_Q: Tensor

    def shares(self) -> dict[str, float]:
        """Share of the questions in each state; the four add up to 1."""
        return {name.removesuffix("_Q"): mask_Q.float().mean().item() for name, mask_Q in vars(self).items()}


def group_outcomes(rewards_QK: Tensor) -> GroupOutcomes:
    """Classify each group of rewards (Q, K) as all wrong, all right, mixed, or unscored."""
    uniform_Q = uniform_groups(rewards_QK)
    unscored_Q = torch.isnan(rewards_QK).all(dim=1)
    right_Q = uniform_Q & (rewards_QK.nan_to_num().amax(dim=1) > 0)
    return GroupOutcomes(
        all_wrong_Q=uniform_Q & ~right_Q & ~unscored_Q,
        all_right_Q=right_Q,
        mixed_Q=~uniform_Q,
        unscored_Q=unscored_Q,
    )


def variance_share_between_phrasings(rewards_QPG: Tensor) -> float:
    """Share of the reward variance within a question that lies between its phrasings, bias-corrected.

    One-way random effects, pooled over questions (MSB, MSW: mean squares between and within phrasings):

        s2_between = (MSB - MSW) / G,   share = s2_between / (s2_between + MSW)

    Without the correction, chance alone would give 1/G. The estimate is not clipped: it may be below 0 where the
    phrasings do not differ.

    Args:
        rewards_QPG: (Q, P, G) with P >= 2 and G >= 2; questions with a NaN reward are left out.

    Returns:
        The share; NaN where it is not defined (no complete question, fewer than two phrasings or completions, or
        rewards that do not vary at all).
    """
    rewards_QPG = rewards_QPG[~torch.isnan(rewards_QPG).flatten(1).any(dim=1)].float()
    num_questions, num_phrasings, per_phrasing = rewards_QPG.shape
    if num_questions == 0 or num_phrasings < 2 or per_phrasing < 2:
        return float("nan")
    mean_square_between = per_phrasing * rewards_QPG.mean(dim=2).var(dim=1).mean().item()
    mean_square_within = rewards_QPG.var(dim=2).mean().item()
    between = (mean_square_between - mean_square_within) / per_phrasing
    total = between + mean_square_within
    return between / total if total > 0 else float("nan")


def signal_metrics(
    rewards_QK: Tensor, phrasing_QK: Tensor, available_Q: Tensor, num_phrasings: int
) -> dict[str, float]:
    """The training signal of a batch of whole groups, by the names that both back ends log.

    Args:
        rewards_QK: (Q, K) rewards of whole groups, NaN where there is none.
        phrasing_QK: (Q, K) phrasing index of each completion.
        available_Q: (Q,) phrasings each question has, the original counted, at most P.
        num_phrasings: P.
    """
    per_phrasing = rewards_QK.shape[1] // num_phrasings
    # The first block of G is always q_0's; a short question has more of its completions in later blocks.
    original_QG = rewards_QK[:, :per_phrasing]
    metrics = {f"questions/original/{name}": share for name, share in group_outcomes(original_QG).shares().items()}
    metrics |= {f"questions/joint/{name}": share for name, share in group_outcomes(rewards_QK).shares().items()}
    if num_phrasings == 1:
        return metrics
    full_Q = available_Q == num_phrasings
    metrics["questions/short_of_rephrasings"] = 1 - full_Q.float().mean().item()
    for phrasing in range(num_phrasings):
        metrics[f"reward/phrasing_{phrasing}"] = rewards_QK[phrasing_QK == phrasing].nanmean().item()
    metrics["reward/variance_between_phrasings"] = variance_share_between_phrasings(
        rewards_QK[full_Q].reshape(-1, num_phrasings, per_phrasing)
    )
    return metrics
