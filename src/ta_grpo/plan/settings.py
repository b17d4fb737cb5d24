"""What a plan is asked about. No torch here, so that the command line can describe the settings at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import UserError
from ..settings import setting

LAYOUTS = ("trl-transformers", "trl-colocate", "trl-server", "verl")
SHARDINGS = ("ddp", "zero2", "zero3", "fsdp2")
DTYPES = {"float32": 4, "bfloat16": 2}


@dataclass
class PlanSettings:
    """Settings of the verb ``plan``; those that ``train`` has too mean the same.

    Raises:
        UserError: a value that cannot be.
    """

    model: str = setting("", "Model id, directory, GGUF file, or 'tiny': its sizes are read from its config.")
    model_type: str = setting("llama", "Without a model: architecture in the words of transformers, such as qwen3.")
    hidden_size: int | None = setting(None, "Without a model: width.")
    intermediate_size: int | None = setting(None, "Without a model: inner width of the feed-forward blocks.")
    num_hidden_layers: int | None = setting(None, "Without a model: layers.")
    num_attention_heads: int | None = setting(None, "Without a model: attention heads.")
    num_key_value_heads: int | None = setting(None, "Without a model: heads of keys and values.")
    head_dim: int | None = setting(None, "Without a model: width of a head. Default: hidden_size / heads.")
    vocab_size: int | None = setting(None, "Without a model: size of the vocabulary.")
    tie_word_embeddings: bool = setting(False, "Without a model: the output embedding is the input embedding.")
    questions: str = setting("", "How many, or a question file or a named set, such as math.")
    num_rephrasings: int = setting(3, "N, rephrasings of each question sampled beside the original.")
    num_generations: int = setting(32, "K = (N + 1) * G, completions of a question that are normalised together.")
    questions_per_step: int = setting(8, "Questions of one generation batch.")
    num_iterations: int = setting(1, "Passes over the same completions.")
    num_train_epochs: float = setting(1.0, "Passes over the questions.")
    max_steps: int | None = setting(
        None, "Optimiser steps in all, num_iterations for each generation batch; instead of num_train_epochs."
    )
    max_prompt_length: int = setting(512, "Longest prompt, in tokens.")
    max_completion_length: int = setting(256, "Longest completion, in tokens.")
    mean_prompt_length: float | None = setting(None, "Mean prompt, in tokens. Default: the longest, an upper bound.")
    mean_completion_length: float | None = setting(None, "Mean completion, in tokens. Default: the longest, likewise.")
    per_device_train_batch_size: int = setting(8, "Completions of one forward and backward pass.")
    gradient_checkpointing: bool = setting(True, "Activations are computed again in the backward pass.")
    dtype: str = setting("float32", "Type that TRL loads the weights in: float32 (its default) or bfloat16.")
    beta: float = setting(0.0, "Weight of the KL term; above 0 a reference model is scored.")
    use_peft: bool = setting(False, "Train LoRA adapters instead of all weights.")
    lora_r: int = setting(16, "Rank of the adapters.")
    layouts: list[str] = setting([], f"Of {', '.join(LAYOUTS)}. Default: all of them.")
    sharding: str = setting("ddp", "How TRL's processes share the training state: ddp, zero2, zero3 or fsdp2.")
    gpus: int = setting(1, "GPUs in all, over all nodes.")
    gpu_memory: float = setting(80.0, "Memory of a GPU, in GiB.")
    sampling_gpus: int | None = setting(None, "GPUs of trl-server that vLLM has to itself. Default: half.")
    tensor_parallel_size: int = setting(1, "GPUs over which vLLM spreads one copy of the weights.")
    vllm_gpu_memory_utilization: float | None = setting(
        None, "Share of a GPU that vLLM may use. Default: 0.3 in trl-colocate, 0.9 in trl-server, 0.5 in verl."
    )
    vllm_enable_sleep_mode: bool = setting(False, "trl-colocate: vLLM gives its memory back during updates.")
    reserve: float = setting(2.0, "GiB of each GPU set aside for the CUDA context, communication and fragmentation.")
    sampling_throughput: float | None = setting(None, "Completion tokens a second that one GPU samples, measured.")
    update_throughput: float | None = setting(
        None, "Tokens (prompt and completion) a second that one GPU trains on, measured."
    )
    scoring_throughput: float | None = setting(
        None, "Tokens a second that one GPU scores. Default: from update_throughput and the work of each."
    )
    gpu_hour_price: float | None = setting(None, "Price of one GPU for one hour, in any currency.")

    def __post_init__(self) -> None:
        for name, choices, values in (
            ("layouts", LAYOUTS, self.layouts),
            ("sharding", SHARDINGS, [self.sharding]),
            ("dtype", tuple(DTYPES), [self.dtype]),
        ):
            for value in values:
                if value not in choices:
                    raise UserError(f"{name}={value!r} is not a choice; use one of {', '.join(choices)}")
        if not self.questions:
            raise UserError("--questions is missing: give a number, a question file or a named set")
        phrasings = self.num_rephrasings + 1
        if self.num_rephrasings < 0 or self.num_generations < 2 or self.num_generations % max(phrasings, 1):
            raise UserError(
                f"num_generations={self.num_generations} must be a multiple of num_rephrasings + 1 = {phrasings}, "
                "and at least 2"
            )
        for setting_ in fields(self):
            value = getattr(self, setting_.name)
            if setting_.name in ("beta", "reserve", "num_rephrasings"):
                if value < 0:
                    raise UserError(f"{setting_.name}={value} must be 0 or more")
            elif isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise UserError(f"{setting_.name}={value} must be more than 0")
        share = self.vllm_gpu_memory_utilization
        if share is not None and share > 1:
            raise UserError(f"vllm_gpu_memory_utilization={share} is a share of a GPU's memory: at most 1")
        for mean, longest in (
            ("mean_prompt_length", "max_prompt_length"),
            ("mean_completion_length", "max_completion_length"),
        ):
            if (getattr(self, mean) or 0) > getattr(self, longest):
                raise UserError(f"{mean}={getattr(self, mean)} is above {longest}={getattr(self, longest)}")
        if self.sampling_gpus is not None and self.sampling_gpus >= self.gpus:
            raise UserError(f"sampling_gpus={self.sampling_gpus} leaves none of {self.gpus} GPUs for training")

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean prompt and completion, in tokens; the longest where no mean is stated."""
        prompt = self.mean_prompt_length or self.max_prompt_length
        return prompt, self.mean_completion_length or self.max_completion_length
