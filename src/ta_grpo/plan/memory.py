"""Memory of one GPU, in bytes: formulas, each with its source. They are estimates; ``IGNORED`` says what is left out.

P parameters, A numbers in adapters, T trained numbers (P, or A with LoRA), n processes that share.
"""

from __future__ import annotations

from .model_size import ModelSize
from .settings import DTYPES, PlanSettings

GIB = 1024**3
HALF, FULL = 2, 4  # bytes of bfloat16 and float32
# The tile of logits that TRL 1.16 has at a time (trl/kernels/chunked_logprob.py, trl/trainer/utils.py).
_TILE_TOKENS, _TILE_VOCABULARY = 4096, 32768

IGNORED = (
    "activations of vLLM and its CUDA graphs; short-lived buffers of the backward pass and of communication (the "
    "reserve stands for them)",
    "padding of short rows to the longest of a pass, in time; time to load, save, synchronise weights and verify "
    "answers; processes that wait for the slowest",
    "attention over earlier tokens, in floating-point operations",
    "main memory of the nodes, disks and networks",
    "quantised weights, CPU offloading, tensor and sequence parallelism in training, sliding-window and latent "
    "attention, experts that are not linear layers in adapters",
)


def training_state(size: ModelSize, settings: PlanSettings, sharding: str, processes: int) -> dict[str, float]:
    """Bytes of weights, gradients and AdamW's two moments (with fp32 master weights under DeepSpeed) on one GPU.

    Bytes a trained number, w = 4 or 2 by ``dtype``; a frozen one has only its weight:

    | sharding | weights | gradients | optimiser | source |
    |---|---|---|---|---|
    | ddp | w (adapters 4) | as weights | twice the weights | torch.optim.AdamW keeps its moments in the weights' type |
    | zero2 | 2 | 2 / n | 12 / n | ZeRO (arXiv 1910.02054), section 3.1, with bf16 |
    | zero3 | 2 / n | 2 / n | 12 / n | likewise |
    | fsdp2 | 4 / n (frozen w / n) | 4 / n | 8 / n | accelerate makes trained weights fp32 before it shards them |
    """
    adapters = size.adapter_parameters * settings.lora_r if settings.use_peft else 0
    trained = adapters or size.parameters
    frozen = size.parameters if settings.use_peft else 0
    loaded = DTYPES[settings.dtype]
    if sharding == "ddp":
        kind = FULL if settings.use_peft else loaded
        state = {"weights": frozen * loaded + trained * kind, "gradients": trained * kind}
        return state | {"optimiser": 2.0 * trained * kind}
    if sharding == "fsdp2":
        return {
            "weights": (frozen * loaded + trained * FULL) / processes,
            "gradients": trained * FULL / processes,
            "optimiser": 2 * trained * FULL / processes,
        }
    return {
        "weights": HALF * (frozen + trained) / (processes if sharding == "zero3" else 1),
        "gradients": HALF * trained / processes,
        "optimiser": 3 * FULL * trained / processes,
    }


def working_weights(size: ModelSize, settings: PlanSettings, sharding: str) -> float:
    """Bytes of bf16 copies of weights that live during a pass only.

    ddp with fp32 weights: torch's autocast keeps one of each trained weight until its context ends. Sharded weights
    (zero3, fsdp2): the unit that is computed and the one fetched ahead, each gathered whole.
    """
    if sharding in ("zero3", "fsdp2"):
        return 2.0 * size.largest_unit * HALF
    autocast = sharding == "ddp" and settings.dtype == "float32" and not settings.use_peft
    return float(size.parameters * HALF) if autocast else 0.0


def reference_model(size: ModelSize, settings: PlanSettings, sharding: str, processes: int) -> float:
    """Bytes of the reference model's weights: none with beta = 0, or with LoRA (the adapters are switched off)."""
    if settings.beta == 0 or settings.use_peft:
        return 0.0
    kind = DTYPES[settings.dtype] if sharding in ("ddp", "fsdp2") else HALF
    return size.parameters * kind / (processes if sharding in ("zero3", "fsdp2") else 1)


def activations(size: ModelSize, settings: PlanSettings, fp32_residual: bool) -> float:
    """Bytes that the backward pass of ``per_device_train_batch_size`` rows of the longest length needs kept.

    With checkpointing each layer keeps its input, and one layer's inside is computed again at a time:

        tokens * (layers * residual + inside)      else tokens * layers * inside

    inside, bytes a token of a layer with gated feed-forward and flash attention, in bf16 with h hidden, q and k the
    widths of queries and of keys, i intermediate: inputs of the matrices, norms in fp32 (counted from the tensors that
    torch saves for the layers of transformers 5.24; after Korthikanti et al., arXiv 2205.05198, section 4.1):

        2 (4 h + 2 q + 2 k + 4 i) + 8 h  [+ 10 h where the residual stream is fp32]  [+ 6 (q + k) with normed queries]
    """
    tokens = settings.per_device_train_batch_size * (settings.max_prompt_length + settings.max_completion_length)
    h, q, k, i = size.hidden, size.query_width, size.key_value_width, size.intermediate
    inside = HALF * (4 * h + 2 * q + 2 * k + 4 * i) + 8 * h
    inside += 10 * h if fp32_residual else 0
    inside += 6 * (q + k) if size.norms_queries else 0
    if not settings.gradient_checkpointing:
        return float(tokens * size.layers * inside)
    return float(tokens * (size.layers * h * (FULL if fp32_residual else HALF) + inside))


def fused_head(size: ModelSize, settings: PlanSettings) -> float:
    """Bytes of TRL 1.16's output head, which never holds all logits: one tile in bf16, and in fp32 the gradients of the
    hidden states and, unless it is frozen, of the head's weight (trl/kernels/chunked_logprob.py)."""
    tokens = settings.per_device_train_batch_size * settings.max_completion_length
    tile = min(tokens, _TILE_TOKENS) * min(size.vocabulary, _TILE_VOCABULARY) * HALF
    weight = 0 if settings.use_peft else size.vocabulary * size.hidden * FULL
    return float(tile + tokens * size.hidden * FULL + weight)


def whole_logits(size: ModelSize, settings: PlanSettings) -> float:
    """Bytes of all logits of a pass and of their gradient in bf16: verl 0.9 with its default, no fused kernels."""
    tokens = settings.per_device_train_batch_size * (settings.max_prompt_length + settings.max_completion_length)
    return 2.0 * tokens * size.vocabulary * HALF


def cache_bytes_per_token(size: ModelSize, kind: int = HALF) -> int:
    """Bytes of keys and values of one token: 2 * layers * key-value heads * head width * bytes a number.

    (Kwon et al., arXiv 2309.06180, section 3.) Layers that look at a window only would need less.
    """
    return 2 * size.layers * size.key_value_width * kind


def cache_of_a_row(size: ModelSize, settings: PlanSettings, kind: int = HALF) -> float:
    """Bytes of keys and values of the longest prompt and completion."""
    return float(cache_bytes_per_token(size, kind) * (settings.max_prompt_length + settings.max_completion_length))
