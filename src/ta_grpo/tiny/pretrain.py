r"""Makes the embedded policy: tokenizer, base model, measurement, model card.

    python -m ta_grpo.tiny.pretrain [--output-dir DIR] [--seed 0]

The text is the world's questions with worked solutions, on training numbers only. Three properties of real text are
built in, because reinforcement learning needs them: a family's phrasings come with unequal frequencies, so that the
policy's accuracy depends on the phrasing; large numbers are rarer than small ones, so that some questions are hard;
and some solutions are sloppy (a wrong step, carried on), so that the policy samples wrong answers beside right ones.

Deterministic: the same seed, machine and library versions give the same weights (one thread).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from math import cos, pi, prod, sqrt
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..rundir import write_json_atomic
from .card import aims_met, library_versions, model_card, splits_table
from .world import FAMILIES, IN_USE, SPLITS, Family, Problem, draw_problem, problems, work_out, write_solution

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

# The knobs that set how able the policy is; chosen by the figures of the card alone.
STEPS = 2800
BATCH_SIZE = 32
FREQUENCY_EXPONENT = 2.75  # the r-th most frequent phrasing of a family has the weight r ** -exponent
NUMBER_DRAWS = 4  # the smallest of so many draws is asked: small numbers are frequent, large ones rare
SLOPPY_SHARE = 0.10  # of the solutions have one wrong step

LEARNING_RATE = 2e-3
WARMUP_STEPS = 100
VOCAB_SIZE = 512
MAX_NEW_TOKENS = 40
ROWS_AT_ONCE = 512
TOKENIZER_TEXTS = 3000
PROBLEMS_PER_FAMILY = 25  # each in all its phrasings
CARD = "card.json"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
IGNORED = -100  # the label that takes no part in the loss
SPECIAL_TOKENS = [PAD, BOS, EOS, "<|user|>", "<|assistant|>", "<|system|>"]
# The tokenizer itself adds no BOS, so a prompt that was templated to a string before still has exactly one.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


# The text.


def phrasing_order(family: Family) -> list[int]:
    """The family's phrasings in use, most frequent first; drawn per family, whatever their layout."""
    order = list(range(IN_USE))
    Random(f"frequency of {family.name}").shuffle(order)
    return order


def sloppy_solution(problem: Problem, family: Family, rng: Random) -> str:
    """A solution in which one step went wrong and the rest was carried on.

    A slip changes a result by a little; a misreading takes another number of the question for an operand.
    """
    wrong = rng.randrange(len(family.steps))
    steps = list(family.steps)
    if rng.random() < 0.5:
        sign, left, right = steps[wrong]
        operands = [left, right]
        side = rng.randrange(2)
        operands[side] = rng.choice([i for i in range(len(problem.numbers)) if i != operands[side]])
        steps[wrong] = (sign, operands[0], operands[1])
        return write_solution(tuple(steps), problem.numbers, work_out(tuple(steps), problem.numbers))
    results: list[int] = []
    for index in range(len(steps)):
        result = work_out((steps[index],), (*problem.numbers, *results))[0]
        results.append(result + rng.choice((-10, -2, -1, 1, 2, 10)) if index == wrong else result)
    return write_solution(family.steps, problem.numbers, results)


def training_text(rng: Random) -> tuple[str, str]:
    """One question and a solution, right or sloppy."""
    family = rng.choice(FAMILIES)
    draws = [draw_problem(rng, family, "train") for _ in range(NUMBER_DRAWS)]
    problem = min(draws, key=lambda problem: prod(problem.numbers))
    weights = [rank**-FREQUENCY_EXPONENT for rank in range(1, IN_USE + 1)]
    phrasing = rng.choices(phrasing_order(family), weights)[0]
    sloppy = rng.random() < SLOPPY_SHARE
    return problem.text(phrasing), sloppy_solution(problem, family, rng) if sloppy else problem.solution


# Tokenizer, model, training.


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE, each digit a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of four layers with random weights, from torch's current seed."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    token_ids: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            **token_ids,
        )
    )
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS, **token_ids
    )
    return model


