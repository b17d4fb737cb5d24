"""Whether the memory of an update grows with the group: it must not, at a fixed micro-batch.

TAGRPOTrainer (N = 3) on the embedded policy, one question a step, groups of 8 to 256 completions, micro-batches of
``--micro-batch`` rows. On a CPU: the bytes that autograd keeps for the backward pass, each storage once, in the largest
pass of a step. On a GPU: the most memory that a forward and backward pass allocates.
Completions all have the longest length, so that only the group differs.

    python benchmarks/update_memory.py [--micro-batch 8] [--steps 2]
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from datasets import Dataset
from step_profile import training_rows
from transformers import PrinterCallback

from ta_grpo.tiny import load_policy
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer

LENGTH = 48


def never_alike(completions: list[Any], **columns: Any) -> list[float]:
    return [float(i % 2) for i in range(len(completions))]


def measured(group: int, options: argparse.Namespace) -> int:
    """Bytes of the largest pass, or of a GPU's peak, over the steps of a run."""
    model, tokenizer = load_policy()
    with tempfile.TemporaryDirectory() as folder:
        args = TAGRPOConfig(
            output_dir=folder,
            num_generations=group,
            per_device_train_batch_size=options.micro_batch,
            gradient_accumulation_steps=group // options.micro_batch,
            max_completion_length=LENGTH,
            generation_kwargs={"min_new_tokens": LENGTH},
            max_steps=options.steps,
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to="none",
        )
        rows = training_rows(tokenizer)[: options.steps]
        trainer = TAGRPOTrainer(model, never_alike, args, Dataset.from_list(rows), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        peak = gpu_peak(trainer) if torch.cuda.is_available() else kept_bytes(trainer)
        trainer.train()
    return max(peak)


def kept_bytes(trainer: Any) -> list[int]:
    """Filled, pass by pass, with the bytes kept for the backward pass, without the weights."""
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


def gpu_peak(trainer: Any) -> list[int]:
    """Filled, pass by pass, with the most memory that its forward and backward took."""
    step, passes = trainer.training_step, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = step(*args, **kwargs)
        if trainer._step % trainer.args.gradient_accumulation_steps != 1:  # the first pass of a step also generates
            passes.append(torch.cuda.max_memory_allocated() - before)
        return result

    trainer.training_step = counted
    return passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    print("| completions of a group | MB of an update | over the smallest |")
    print("|---|---|---|")
    smallest = None
    for group in (8, 16, 32, 64, 128, 256):
        size = measured(group, options)
        smallest = smallest or size
        print(f"| {group} | {size / 2**20:.1f} | {size / smallest:.3f} |", flush=True)


if __name__ == "__main__":
    main()
