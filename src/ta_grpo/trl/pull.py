"""``pull_to_original``: what succeeded under a rephrasing is trained once more under the original question.

Our extension, for ``ratio_anchor="sampled"``, where the original question otherwise learns from its own completions
alone. To the own-prompt surrogate it adds, over the off-prompt completions i with A_i > 0,

    lambda * sum_i sum_t min(rho_it A_i, clip(rho_it) A_i) / sum_j |o_j|,   rho_it = pi(o_it | q_0) / pi_old(o_it | q_0)

where the denominator stays that of the expanded group. Its nearest relative is NudgeRL (arXiv 2605.15726).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .rows import join_rows, take_rows


def pulled_rows(output: Mapping[str, Any]) -> Tensor:
    """Numbers of the rows that are pulled: sampled under a rephrasing, with a positive advantage."""
    return ((output["phrasing_index"] > 0) & (output["advantages"] > 0)).nonzero().flatten()


def append_pulled_rows(
    output: Mapping[str, Any],
    under_original: Mapping[str, Tensor],
    weight: float,
    pad_token_id: int,
    multiple: int,
    at_least: int = 0,
) -> dict[str, Any]:
    """Append the off-prompt rows with a positive advantage, under q_0 and with their advantage times ``weight``.

    Args:
        output: B scored rows as TRL's loss takes them, with ``phrasing_index``.
        under_original: for the same B rows ``prompt_ids`` and ``prompt_mask`` (B, S0) of q_0, padded on the left, and
            ``old_per_token_logps`` (B, T) under q_0 where ``output`` has them.
        weight: lambda.
        pad_token_id: pads prompts.
        multiple: TRL deals the rows over this many passes and leaves a remainder out; rows without a single trained
            token fill up to a multiple of it.
        at_least: rows to append if fewer are pulled, likewise filled: what the process that pulls the most appends,
            since TRL gathers figures of passes, which must be of one size in all processes.

    Returns:
        the rows with those appended.
    """
    pulled = pulled_rows(output)
    appending = max(len(pulled), at_least)
    appending += -(len(output["advantages"]) + appending) % multiple
    filling = appending - len(pulled)
    source = torch.cat([pulled, pulled.new_zeros(filling)])
    appended = take_rows(output, source) | take_rows(under_original, source)
    appended["advantages"] = appended["advantages"] * weight
    appended["advantages"][len(pulled) :] = 0
    appended["completion_mask"][len(pulled) :] = 0
    return join_rows([output, appended], pad_token_id)
