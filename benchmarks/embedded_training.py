"""What the measurements of training share: a trainer on the embedded world's questions, and its flags."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback

from ta_grpo.models import load_model, resolve_model
from ta_grpo.tiny import questions
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer


def make_trainer(model_name: str, reward: Any, folder: str, limit: int | None = None, **settings: Any) -> TAGRPOTrainer:
    """A trainer that saves and prints nothing, on the first questions; messages where the model has a chat template."""
    model, tokenizer = load_model(resolve_model(model_name))
    chat = tokenizer.chat_template is not None

    def prompt(text: str) -> Any:
        return [{"role": "user", "content": text}] if chat else text

    rows = [
        {"prompt": prompt(q.question), "rephrasings": [prompt(r) for r in q.rephrasings], "answer": q.answer}
        for q in questions("train")[:limit]
    ]
    quiet = {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "report_to": "none"}
    args = TAGRPOConfig(
        output_dir=folder, bf16=torch.cuda.is_available(), gradient_checkpointing=False, **(quiet | settings)
    )
    trainer = TAGRPOTrainer(model, reward, args, Dataset.from_list(rows), processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    return trainer


def flags(description: str | None, steps: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--questions-per-step", type=int, default=8)
    parser.add_argument("--max-completion-length", type=int, default=48)
    return parser
