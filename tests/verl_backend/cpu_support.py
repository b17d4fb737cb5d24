"""For tests alone: verl's FSDP trainer on a CPU, with a transformers server where vLLM would be.

verl ships no training on CPUs. Every verl process imports this module (VERL_USE_EXTERNAL_MODULES=cpu_support). It
adds a CPU platform and a rollout engine ``cpu``, and takes away what asks for a GPU. Nothing of ours is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_USE_EXTERNAL_MODULES": "cpu_support",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
BATCHING_SECONDS = 0.1


class _NoDevice:
    """``torch.cpu`` with the calls that only other devices have, doing nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return {
            "mem_get_info": lambda *a: (2**34, 2**34),
            "get_rng_state": torch.get_rng_state,
            "set_rng_state": torch.set_rng_state,
            "get_device_name": lambda *a: "cpu",
        }.get(name, lambda *a, **k: 0)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    device_name = "cpu"  # pyright: ignore
    vendor_name = "cpu"  # pyright: ignore
    device_module = _NoDevice()  # pyright: ignore

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        return "gloo"

    def is_ipc_supported(self) -> bool:
        return False

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def __getattribute__(self, name: str) -> Any:
        if name in (
            "set_device",
            "synchronize",
            "manual_seed",
            "manual_seed_all",
            "set_allocator_settings",
            "empty_cache",
        ):
            return lambda *a, **k: None
        return super().__getattribute__(name)


def _take_away_the_gpu() -> None:
    start = torch.distributed.init_process_group

    def init_process_group(backend: Any = None, **kwargs: Any) -> Any:
        # verl names a backend for the CPU and one for the device, which are the same here.
        return start("gloo", **{k: v for k, v in kwargs.items() if k != "device_id"})

    torch.distributed.init_process_group = init_process_group
    torch.Tensor.pin_memory = lambda self, *a, **k: self


_take_away_the_gpu()

# The rollout engine.

import ray  # noqa: E402
from verl.workers.rollout import base as rollout_base  # noqa: E402
from verl.workers.rollout.base import BaseRollout  # noqa: E402
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput  # noqa: E402


@ray.remote(num_cpus=0)
class CPUServer:
    """Generates with transformers, requests that come together in one batch. Remembers every prompt it was asked."""

    def __init__(self, path: str, seed: int, response_length: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.response_length = response_length
        self.waiting: list[tuple[list[int], dict[str, Any], asyncio.Future]] = []
        self.asked: list[tuple[int | None, list[int]]] = []
        self.step: int | None = None

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict, **_: Any) -> TokenOutput:
        self.asked.append((self.step, list(prompt_ids)))
        answer: asyncio.Future = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), sampling_params, answer))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_later(BATCHING_SECONDS, self._answer)
        tokens = await answer
        return TokenOutput(token_ids=tokens, stop_reason="completed", extra_fields={"global_steps": self.step})

    def _answer(self) -> None:
        batch, self.waiting = self.waiting, []
        params = batch[0][1]
        longest, pad = max(len(prompt) for prompt, _, _ in batch), self.model.config.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt, _, _ in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _, _ in batch])
        sampled = params["temperature"] > 0
        choice = {"temperature": params["temperature"], "top_k": 0, "top_p": params["top_p"]} if sampled else {}
        limit = params.get("max_tokens", self.response_length)
        with torch.inference_mode():
            output = self.model.generate(ids, attention_mask=mask, do_sample=sampled, max_new_tokens=limit, **choice)
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        for (_, _, answer), row in zip(batch, output[:, longest:].tolist(), strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
            answer.set_result(row[:end])

    async def load(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        self.model.load_state_dict(weights, strict=False)
        self.step = step

    async def everything_asked(self) -> list[tuple[int | None, list[int]]]:
        return self.asked

    async def sleep(self) -> None: ...

    async def wake_up(self) -> None: ...


class CPUReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        server = CPUServer.options(name=f"cpu_server_{self.replica_rank}").remote(
            self.model_config.path, self.config.seed, self.config.response_length
        )
        self.servers, self._server_handle, self._server_address = [server], server, f"cpu_{self.replica_rank}"


class CPURollout(BaseRollout):
    """Hands the trainer's weights to the server."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any) -> None:
        state = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        await ray.get_actor("cpu_server_0").load.remote(state, kwargs.get("global_steps"))


RolloutReplicaRegistry.register("cpu", lambda: CPUReplica)
rollout_base._ROLLOUT_REGISTRY["cpu", "async"] = "cpu_support.CPURollout"
OVERRIDES = (
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.name=cpu",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "actor_rollout_ref.model.use_remove_padding=False",
    "++actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    *(
        override
        for role in ("actor", "ref")
        for override in (
            f"actor_rollout_ref.{role}.use_torch_compile=False",
            f"actor_rollout_ref.{role}.fsdp_config.use_torch_compile=False",
            f"++actor_rollout_ref.{role}.fsdp_config.mixed_precision.param_dtype=fp32",
            f"++actor_rollout_ref.{role}.fsdp_config.mixed_precision.reduce_dtype=fp32",
        )
    ),
    "data.dataloader_num_workers=0",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
)


def environment() -> dict[str, str]:
    """What a verl process on a CPU needs in its environment."""
    here = os.path.dirname(os.path.abspath(__file__))
    return ENVIRONMENT | {"PYTHONPATH": here}
