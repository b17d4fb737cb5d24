"""The sizes of a model that memory and time depend on, counted on a model without memory (torch's meta device)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..models import resolve_model
from .settings import PlanSettings

# Settings that describe a model without its config: all of these, and head_dim if it is not hidden_size / heads.
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


@dataclass(frozen=True)
class ModelSize:
    """Counts, none of them bytes.

    Attributes:
        parameters: numbers in all weights, tied ones once.
        adapter_parameters: numbers in LoRA adapters of rank 1 on all linear layers but the output embedding: the sum
            of their widths in and out. Rank r has r times as many.
        largest_unit: numbers in the largest layer or embedding: what is gathered at once where weights are sharded.
        query_width, key_value_width: heads times the width of a head.
        norms_queries: whether queries and keys are normalised, each head by itself.
    """

    parameters: int
    adapter_parameters: int
    largest_unit: int
    layers: int
    hidden: int
    intermediate: int
    query_width: int
    key_value_width: int
    vocabulary: int
    norms_queries: bool


def model_size(settings: PlanSettings) -> ModelSize:
    """The sizes of the model that the settings name or describe.

    Raises:
        UserError: the config cannot be read, or says less than is needed; with the flags that replace it.
    """
    return size_of(read_config(settings))


def read_config(settings: PlanSettings) -> Any:
    """The model's configuration as transformers holds it.

    Raises:
        UserError: see ``model_size``.
    """
    from transformers import AutoConfig

    if not settings.model:
        return _described_config(settings)
    instead = " ".join(f"--{name.replace('_', '-')}" for name in _SIZES)
    try:
        path = Path(settings.model).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        return AutoConfig.from_pretrained(resolve_model(settings.model))
    except ImportError as error:
        raise UserError(f"model {settings.model}: {error}") from error
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the config of model {settings.model} cannot be read: {reason} Without network, name a local directory, "
            f"or leave --model out and give its sizes: --model-type {instead}"
        ) from error


def _described_config(settings: PlanSettings) -> Any:
    from transformers import AutoConfig

    sizes: dict[str, Any] = {name: getattr(settings, name) for name in _SIZES}
    if missing := [f"--{name.replace('_', '-')}" for name, size in sizes.items() if size is None]:
        raise UserError(f"--model is missing, or else the sizes of a model: {', '.join(missing)}")
    # Always given: some architectures have a default of their own.
    sizes["head_dim"] = settings.head_dim or _head_width(sizes["hidden_size"], sizes["num_attention_heads"])
    try:
        return AutoConfig.for_model(settings.model_type, **sizes, tie_word_embeddings=settings.tie_word_embeddings)
    except ValueError as error:
        raise UserError(f"model_type={settings.model_type!r} is not an architecture that transformers knows") from error


def _head_width(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise UserError(f"--head-dim is missing: hidden_size={hidden} is not a multiple of num_attention_heads={heads}")
    return hidden // heads


def size_of(config: Any) -> ModelSize:
    """Count the weights of a causal language model by its configuration; no memory is taken and no weights are read.

    Raises:
        UserError: no such model, or one without the usual attention (its keys and values are counted by heads).
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise UserError(
            f"a plan needs a causal language model; {config.model_type} is none for transformers"
        ) from error
    text = config.get_text_config()
    heads, hidden = text.num_attention_heads, text.hidden_size
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
    blocks = next((m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 0), None)
    intermediate = getattr(text, "intermediate_size", None)
    if blocks is None or intermediate is None or getattr(text, "kv_lora_rank", None):
        raise UserError(f"{config.model_type} is built otherwise than this plan's formulas assume: no plan can be made")
    units = [*blocks, model.get_input_embeddings(), *([head] if head is not None else [])]
    return ModelSize(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapter_parameters=sum(module.in_features + module.out_features for module in linear),
        largest_unit=max(sum(parameter.numel() for parameter in unit.parameters()) for unit in units),
        layers=text.num_hidden_layers,
        hidden=hidden,
        intermediate=intermediate,
        query_width=heads * head_dim,
        key_value_width=kv_heads * head_dim,
        vocabulary=text.vocab_size,
        norms_queries=any(name.endswith("q_norm") for name, _ in model.named_modules()),
    )
