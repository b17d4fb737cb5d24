"""A GRPO trainer that tells what its groups and passes were like, on-prompt and off-prompt apart.

The names are in ``metrics.py``. ``_compute_loss`` and ``_get_per_token_logps_and_entropies`` are private in TRL 1.16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..group import signal_metrics
from .compact import CompactGRPOTrainer
from .finite import SkipNonFiniteSteps
from .metrics import kept_sums, on_and_off_prompt_sums, pass_figures


class MeasuredGRPOTrainer(CompactGRPOTrainer):
    """``GRPOTrainer`` with the metrics of expanded groups."""

    _metrics: Any
    num_generations: Any
    num_phrasings: int
    _skip_non_finite: SkipNonFiniteSteps

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loss_forward: tuple[Tensor, Tensor | None] = (torch.empty(0), None)
        super().__init__(*args, **kwargs)
        self.num_phrasings = self.args.num_phrasings
        self._skip_non_finite = SkipNonFiniteSteps()
        self.add_callback(self._skip_non_finite)

    def _log_signal(self, rewards_B: Tensor, phrasings_B2: Tensor) -> None:
        metrics = signal_metrics(
            rewards_B.reshape(-1, self.num_generations),
            phrasings_B2[:, 0].reshape(-1, self.num_generations),
            phrasings_B2[:: self.num_generations, 1],
            self.num_phrasings,
        )
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def _log_kept(self, output: dict[str, Any]) -> None:
        sums_P2 = kept_sums(
            output["importance_sampling_ratio"], output["completion_mask"], output["phrasing_index"], self.num_phrasings
        )
        for phrasing, (kept, total) in enumerate(self.accelerator.reduce(sums_P2, reduction="sum").tolist()):
            if total > 0:
                self._metrics["train"][f"sampling/kept/phrasing_{phrasing}"].append(kept / total)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logps_BT, entropies_BT, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._loss_forward = (logps_BT.detach(), None if entropies_BT is None else entropies_BT.detach())
        return logps_BT, entropies_BT, aux_loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.model.training and self.num_phrasings > 1:
            self._log_on_and_off_prompt(inputs)
        self._loss_forward = (torch.empty(0), None)
        return loss

    def _log_on_and_off_prompt(self, inputs: dict[str, Any]) -> None:
        logps_BT, entropies_BT = self._loss_forward
        figures = pass_figures(
            logps_BT,
            entropies_BT,
            inputs,
            loss_type=self.loss_type,
            level=self.importance_sampling_level,
            epsilon=(self.epsilon_low, self.epsilon_high),
        )
        off_prompt_B = inputs["phrasing_index"] > 0
        sums = [on_and_off_prompt_sums(x_BT, inputs["completion_mask"], off_prompt_B) for x_BT in figures.values()]
        sums = self.accelerator.reduce(torch.stack(sums), reduction="sum")
        for name, (on, off) in zip(figures, sums.tolist(), strict=True):
            for side, (total, count) in (("on", on), ("off", off)):
                if count > 0:
                    self._metrics["train"][f"{name}/{side}_prompt"].append(total / count)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.model.training and self._skip_non_finite.count:
            self._metrics["train"]["skipped_steps"] = [float(self._skip_non_finite.count)]
        super().log(logs, *args, **kwargs)
