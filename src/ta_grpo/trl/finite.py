"""One update with a gradient that is not finite would turn every weight to NaN: it is left out."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class SkipNonFiniteSteps(TrainerCallback):
    """Leave out, and count, updates whose gradient is not finite; one such update would turn every weight to NaN.

    TRL's KL term exp(d) - d - 1 is not clamped, and completions sampled off-prompt make a large d likely. Where
    gradients are spread over processes (FSDP2), one process with a bad part makes all of them leave the update out.
    DeepSpeed keeps gradients to itself: under it, nothing is looked at.
    """

    def __init__(self) -> None:
        self.count = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if gradients and not all_finite(gradients):
            self.count += 1
            logger.warning("step %d: the gradient is not finite; this update is skipped", state.global_step + 1)
            for parameter in model.parameters():
                parameter.grad = None


def all_finite(gradients: list[Tensor]) -> bool:
    """Whether every number is finite, also in the parts that other processes hold."""
    parts = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    finite = torch.stack([part.isfinite().all().to(parts[0].device) for part in parts]).all()
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        count = finite.float()
        torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MIN)
        return bool(count.item())
    return bool(finite)
