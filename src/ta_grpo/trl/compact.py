"""A GRPO trainer whose passes leave out what gives no gradient: rows whose advantage is 0, and padding.

With beta = 0 the loss of a micro-batch is a sum of row losses, each of them proportional to its row's advantage, over
a denominator. A row with advantage 0, or without a trained token, adds nothing to the sum and nothing to its gradient:
it needs no forward and no backward pass. Leaving it out changes the denominator, which ``loss_scale`` undoes:

| loss types | denominator in TRL 1.16 | ``loss_scale`` |
|---|---|---|
| grpo, sapo, luspo, dr_grpo | rows of the micro-batch, B | rows kept / B |
| bnpo | tokens of the micro-batch | tokens kept / tokens |
| dapo, cispo, vespo | tokens of the generation batch, counted before | 1 |

The rows of one accumulation window may also be dealt over its micro-batches anew, by length, so that each is padded to
little more than its rows need: the window's sum is the same, whichever micro-batch a row is in. Not so for ``bnpo``,
whose denominator is a micro-batch's own; its rows stay where they are.

Entropy and the share of clipped tokens are then those of the rows that are kept.

Shapes: B rows of a micro-batch, T completion tokens, S prompt tokens, W micro-batches of a window. ``_prepare_inputs``,
``_buffered_inputs`` and ``_compute_loss`` are private in TRL 1.16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .config import TAGRPOConfig
from .rescoring import RescoringGRPOTrainer
from .rows import Rows, join_rows, take_rows, trained_tokens

logger = logging.getLogger(__name__)

_ROW_NORMALISED_LOSSES = ("grpo", "sapo", "luspo", "dr_grpo")
# (B, T) in TRL's buffer; the last may be (B, 1).
_PER_TOKEN = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)


class CompactGRPOTrainer(RescoringGRPOTrainer):
    """``GRPOTrainer`` that compacts each generation batch before it is trained on, if ``compact_passes`` is set."""

    args: TAGRPOConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    _compacted: list[Rows] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.compact_passes and (reason := why_rows_stay(self.args, self.aux_loss_enabled)):
            logger.info("compact_passes: with %s, rows that give no gradient stay in their pass", reason)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        if not (self.model.training and self.args.compact_passes):
            return inputs
        if self._buffered_inputs is not self._compacted:  # generated just now
            self._compacted = self._buffered_inputs = compact(
                self._buffered_inputs,
                loss_type=self.args.loss_type,
                window=rearranged_window(self.args, self.aux_loss_enabled),
                drop_idle=not why_rows_stay(self.args, self.aux_loss_enabled),
                trim_prompts=_sees_relative_positions(self.model.config),
                most_rows=self._most_over_processes,
            )
        return self._buffered_inputs[self._step % len(self._buffered_inputs)]

    def _most_over_processes(self, counts: Tensor) -> Tensor:
        return self.accelerator.gather(counts[None].to(self.accelerator.device)).amax(dim=0)

    def _compute_loss(self, model: Any, inputs: Rows) -> Tensor:
        return super()._compute_loss(model, inputs) * inputs.get("loss_scale", 1.0)


def why_rows_stay(args: TAGRPOConfig, aux_loss: bool) -> str:
    """The setting under which a row without an advantage counts all the same; empty if there is none."""
    return "beta > 0" if args.beta != 0 else _mean_over_tokens(args, aux_loss)


def rearranged_window(args: TAGRPOConfig, aux_loss: bool) -> int:
    """Over how many micro-batches rows may be dealt anew without changing an update; 1 if they must stay."""
    if args.loss_type == "bnpo" or _mean_over_tokens(args, aux_loss):
        return 1
    rounds: int = args.steps_per_generation or 1
    few, many = sorted((rounds, args.gradient_accumulation_steps))
    return few if many % few == 0 else 1


def _mean_over_tokens(args: TAGRPOConfig, aux_loss: bool) -> str:
    """The setting that adds a mean over all tokens of a micro-batch, or a quantile of them."""
    if args.top_entropy_quantile < 1:
        return "top_entropy_quantile"
    if args.entropy_coef != 0 or args.use_adaptive_entropy:
        return "an entropy bonus"
    return "an auxiliary loss" if aux_loss else ""


def _sees_relative_positions(config: Any) -> bool:
    """Whether a model has rotary positions, so that padding in front of a row does not matter."""
    text = config.get_text_config()
    return any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta"))


def compact(
    micro_batches: Sequence[Rows],
    *,
    loss_type: str,
    window: int,
    drop_idle: bool,
    trim_prompts: bool,
    most_rows: Callable[[Tensor], Tensor],
) -> list[Rows]:
    """The micro-batches of a generation batch without what gives no gradient, each with its ``loss_scale``.

    Their number stays, and each keeps at least one row, so that every process takes part in every pass.

    Args:
        micro_batches: rows as TRL's loss takes them, B each.
        loss_type: TRL's.
        window: W, micro-batches over which rows may be dealt anew by length; 1 keeps rows in their micro-batch.
        drop_idle: leave out rows that give no gradient.
        trim_prompts: leave out columns of prompts that hold padding alone. This moves the positions of what follows.
        most_rows: the greatest of each number over all processes. TRL gathers a figure a row, so all must keep as many.
    """
    if any(name in micro_batches[0] for name in ("pixel_values", "token_type_ids", "mm_token_type_ids")):
        return list(micro_batches)  # laid out by image, not by row
    windows = [join_rows(micro_batches[i : i + window], pad_token_id=0) for i in range(0, len(micro_batches), window)]
    needed = [~idle_rows(rows) if drop_idle else torch.ones_like(idle_rows(rows)) for rows in windows]
    counts = torch.stack([-(-needed_B.sum() // window) for needed_B in needed]).clamp(min=1)
    compacted = []
    for rows, needed_B, count in zip(windows, needed, most_rows(counts).tolist(), strict=True):
        for kept in _dealt(rows, needed_B, count, window):
            scale = _loss_scale(loss_type, kept, count / (len(needed_B) / window), rows)
            compacted.append(_trimmed(kept, trim_prompts) | {"loss_scale": scale})
    return compacted


def idle_rows(rows: Mapping[str, Any]) -> Tensor:
    """(B,) bool: rows that give no gradient, for want of an advantage or of a trained token."""
    return (rows["advantages"] == 0) | (trained_tokens(rows) == 0)


def _dealt(rows: Rows, needed_B: Tensor, count: int, window: int) -> list[Rows]:
    """``count`` rows for each micro-batch of a window: those needed, filled up with idle ones, in order of length."""
    kept = torch.sort((~needed_B).int(), stable=True).indices[: count * window]
    if window > 1:
        lengths_B = rows["prompt_mask"].sum(dim=1) + rows["completion_mask"].sum(dim=1)
        kept = kept[torch.sort(lengths_B[kept], stable=True).indices]
    return [take_rows(rows, chosen) for chosen in kept.split(count)]


def _loss_scale(loss_type: str, kept: Rows, share_of_rows: float, rows: Rows) -> Any:
    """The denominator of the rows kept over that of the micro-batch they stand for."""
    if loss_type in _ROW_NORMALISED_LOSSES:
        return share_of_rows
    if loss_type == "bnpo":
        return trained_tokens(kept).sum().clamp(min=1) / trained_tokens(rows).sum().clamp(min=1)
    return 1.0


def _trimmed(rows: Rows, prompts: bool) -> Rows:
    """Without the columns that hold padding alone."""
    mask_BT, prompt_mask_BS = rows["completion_mask"], rows["prompt_mask"]
    width = mask_BT.shape[1]
    end = _last(mask_BT.any(dim=0)) + 1
    trimmed = rows | {
        name: rows[name][:, :end]
        for name in _PER_TOKEN
        if isinstance(rows.get(name), Tensor) and rows[name].shape[1] == width
    }
    if prompts:
        begin = prompt_mask_BS.shape[1] - 1 - _last(prompt_mask_BS.any(dim=0).flip(0))
        trimmed |= {name: rows[name][:, begin:] for name in ("prompt_ids", "prompt_mask")}
    return trimmed


def _last(columns: Tensor) -> int:
    """The last column that is set; the first, if none is."""
    return int(columns.nonzero().max()) if columns.any() else 0
