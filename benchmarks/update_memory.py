"""Whether the memory of an update grows with the group: it must not, at a fixed micro-batch.

TAGRPOTrainer (N = 3) on the embedded policy, one question a step, groups of 8 to 256 completions, micro-batches of
``--micro-batch`` rows: the bytes that autograd keeps for the backward pass, each storage once and the weights left out,
in the largest pass. Completions all have the longest length, so that only the group differs.

    python benchmarks/update_memory.py [--micro-batch 8] [--steps 2]
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from embedded_training import make_trainer

LENGTH = 48


def never_alike(completions: list[Any], **columns: Any) -> list[float]:
    return [float(i % 2) for i in range(len(completions))]


def largest_pass(group: int, micro_batch: int, steps: int) -> int:
    """Bytes."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            "tiny",
            never_alike,
            folder,
            limit=steps,
            num_generations=group,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=group // micro_batch,
            max_completion_length=LENGTH,
            generation_kwargs={"min_new_tokens": LENGTH},
            max_steps=steps,
            shuffle_dataset=False,
        )
        passes = kept_bytes(trainer)
        trainer.train()
    return max(passes)


def kept_bytes(trainer: Any) -> list[int]:
    """Filled, pass by pass, while the trainer trains."""
    loss, passes = trainer._compute_loss, []
    weights = {p.untyped_storage().data_ptr() for p in trainer.model.parameters()}

    def counted(*args: Any, **kwargs: Any) -> Any:
        storages: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = loss(*args, **kwargs)
        passes.append(sum(storages.values()))
        return result

    trainer._compute_loss = counted
    return passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    print("| completions of a group | MB of an update |")
    print("|---|---|")
    for group in (8, 16, 32, 64, 128, 256):
        print(f"| {group} | {largest_pass(group, options.micro_batch, options.steps) / 2**20:.1f} |", flush=True)


if __name__ == "__main__":
    main()
