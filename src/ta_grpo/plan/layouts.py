"""What lies on a GPU, and whether it fits, for each way to place training and sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UserError
from .memory import (
    GIB,
    HALF,
    activations,
    cache_of_a_row,
    fused_head,
    reference_model,
    training_state,
    whole_logits,
    working_weights,
)
from .model_size import ModelSize
from .settings import DTYPES, PlanSettings

_SHARE = {"trl-colocate": 0.3, "trl-server": 0.9, "verl": 0.5}
_REMEDIES = {
    "weights": "--use-peft with --dtype bfloat16, or --sharding zero3 or fsdp2 over more GPUs",
    "gradients": "--sharding zero2, zero3 or fsdp2 over more GPUs, or --use-peft",
    "optimiser": "--sharding zero2, zero3 or fsdp2 over more GPUs, or --use-peft",
    "copies of weights": "--dtype bfloat16, or --sharding zero2",
    "reference model": "--beta 0, or --use-peft",
    "activations": "a smaller --per-device-train-batch-size, or --gradient-checkpointing",
    "output head": "a smaller --per-device-train-batch-size",
    "logits": "a smaller --per-device-train-batch-size",
    "vLLM": "a smaller --vllm-gpu-memory-utilization, --vllm-enable-sleep-mode, or trl-server",
    "keys and values": "vLLM (trl-colocate, trl-server), or fewer --questions-per-step",
    "reserve": "GPUs with more memory",
}


@dataclass(frozen=True)
class Moment:
    """A GPU in one phase: its parts in bytes."""

    phase: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Layout:
    """A way to place training and sampling, and what it needs.

    Attributes:
        training_gpus, sampling_gpus: how many take part in each; they are the same ones but in trl-server.
        moments: the GPUs' contents while sampling and while updating.
        rows_at_once: longest completions that the sampler's memory for keys and values holds at a time, over all GPUs.
        problems: why it does not fit; empty if it does.
    """

    name: str
    sharding: str
    training_gpus: int
    sampling_gpus: int
    moments: list[Moment]
    rows_at_once: int
    problems: list[str]

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    def gpus_in(self, phase: str) -> int:
        """How many GPUs take part in ``sampling`` or ``update``."""
        return self.sampling_gpus if phase == "sampling" else self.training_gpus


def layouts(size: ModelSize, settings: PlanSettings) -> list[Layout]:
    """The layouts that are asked for; without any, all that the GPUs allow.

    Raises:
        UserError: trl-server is asked for and there is one GPU.
    """
    asked = settings.layouts or [name for name in _MAKERS if name != "trl-server" or settings.gpus > 1]
    if "trl-server" in asked and settings.gpus < 2:
        raise UserError("trl-server has vLLM on GPUs of its own: it needs --gpus 2 or more")
    return [_MAKERS[name](size, settings) for name in asked]


def _update(size: ModelSize, settings: PlanSettings, sharding: str, gpus: int) -> dict[str, float]:
    """TRL's parts of an update; the first ones stay while sampling."""
    fp32 = settings.dtype == "float32" and sharding == "ddp"
    return {
        **training_state(size, settings, sharding, gpus),
        "reference model": reference_model(size, settings, sharding, gpus),
        "copies of weights": working_weights(size, settings, sharding),
        "activations": activations(size, settings, fp32_residual=fp32),
        "output head": fused_head(size, settings),
    }


def _between(parts: dict[str, float]) -> dict[str, float]:
    """What of an update's parts lies on the GPU outside of passes; gradients are dropped after each update."""
    return {name: parts[name] for name in ("weights", "optimiser", "reference model")}


def _trl_transformers(size: ModelSize, settings: PlanSettings) -> Layout:
    n, sharding = settings.gpus, settings.sharding
    update = _update(size, settings, sharding, n)
    # TRL generates for the rows of a whole generation batch at once.
    rows = math.ceil(settings.questions_per_step * settings.num_generations / n)
    kind = DTYPES[settings.dtype] if sharding == "ddp" else HALF
    sampling = _between(update) | {
        "copies of weights": working_weights(size, settings, sharding) if sharding in ("zero3", "fsdp2") else 0.0,
        "keys and values": rows * cache_of_a_row(size, settings, kind),
    }
    return _layout("trl-transformers", settings, (n, n), sampling, update, rows_at_once=rows * n)