def prompt_ids(tokenizer: PreTrainedTokenizerFast, questions: Sequence[str]) -> list[list[int]]:
    """The chat prompts of the questions, ready for an answer."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    return tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)  # type: ignore[return-value]


def training_batch(tokenizer: PreTrainedTokenizerFast, rng: Random) -> tuple[Tensor, Tensor]:
    """Token ids and labels, both (B, T), padded on the right; only the solution and its end count in the loss."""
    from torch import tensor
    from torch.nn.utils.rnn import pad_sequence

    texts = [training_text(rng) for _ in range(BATCH_SIZE)]
    prompts = prompt_ids(tokenizer, [question for question, _ in texts])
    solutions = tokenizer([solution + EOS for _, solution in texts]).input_ids
    pairs = list(zip(prompts, solutions, strict=True))
    ids = [tensor(prompt + solution) for prompt, solution in pairs]
    labels = [tensor([IGNORED] * len(prompt) + solution) for prompt, solution in pairs]
    ids_BT = pad_sequence(ids, batch_first=True, padding_value=SPECIAL_TOKENS.index(PAD))
    labels_BT = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
    return ids_BT, labels_BT


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * warmup * (0.55 + 0.45 * cos(pi * step / steps))


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> float:
    """Train in place; returns the mean loss (nats a token) of the last tenth of the steps."""
    import torch
    from rich.console import Console
    from rich.progress import track

    rng = Random(f"pretraining {seed}")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    model.train()
    losses = []
    for step in track(range(steps), "pretraining", console=Console(stderr=True)):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        ids_BT, labels_BT = training_batch(tokenizer, rng)
        # Padding is on the right of a causal model: no mask is needed.
        loss = model(input_ids=ids_BT, labels=labels_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return float(np.mean(losses[-max(1, steps // 10) :]))


# Measurement.


def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], samples: int, seed: int
) -> list[list[str]]:
    """``samples`` completions of each question at temperature 1, batched with prompts of like length."""
    import torch
    from rich.console import Console
    from rich.progress import track

    prompts = prompt_ids(tokenizer, questions)
    rows = sorted((len(prompt), index) for index, prompt in enumerate(prompts) for _ in range(samples))
    completions: list[list[str]] = [[] for _ in questions]
    torch.manual_seed(seed)
    for start in track(range(0, len(rows), ROWS_AT_ONCE), "sampling", console=Console(stderr=True)):
        batch = [index for _, index in rows[start : start + ROWS_AT_ONCE]]
        inputs = tokenizer.pad({"input_ids": [prompts[index] for index in batch]}, return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(**inputs)  # type: ignore[operator]
        texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for index, text in zip(batch, texts, strict=True):
            completions[index].append(text)
    return completions


def boxed_answer(completion: str) -> int | None:
    r"""The whole number in the last ``\boxed{...}``, or None."""
    found = re.findall(r"\\boxed\{(-?\d+)\}", completion)
    return int(found[-1]) if found else None


def correct_samples(problems_asked: Sequence[Problem], completions: Sequence[Sequence[str]]) -> np.ndarray:
    """(Q, S) bool: which completions of each problem box its answer."""
    return np.array(
        [
            [boxed_answer(text) == problem.answer for text in texts]
            for problem, texts in zip(problems_asked, completions, strict=True)
        ]
    )


def measure_split(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, split: str, limit: int, samples: int, seed: int
) -> dict[str, Any]:
    """pass@1 and pass@samples of the first ``limit`` questions of a split; shares, with standard errors.

    The questions are the sampled units of a standard error, not the completions.
    """
    asked = list(problems(split))[:limit]
    completions = sample(model, tokenizer, [problem.question for problem in asked], samples, seed)
    correct_QS = correct_samples(asked, completions)
    boxed = [boxed_answer(text) is not None for texts in completions for text in texts]
    solved_Q = correct_QS.any(axis=1)
    return {
        "questions": len(asked),
        "samples": samples,
        "pass@1": float(correct_QS.mean()),
        "pass@1 standard error": float(correct_QS.mean(axis=1).std() / sqrt(len(asked))),
        f"pass@{samples}": float(solved_Q.mean()),
        f"pass@{samples} standard error": float(solved_Q.std() / sqrt(len(asked))),
        "boxed": float(np.mean(boxed)),
    }


def measure_phrasings(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, per_family: int, samples: int, seed: int
) -> dict[str, dict[str, Any]]:
    """pass@1 of each family and phrasing in use, all phrasings on the same test problems."""
    measured = {}
    for family in FAMILIES:
        asked = [problem for problem in problems("test") if problem.family == family.name][:per_family]
        texts = [problem.text(phrasing) for phrasing in range(IN_USE) for problem in asked]
        correct = correct_samples(asked * IN_USE, sample(model, tokenizer, texts, samples, seed))
        pass_1_P = correct.reshape(IN_USE, -1).mean(axis=1)
        measured[family.name] = {
            "problems": len(asked),
            "samples": samples,
            "pass@1 by phrasing": pass_1_P.tolist(),
            "pass@1": float(pass_1_P.mean()),
            "spread": float(pass_1_P.max() - pass_1_P.min()),
            "phrasings, most frequent first": phrasing_order(family),
        }
    return measured


# Command.


def check_output_dir(output_dir: Path) -> None:
    """A new or empty directory, or one that this command wrote before.

    Raises:
        UserError: for anything else, so that no other model is overwritten.
    """
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"--output-dir {output_dir} is a file; name a directory")
    if output_dir.is_dir() and any(output_dir.iterdir()) and not (output_dir / CARD).is_file():
        raise UserError(
            f"--output-dir {output_dir} holds files that this command did not write; name another directory"
        )


def write_policy(
    output_dir: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, card: dict[str, Any]
) -> None:
    """Write model, tokenizer and card; each file is replaced whole, the card last."""
    output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        (Path(staging) / "README.md").write_text(model_card(card), encoding="utf-8")
        for file in sorted(Path(staging).iterdir()):
            os.replace(file, output_dir / file.name)
    write_json_atomic(output_dir / CARD, card)


def make_policy(seed: int, steps: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast, float]:
    """Tokenizer and trained model, and the training's last loss; the same for the same arguments."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = Random(f"tokenizer {seed}")
    tokenizer = make_tokenizer(text for _ in range(TOKENIZER_TEXTS) for text in training_text(rng))
    model = make_model(tokenizer)
    loss = train(model, tokenizer, steps, seed)
    return model, tokenizer, loss


