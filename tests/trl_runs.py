"""Small training runs to look into: a fake generation engine, and a record of every pass and update."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer
from tiny_models import model as tiny_model
from tiny_models import tokenizer as tiny_tokenizer

EOS = 2
COMMON = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "max_completion_length": 6,
    "max_steps": 1,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1e9,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "temperature": 1.0,
    "use_cpu": True,
}


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def question_rows(count: int = 4, rephrasings: int = 3, conversational: bool = False) -> list[dict[str, Any]]:
    """Question i is 'q<i>'; its n-th rephrasing, of another length, 'q<i> ' and n letters r."""
    form: Callable[[str], Any] = messages if conversational else str
    return [
        {
            "id": f"id{i}",
            "prompt": form(f"q{i}"),
            "rephrasings": [form(f"q{i} " + "r" * n) for n in range(1, rephrasings + 1)],
            "answer": str(i),
        }
        for i in range(count)
    ]


def same_as_question(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"rephrasings": [row["prompt"]] * len(row["rephrasings"])} for row in rows]


def vowel_reward(completions: list[Any], **columns: Any) -> list[float]:
    """A reward that differs between random completions: the share of lower-case letters below 'n'."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [sum("a" <= letter < "n" for letter in text) / 6 for text in texts]


class FakeEngine:
    """Stands in for TRL's generation: records what reaches it, answers with random completions of varied length.

    The completions depend on the call and the row alone, not on the prompts.
    """

    def __init__(self, monkeypatch: Any, seed: int = 0) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.seed = seed
        self.tokenizer = tiny_tokenizer()
        engine = self

        def generate(trainer: Any, prompt_ids: Any, images: Any, fields: Any, num_generations: int, *rest: Any) -> Any:
            return engine(prompt_ids, num_generations)

        monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", generate)

    def __call__(self, prompt_ids: list[list[int]], num_generations: int) -> tuple[list[list[int]], None]:
        rng = random.Random(self.seed + len(self.calls))
        self.calls.append(([self.tokenizer.decode(ids) for ids in prompt_ids], num_generations))
        letters = range(14, 40)
        return [[*(rng.choice(letters) for _ in range(rng.randint(2, 5))), EOS] for _ in prompt_ids], None


@dataclass
class Update:
    """One optimiser step: the weights before it, the rows of its passes, their losses, and its gradient."""

    weights: dict[str, torch.Tensor]
    passes: list[dict[str, torch.Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    logps: list[torch.Tensor] = field(default_factory=list)
    gradient: dict[str, torch.Tensor] = field(default_factory=dict)


class Recorder(TrainerCallback):
    """Records every update of a trainer."""

    def __init__(self, trainer: Any) -> None:
        self.updates: list[Update] = []
        trainer.add_callback(self)
        compute, score = trainer._compute_loss, trainer._get_per_token_logps_and_entropies

        def recording_score(*args: Any, **kwargs: Any) -> Any:
            self.last_logps = score(*args, **kwargs)
            return self.last_logps

        def recording_loss(model: Any, inputs: dict[str, Any]) -> Any:
            if not model.training:
                return compute(model, inputs)
            self.updates[-1].passes.append({k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)})
            loss = compute(model, inputs)
            self.updates[-1].losses.append(loss.item())
            self.updates[-1].logps.append(self.last_logps[0].detach().clone())
            return loss

        trainer._compute_loss = recording_loss
        trainer._get_per_token_logps_and_entropies = recording_score

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.updates.append(Update({k: v.detach().clone() for k, v in model.named_parameters()}))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        named = model.named_parameters()
        self.updates[-1].gradient = {k: v.grad.clone() for k, v in named if v.grad is not None}


def ta_trainer(tmp_path: Any, rows: list[dict[str, Any]], reward: Any = vowel_reward, **settings: Any) -> Any:
    """A TAGRPOTrainer on the random tiny model, with ``.recorder``; its passes are TRL's own unless asked otherwise."""
    return _trainer(TAGRPOTrainer, TAGRPOConfig, tmp_path, rows, reward, {"compact_passes": False} | settings)


def stock_trainer(tmp_path: Any, rows: list[dict[str, Any]], reward: Any = vowel_reward, **settings: Any) -> Any:
    """TRL's own GRPOTrainer on the same model, with ``.recorder``."""
    return _trainer(GRPOTrainer, GRPOConfig, tmp_path, rows, reward, settings)


def _trainer(trainer_class: Any, config_class: Any, tmp_path: Any, rows: Any, reward: Any, settings: Any) -> Any:
    model = settings.pop("model", None) or tiny_model()
    more = {key: settings.pop(key) for key in ("peft_config", "eval_dataset") if key in settings}
    tokenizer = settings.pop("tokenizer", None) or tiny_tokenizer()
    trainer = trainer_class(
        model=model,
        reward_funcs=reward,
        args=config_class(output_dir=str(tmp_path), **(COMMON | settings)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.recorder = Recorder(trainer)
    return trainer


def direct_logps(weights: dict[str, torch.Tensor], prompt_ids: list[int], completion_ids: list[int]) -> torch.Tensor:
    """(T,) log pi(o_t | prompt, o_<t) of one completion, by one forward pass without padding."""
    model = with_weights(weights)
    return row_logps(model, prompt_ids, completion_ids).detach()


def with_weights(weights: dict[str, torch.Tensor]) -> Any:
    model = copy.deepcopy(tiny_model())
    model.load_state_dict(weights, strict=False)
    return model


def row_logps(model: Any, prompt_ids: list[int], completion_ids: list[int]) -> torch.Tensor:
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    logps = model(ids).logits[0, len(prompt_ids) - 1 : -1].log_softmax(-1)
    return logps.gather(1, torch.tensor(completion_ids)[:, None])[:, 0]


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