def _trl_colocate(size: ModelSize, settings: PlanSettings) -> Layout:
    n = settings.gpus
    update = _update(size, settings, settings.sharding, n)
    engine, rows, problems = _engine(size, settings, "trl-colocate", n)
    sampling = _between(update) | {"vLLM": engine}
    if not settings.vllm_enable_sleep_mode:
        update |= {"vLLM": engine}
    return _layout("trl-colocate", settings, (n, n), sampling, update, rows, problems)


def _trl_server(size: ModelSize, settings: PlanSettings) -> Layout:
    sampling_gpus = settings.sampling_gpus or settings.gpus // 2
    training_gpus = settings.gpus - sampling_gpus
    update = _update(size, settings, settings.sharding, training_gpus)
    engine, rows, problems = _engine(size, settings, "trl-server", sampling_gpus)
    counts = (training_gpus, sampling_gpus)
    return _layout("trl-server", settings, counts, {"vLLM": engine}, update, rows, problems)


def _verl(size: ModelSize, settings: PlanSettings) -> Layout:
    """verl 0.9.1's defaults: FSDP with fp32 weights, a bf16 reference, vLLM asleep during updates, tensor parallel."""
    n = settings.gpus
    update = {
        **training_state(size, settings, "fsdp2", n),
        "reference model": 0.0 if settings.beta == 0 or settings.use_peft else size.parameters * HALF / n,
        "copies of weights": working_weights(size, settings, "fsdp2"),
        "activations": activations(size, settings, fp32_residual=False),
        "logits": whole_logits(size, settings),
    }
    engine, rows, problems = _engine(size, settings, "verl", n)
    return _layout("verl", settings, (n, n), _between(update) | {"vLLM": engine}, update, rows, problems)


def _engine(size: ModelSize, settings: PlanSettings, layout: str, gpus: int) -> tuple[float, int, list[str]]:
    """vLLM's bytes on each GPU, the longest rows it holds at a time over all of them, and what speaks against it.

    vLLM takes its share of a GPU, puts bf16 weights into it and uses the rest for keys and values.
    """
    spread = settings.tensor_parallel_size
    if gpus % spread:
        return 0.0, 0, [f"tensor_parallel_size={spread} does not divide {gpus} sampling GPUs"]
    share = settings.vllm_gpu_memory_utilization or _SHARE[layout]
    memory = share * settings.gpu_memory * GIB
    room = memory - size.parameters * HALF / spread
    rows = math.floor(room / (cache_of_a_row(size, settings) / spread)) * (gpus // spread) if room > 0 else 0
    if rows < 1:
        need = (size.parameters * HALF + cache_of_a_row(size, settings)) / spread / GIB
        return (
            memory,
            0,
            [
                f"vLLM gets {memory / GIB:.1f} GiB a GPU, and its weights and one longest row take {need:.1f} GiB: "
                "raise --vllm-gpu-memory-utilization or --tensor-parallel-size"
            ],
        )
    return memory, rows, []


def _layout(
    name: str,
    settings: PlanSettings,
    gpus: tuple[int, int],
    sampling: dict[str, float],
    update: dict[str, float],
    rows_at_once: int,
    problems: list[str] | None = None,
) -> Layout:
    sharding = "fsdp2" if name == "verl" else settings.sharding
    moments = [
        Moment("sampling", {**sampling, "reserve": settings.reserve * GIB}),
        Moment("update", {**update, "reserve": settings.reserve * GIB}),
    ]
    found = list(problems or [])
    for moment in moments:
        if moment.total > settings.gpu_memory * GIB:
            part = max(moment.parts, key=lambda part: moment.parts[part])
            found.append(
                f"{moment.phase} needs {moment.total / GIB:.1f} GiB of {settings.gpu_memory:g} GiB a GPU, "
                f"{moment.parts[part] / GIB:.1f} GiB of it {part}: try {_REMEDIES[part]}"
            )
    return Layout(name, sharding, *gpus, moments, rows_at_once, found)


_MAKERS = {
    "trl-transformers": _trl_transformers,
    "trl-colocate": _trl_colocate,
    "trl-server": _trl_server,
    "verl": _verl,
}
