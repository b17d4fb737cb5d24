"""Rows of a batch as TRL's loss takes them: joined and picked, whatever they are padded to.

A batch is a mapping from name to a tensor with a row each, or to what holds for the whole batch. Prompts are padded on
the left, everything else on the right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Rows = dict[str, Any]

_PROMPT = ("prompt_ids", "prompt_mask")
_TOKEN_IDS = ("prompt_ids", "completion_ids")


def join_rows(batches: Sequence[Mapping[str, Any]], pad_token_id: int) -> Rows:
    """The rows of all batches, in order, padded to one width; what holds for a whole batch is the first's."""
    joined = dict(batches[0])
    for name, first in batches[0].items():
        if is_per_row(first):
            columns = [batch[name] for batch in batches]
            if first.ndim > 1:
                width = max(column.shape[1] for column in columns)
                columns = [_padded(name, column, width, pad_token_id) for column in columns]
            joined[name] = torch.cat(columns)
    return joined


def take_rows(batch: Mapping[str, Any], which: Tensor | slice) -> Rows:
    """The rows of a batch at these places, or where this mask is set."""
    return {name: value[which] if is_per_row(value) else value for name, value in batch.items()}


def trained_tokens(batch: Mapping[str, Any]) -> Tensor:
    """(B,) tokens of each row that the loss sees."""
    mask_BT = batch["completion_mask"]
    return (mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT).sum(dim=1)


def is_per_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _padded(name: str, column: Tensor, width: int, pad_token_id: int) -> Tensor:
    missing = width - column.shape[1]
    sides = (missing, 0) if name in _PROMPT else (0, missing)
    return torch.nn.functional.pad(column, sides, value=pad_token_id if name in _TOKEN_IDS else 0)
