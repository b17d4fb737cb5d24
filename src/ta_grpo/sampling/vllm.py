"""Completions from vLLM in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .plan import Completion, Prompt, SamplingSettings, same_prompt_runs, seed_of
from .prompts import PromptTokenizer

if TYPE_CHECKING:
    from .arrived import Arrived

_FINGERPRINTED_BYTES = 1 << 20


class VLLMSampler:
    """Samples with ``vllm.LLM.generate``. A batch is handed over at once and vLLM packs it: make it large.

    Prompts: see ``PromptTokenizer``. Generation ends at the model's end-of-sequence tokens; nothing else of its
    generation_config.json is used.

    Args:
        model: a Hub id or model directory.
        tokenizer: the model's.
        settings: how to sample.
        chat_template_kwargs: as in training.
        engine: further arguments of ``vllm.LLM``, such as ``tensor_parallel_size``.

    Raises:
        UserError: vLLM is not installed, or the directory holds adapters without their base model.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        settings: SamplingSettings,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        if (Path(model) / "adapter_config.json").exists() and not (Path(model) / "config.json").exists():
            raise UserError(
                f"{model} holds adapters alone, which vLLM cannot load; use --backend transformers, or merge them into "
                "their base model (peft: merge_and_unload)"
            )
        try:
            import vllm  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UserError(
                f"vLLM cannot be imported ({error}); run: pip install 'ta-grpo[vllm]'; or use --backend transformers"
            ) from None
        self.settings = settings
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self._tokenizer = tokenizer
        self._fingerprint = files_fingerprint(model)
        self._vllm = vllm
        self._llm = vllm.LLM(model=model, **(engine or {}))

    def describe(self) -> dict[str, Any]:
        return {"backend": "vllm", "chat_template_kwargs": self.chat_template_kwargs, "model": self._fingerprint}

    def prepare(self, prompts: Mapping[str, Prompt]) -> list[list[int]]:
        """Token ids; see ``PromptTokenizer`` for what is refused."""
        room = getattr(getattr(self._llm, "model_config", None), "max_model_len", None)
        return PromptTokenizer(self._tokenizer, self.settings.max_new_tokens, room, self.chat_template_kwargs)(prompts)

    def complete(self, prompts: Sequence[Sequence[int]], seed: int, arrived: Arrived | None = None) -> list[Completion]:
        """One completion of each prompt; the samples of one prompt are one request, with a seed of its own."""
        runs = same_prompt_runs(prompts)
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(ids)} for ids, _ in runs],
            # vLLM gives sample i of a request the seed + i, so that the requests' seeds must lie far apart.
            [self._how(count, seed_of([seed, number])) for number, (_, count) in enumerate(runs)],
            use_tqdm=False,
        )
        return [
            Completion(drawn.text, len(drawn.token_ids), finished=drawn.finish_reason != "length")
            for output in outputs
            for drawn in sorted(output.outputs, key=lambda each: each.index)
        ]

    def _how(self, count: int, seed: int) -> Any:
        return self._vllm.SamplingParams(
            n=count,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            max_tokens=self.settings.max_new_tokens,
            seed=seed,
        )


def files_fingerprint(model: str) -> str:
    """A digest of a directory's files of weights (names, sizes, first MiB); a Hub id stands for itself."""
    if not Path(model).is_dir():
        return model
    digest = hashlib.sha256()
    for path in sorted(Path(model).glob("*.safetensors")) + sorted(Path(model).glob("*.bin")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with open(path, "rb") as file:
            digest.update(file.read(_FINGERPRINTED_BYTES))
    return digest.hexdigest()[:16]
