"""From prompts to token ids, for the backends that run the model here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .plan import Prompt


class PromptTokenizer:
    """Tokenizes prompts, and refuses those that would go wrong.

    Messages go through the tokenizer's chat template, with ``chat_template_kwargs`` (those the model was trained with)
    and the generation prompt. Text is tokenized as it is.

    Args:
        tokenizer: the model's.
        max_new_tokens: room that a prompt must leave.
        room: longest sequence that the model takes; None: not known.
        chat_template_kwargs: as in training.
    """

    def __init__(
        self, tokenizer: Any, max_new_tokens: int, room: int | None, chat_template_kwargs: Mapping[str, Any]
    ) -> None:
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.room = room
        self.chat_template_kwargs = chat_template_kwargs

    def __call__(self, prompts: Mapping[str, Prompt]) -> list[list[int]]:
        """Token ids of the prompts, which are given by question id; a BOS, where the model has one, stands once.

        Raises:
            UserError: messages without a chat template; text that carries the BOS that the tokenizer adds; a prompt
                that leaves no room for ``max_new_tokens``.
        """
        tokenized = []
        for question_id, prompt in prompts.items():
            ids = self._tokenize(prompt)
            self._check(question_id, ids)
            tokenized.append(ids)
        return tokenized

    def _tokenize(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the prompts are messages, and the model's tokenizer has no chat template; use an instruct model, set "
                "tokenizer.chat_template, or ask with plain text (conversational=False; --no-chat-template)"
            )
        # Tokenized by the template call itself: its text carries the special tokens already.
        encoded = self.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **self.chat_template_kwargs
        )
        return list(encoded["input_ids"])

    def _check(self, question_id: str, ids: list[int]) -> None:
        bos = self.tokenizer.bos_token_id
        if not ids:
            raise UserError(f"question {question_id!r}: its prompt has no tokens")
        if bos is not None and ids[:2] == [bos, bos]:
            raise UserError(
                f"question {question_id!r}: its prompt starts with two BOS tokens ({self.tokenizer.bos_token}): the "
                "text carries one and the tokenizer adds another; take it out of the prompt template"
            )
        needed = len(ids) + self.max_new_tokens
        if self.room is not None and needed > self.room:
            raise UserError(
                f"question {question_id!r}: its prompt has {len(ids)} tokens, with max_new_tokens="
                f"{self.max_new_tokens} that is {needed}, and the model takes {self.room}; lower max_new_tokens"
            )
