"""One update with a gradient that is not finite would turn every weight to NaN: it is left out."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class SkipNonFiniteSteps(TrainerCallback):
    """Leave out, and count, updates whose gradient is not finite; one such update would turn every weight to NaN.

    TRL's KL term exp(d) - d - 1 is not clamped, and completions sampled off-prompt make a large d likely.
    """

    def __init__(self) -> None:
        self.count = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not gradients:
            return
        finite = torch.stack([gradient.isfinite().all().to(gradients[0].device) for gradient in gradients])
        if not finite.all():
            self.count += 1
            logger.warning("step %d: the gradient is not finite; this update is skipped", state.global_step + 1)
            for parameter in model.parameters():
                parameter.grad = None
