"""What is refused before training starts, in words that name the fix."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from datasets import Dataset

from ..errors import UserError
from .config import TAGRPOConfig

logger = logging.getLogger(__name__)

_MEDIA_COLUMNS = ("image", "images")


def check_question(row: dict[str, Any], where: str) -> int:
    """Check that a row's rephrasings have the type of its prompt; returns how many there are.

    Raises:
        UserError: naming ``where``.
    """
    prompt, rephrasings = row.get("prompt"), row.get("rephrasings")
    if not isinstance(prompt, str | list) or not prompt:
        raise UserError(f"{where}: 'prompt' must be text or a list of messages, and not empty; got {prompt!r:.80}")
    if rephrasings is None:
        return 0
    if not isinstance(rephrasings, list):
        raise UserError(f"{where}: 'rephrasings' must be a list of prompts; got {type(rephrasings).__name__}")
    expected = "text" if isinstance(prompt, str) else "messages"
    for n, rephrasing in enumerate(rephrasings, 1):
        if type(rephrasing) is not type(prompt) or not rephrasing:
            raise UserError(
                f"{where}: rephrasing {n} is {rephrasing!r:.80}; 'prompt' is {expected}, so each rephrasing must be too"
            )
    return len(rephrasings)


def check_train_dataset(dataset: Dataset, args: TAGRPOConfig) -> None:
    """Refuse a dataset that cannot fill a generation batch or has nothing to sample from; tell what is short.

    Raises:
        UserError: with the fix.
    """
    if "prompt" not in dataset.column_names:
        raise UserError(f"the training set has no column 'prompt' (it has {', '.join(dataset.column_names)})")
    questions_per_batch = args.questions_per_generation
    if len(dataset) < questions_per_batch:
        raise UserError(
            f"the training set has {len(dataset)} questions, and a generation batch takes {questions_per_batch} "
            f"({args.generation_batch_size} completions / num_generations={args.num_generations}): no step could run. "
            "Add questions, or lower per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation"
        )
    if dropped := len(dataset) % questions_per_batch:
        logger.warning(
            "%d of %d questions are left out of each epoch (a generation batch takes %d); which ones changes by epoch",
            dropped,
            len(dataset),
            questions_per_batch,
        )
    if args.num_rephrasings == 0:
        return
    if media := [column for column in _MEDIA_COLUMNS if column in dataset.column_names]:
        raise UserError(f"column {media[0]!r}: images are not supported with rephrasings; set num_rephrasings=0")
    if "rephrasings" not in dataset.column_names:
        raise UserError(
            f"num_rephrasings={args.num_rephrasings}, but the training set has no column 'rephrasings'; add "
            "rephrasings to the questions, or set num_rephrasings=0 for stock GRPO"
        )
    counts = [
        check_question(dict(row), where=f"training set, row {i}")
        for i, row in enumerate(dataset.select_columns(["prompt", "rephrasings"]))
    ]
    if not any(counts):
        raise UserError(
            f"num_rephrasings={args.num_rephrasings}, but no question of the training set has a rephrasing; add "
            "rephrasings to the questions, or set num_rephrasings=0 for stock GRPO"
        )
    if short := sum(count < args.num_rephrasings for count in counts):
        logger.warning(
            "%d of %d questions have fewer than num_rephrasings=%d rephrasings (fewest: %d); their completions are "
            "dealt over the phrasings they have",
            short,
            len(counts),
            args.num_rephrasings,
            min(counts),
        )


def check_tokenised_prompt(prompt: Any, tokenizer: Any, tokenize_prompts: Callable[[list[Any]], Any]) -> None:
    """Tokenise one prompt as training will, and refuse what would go wrong silently.

    Raises:
        UserError: messages for a model without a chat template; text that already carries the BOS token that the
            tokenizer adds.
    """
    if not isinstance(prompt, str) and not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "the prompts are messages, and the model's tokenizer has no chat template; use an instruct model, set "
            "tokenizer.chat_template, or pass prompts as text"
        )
    ids = tokenize_prompts([prompt])[0][0]
    bos = tokenizer.bos_token_id
    if bos is not None and list(ids[:2]) == [bos, bos]:
        raise UserError(
            f"prompts start with two BOS tokens ({tokenizer.bos_token}): the text carries one and the tokenizer adds "
            "another; pass messages, or text without the chat template applied"
        )