def make_card(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the policy on every split and phrasing."""
    splits = {
        split: measure_split(model, tokenizer, split, args.eval_questions, args.eval_samples, args.seed)
        for split in SPLITS
        if split != "train"
    }
    per_family = min(PROBLEMS_PER_FAMILY, args.eval_questions)
    families = measure_phrasings(model, tokenizer, per_family, args.eval_samples // 2, args.seed)
    spread = float(np.median([family["spread"] for family in families.values()]))
    return {"splits": splits, "families": families, "median spread": spread}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ta_grpo.tiny.pretrain",
        description="Make the embedded policy: pretrain, measure, write its card.",
    )
    parser.add_argument("--output-dir", type=Path, default=Path("tiny-policy"), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps; default: %(default)s")
    parser.add_argument("--eval-questions", type=int, default=300, help="at most, of each split; default: %(default)s")
    parser.add_argument("--eval-samples", type=int, default=32, help="of each question; default: %(default)s")
    args = parser.parse_args(argv)
    for name, least in (("steps", 1), ("eval_questions", 1), ("eval_samples", 2)):
        if getattr(args, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0 done, 2 the request was wrong."""
    from rich.console import Console

    args = parse(argv)
    console = Console(stderr=True)
    try:
        check_output_dir(args.output_dir)
    except UserError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    start = time.process_time()
    model, tokenizer, loss = make_policy(args.seed, args.steps)
    trained = time.process_time()
    card = {
        "command": " ".join(["python -m ta_grpo.tiny.pretrain", *(sys.argv[1:] if argv is None else argv)]),
        "seed": args.seed,
        "steps": args.steps,
        "batch size": BATCH_SIZE,
        "frequency exponent": FREQUENCY_EXPONENT,
        "number draws": NUMBER_DRAWS,
        "sloppy share": SLOPPY_SHARE,
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "loss": loss,
        "hardware": platform.machine(),
        "versions": library_versions(),
        **make_card(model, tokenizer, args),
    }
    card["aims met"] = aims_met(card)
    card["training CPU minutes"] = (trained - start) / 60
    card["measurement CPU minutes"] = (time.process_time() - trained) / 60
    write_policy(args.output_dir, model, tokenizer, card)
    console.print(
        f"{args.output_dir}: {card['training CPU minutes']:.1f} CPU-minutes of training\n{splits_table(card)}",
        markup=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
