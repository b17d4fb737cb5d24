"""Completions from a transformers model."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .plan import Completion, Prompt, SamplingSettings
from .prompts import PromptTokenizer

if TYPE_CHECKING:
    import torch

    from .arrived import Arrived

logger = logging.getLogger(__name__)


class TransformersSampler:
    """Samples with ``model.generate``.

    Prompts: see ``PromptTokenizer``. Generation ends at the tokenizer's end-of-sequence token or one of those in the
    model's generation_config.json; nothing else of that file is used.

    Raises:
        UserError: a tokenizer and model without an end-of-sequence token.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: SamplingSettings,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self._fitting: int | None = None
        self._eos_ids = _eos_ids(model, tokenizer)
        if not self._eos_ids:
            raise UserError(
                "neither the tokenizer nor the model names an end-of-sequence token; set tokenizer.eos_token"
            )

    def describe(self) -> dict[str, Any]:
        return {"chat_template_kwargs": self.chat_template_kwargs, "model": model_fingerprint(self.model)}

    def prepare(self, prompts: Mapping[str, Prompt]) -> list[list[int]]:
        """Token ids; see ``PromptTokenizer`` for what is refused."""
        room = getattr(self.model.config, "max_position_embeddings", None)
        return PromptTokenizer(self.tokenizer, self.settings.max_new_tokens, room, self.chat_template_kwargs)(prompts)

    def complete(self, prompts: Sequence[Sequence[int]], seed: int, arrived: Arrived | None = None) -> list[Completion]:
        """One completion of each prompt. torch's random state, the model's mode and its settings are left as found.

        What does not fit into the GPU's memory is drawn in halves, then in quarters and so on, and so are the batches
        that follow. The halves have seeds of their own: that batch's completions are as likely as any, but others
        than where it fits.

        Raises:
            UserError: not even one completion fits.
        """
        completions: list[Completion] = []
        while len(completions) < len(prompts):
            start = len(completions)
            part = prompts[start : start + self._fitting] if self._fitting else prompts[start:]
            drawn = self._generate(part, seed + start)
            if drawn is None:
                self._fitting = len(part) // 2
                if not self._fitting:
                    raise UserError("a single completion does not fit into the GPU's memory; lower max_new_tokens")
                logger.warning("%d completions do not fit into memory; going on with %d", len(part), self._fitting)
            else:
                completions += drawn
        return completions

    def _generate(self, prompt_ids: Sequence[Sequence[int]], seed: int) -> list[Completion] | None:
        """One completion of each prompt, or None if they do not fit into memory."""
        import torch
        from transformers import GenerationConfig

        ids_BS, mask_BS = self._pad_left(prompt_ids)
        greedy = self.settings.temperature == 0
        # top_k=0 switches it off: the library's own default is 50.
        how = {} if greedy else {"temperature": self.settings.temperature, "top_p": self.settings.top_p, "top_k": 0}
        config = GenerationConfig(
            max_new_tokens=self.settings.max_new_tokens,
            do_sample=not greedy,
            eos_token_id=sorted(self._eos_ids),
            pad_token_id=self._pad_id,
            **how,
        )
        with _own_random_state(seed, ids_BS.device), _evaluation_mode(self.model), torch.no_grad():
            try:
                output_BT = self.model.generate(input_ids=ids_BS, attention_mask=mask_BS, generation_config=config)
            except torch.OutOfMemoryError:
                output_BT = None  # outside the handler, the error no longer holds the tensors it met
        if output_BT is None:
            torch.cuda.empty_cache()
            return None
        return [self._completion(row) for row in output_BT[:, ids_BS.shape[1] :].tolist()]

    @property
    def _pad_id(self) -> int:
        # Padding is masked and cut off, so that any token serves.
        pad_id = self.tokenizer.pad_token_id
        return min(self._eos_ids) if pad_id is None else pad_id

    def _pad_left(self, prompt_ids: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        width = max(len(ids) for ids in prompt_ids)
        ids_BS = [[self._pad_id] * (width - len(ids)) + list(ids) for ids in prompt_ids]
        mask_BS = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids]
        return torch.tensor(ids_BS, device=self.model.device), torch.tensor(mask_BS, device=self.model.device)

    def _completion(self, ids: list[int]) -> Completion:
        end = next((position for position, token in enumerate(ids) if token in self._eos_ids), None)
        kept = ids if end is None else ids[:end]
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        return Completion(text, tokens=len(kept) + (end is not None), finished=end is not None)


def _eos_ids(model: Any, tokenizer: Any) -> set[int]:
    of_model = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [*of_model] if isinstance(of_model, list | tuple) else [of_model]
    return {token for token in [*ids, tokenizer.eos_token_id] if token is not None}


@contextmanager
def _own_random_state(seed: int, device: torch.device) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    """No dropout, and none of the model's own generation settings, which would fill in what ours leave open."""
    from transformers import GenerationConfig

    # A PEFT model and the model in it may each be asked for theirs.
    models = [model, model.get_base_model()] if hasattr(model, "get_base_model") else [model]
    training, configs = model.training, [each.generation_config for each in models]
    model.eval()
    for each in models:
        each.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for each, config in zip(models, configs, strict=True):
            each.generation_config = config
        model.train(training)


def model_fingerprint(model: Any) -> str:
    """A digest of the names, shapes and first 64 values of all weights: tells checkpoints of one model apart."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
