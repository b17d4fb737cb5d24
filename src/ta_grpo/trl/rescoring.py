"""A GRPO trainer that can score completions under other prompts than those of their rows.

Shapes: B rows, S prompt tokens, T completion tokens. ``_get_per_token_logps_and_entropies`` is private in TRL 1.16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import pad

from .resume import ResumableGRPOTrainer


class RescoringGRPOTrainer(ResumableGRPOTrainer):
    """``GRPOTrainer`` whose completions can be scored under another prompt. Nothing changes until that is asked."""

    model: Any  # pyright: ignore[reportIncompatibleVariableOverride]
    accelerator: Any  # pyright: ignore[reportIncompatibleVariableOverride]
    _tokenizer: Any
    _old_pass_prompts: list[list[int]] | None = None

    @contextmanager
    def old_pass_under(self, prompts: list[list[int]] | None) -> Iterator[None]:
        """Within: TRL's first scoring pass takes these prompts (token ids, one a row) instead of its rows'; None: not.

        TRL's first pass is that of pi_old, which it compares with the sampler's log-probs where its correction for
        vLLM is on: with the prompts that were sampled, both sides of the comparison are of one prompt.
        """
        self._old_pass_prompts = prompts
        try:
            yield
        finally:
            self._old_pass_prompts = None

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        if self._old_pass_prompts is not None:
            prompts_B2S, self._old_pass_prompts = self.padded_prompts(self._old_pass_prompts), None
            input_ids, attention_mask = (
                torch.cat([prompts_BS, whole[:, -logits_to_keep:]], dim=1)
                for prompts_BS, whole in zip(prompts_B2S, (input_ids, attention_mask), strict=True)
            )
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )

    def logps_under(self, prompt_ids_BS: Tensor, prompt_mask_BS: Tensor, output: Mapping[str, Any]) -> Tensor:
        """(B, T) log pi(o_t | prompt, o_<t) of the rows' completions by the present weights, without a gradient."""
        completion_ids_BT, completion_mask_BT = output["completion_ids"], output["completion_mask"]
        checkpointing: Any = self.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(self.model, checkpointing):
            logps_BT, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([prompt_ids_BS, completion_ids_BT], dim=1),
                torch.cat([prompt_mask_BS, completion_mask_BT], dim=1),
                completion_ids_BT.size(1),
                batch_size=self.args.per_device_train_batch_size,
            )
        return logps_BT

    def padded_prompts(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """(B, S) token ids and mask, padded on the left as TRL pads prompts."""
        ids = [torch.tensor(each) for each in prompts]
        layout: dict[str, Any] = {"padding_side": "left", "pad_to_multiple_of": self.pad_to_multiple_of}
        ids_BS = pad(ids, padding_value=self._tokenizer.pad_token_id, **layout)
        mask_BS = pad([torch.ones_like(each) for each in ids], padding_value=0, **layout)
        return ids_BS.to(self.accelerator.device), mask_BS.to(self.accelerator.device)
