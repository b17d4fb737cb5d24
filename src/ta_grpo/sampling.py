"""Completions of questions from a transformers model, appended to a file that an interrupted run can take up again.

All batches are planned before the first is drawn, and each has a seed of its own. What a batch holds therefore does not
depend on where a run was interrupted: a resumed file equals an unbroken one, on the same machine and libraries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .errors import UserError
from .questions import Question, check_prompt_template, question_prompt
from .rundir import append_jsonl, read_jsonl, truncate_jsonl, write_json_atomic

if TYPE_CHECKING:
    import torch

Prompt = str | list[dict[str, str]]


@dataclass(frozen=True)
class SamplingSettings:
    """How completions are drawn.

    ``temperature`` 0 is greedy decoding, which gives one completion a question. There is no top-k and no repetition
    penalty, whatever the model's own generation_config.json says. ``batch_size`` counts completions; with another
    value, the same seed gives other samples.

    Raises:
        UserError: a value that cannot be.
    """

    num_samples: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("num_samples", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.seed < 0:
            raise UserError(f"seed must be 0 or more; got {self.seed}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature must be 0 or more; got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1; got {self.top_p}")
        if self.temperature == 0 and self.num_samples > 1:
            raise UserError(
                f"temperature=0 gives the same completion every time, so num_samples={self.num_samples} would be "
                "copies; set num_samples=1, or a temperature above 0"
            )


@dataclass(frozen=True)
class Completion:
    """``text`` without special tokens; ``tokens`` counts the end-of-sequence token; not ``finished``: it was cut."""

    text: str
    tokens: int
    finished: bool


@dataclass(frozen=True)
class Batch:
    """Rows (question number, sample number) that are drawn together under one seed."""

    rows: tuple[tuple[int, int], ...]
    seed: int


class Sampler(Protocol):
    """What ``sample_to_file`` draws from."""

    settings: SamplingSettings

    def tokenize(self, prompts: Mapping[str, Prompt]) -> list[list[int]]:
        """Token ids of the prompts, which are given by question id."""
        ...

    def complete(self, prompt_ids: Sequence[Sequence[int]], seed: int) -> list[Completion]:
        """One completion of each prompt; the same prompts and seed give the same completions."""
        ...

    def describe(self) -> dict[str, Any]:
        """What else decides the completions: a resumed run must have the same."""
        ...


def plan_batches(ids: Sequence[str], lengths: Sequence[int], settings: SamplingSettings) -> list[Batch]:
    """Every sample of every question, in batches of prompts of similar length.

    The longest come first: if memory does not suffice, that shows at once. A batch's seed comes from ``settings.seed``
    and the question ids and sample numbers it holds.
    """
    by_length = sorted(range(len(ids)), key=lambda number: -lengths[number])
    rows = [(number, sample) for number in by_length for sample in range(settings.num_samples)]
    size = settings.batch_size
    parts = [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]
    return [Batch(part, _seed([settings.seed, [[ids[number], sample] for number, sample in part]])) for part in parts]


def _seed(content: Any) -> int:
    return int(_digest(content)[:15], 16)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def sample_to_file(
    sampler: Sampler,
    questions: Sequence[Question],
    path: Path,
    template: str,
    conversational: bool,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw ``num_samples`` completions of each original question and append them to a JSONL file.

    A line is ``{"id", "sample", "completion", "tokens", "finished"}``; a batch of lines is on disk before the next is
    drawn. What decides the samples stands in ``NAME.meta.json`` next to the file. If the file is there already, its
    whole batches are kept, a part of one is cut, and the rest is drawn.

    Args:
        on_progress: called with (completions on disk, completions wanted), at the start and after each batch.

    Raises:
        UserError: no questions or a duplicate id, a bad template, a prompt that does not fit, or a file that was begun
            with other settings, questions or another model.
    """
    check_prompt_template(template)
    if not questions:
        raise UserError("there are no questions to sample from")
    ids = [question.id for question in questions]
    if len(set(ids)) < len(ids):
        raise UserError("two questions have the same id; samples could not be told apart")
    prompts = {question.id: question_prompt(question.question, template, conversational) for question in questions}
    prompt_ids = sampler.tokenize(prompts)
    batches = plan_batches(ids, [len(tokens) for tokens in prompt_ids], sampler.settings)
    meta = {
        **asdict(sampler.settings),
        "prompt_template": template,
        "conversational": conversational,
        "questions": _digest([ids, prompt_ids]),
        **sampler.describe(),
    }
    _check_meta(path, meta)
    done = _keep_whole_batches(path, batches, ids)
    total = len(ids) * sampler.settings.num_samples
    written = sum(len(batch.rows) for batch in batches[:done])
    if on_progress:
        on_progress(written, total)
    for batch in batches[done:]:
        completions = sampler.complete([prompt_ids[number] for number, _ in batch.rows], batch.seed)
        append_jsonl(path, (_line(ids, row, drawn) for row, drawn in zip(batch.rows, completions, strict=True)))
        written += len(batch.rows)
        if on_progress:
            on_progress(written, total)


def _line(ids: Sequence[str], row: tuple[int, int], drawn: Completion) -> dict[str, Any]:
    number, sample = row
    return {
        "id": ids[number],
        "sample": sample,
        "completion": drawn.text,
        "tokens": drawn.tokens,
        "finished": drawn.finished,
    }


def _check_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Write down what decides the samples, or compare it with what the file was begun with."""
    meta_path = path.with_suffix(".meta.json")
    now = json.loads(json.dumps(meta))
    if not meta_path.exists():
        if path.exists():
            raise UserError(
                f"{path} is there, but {meta_path.name} is not, so nobody knows how it was drawn; move it away"
            )
        write_json_atomic(meta_path, now)
        return
    try:
        before = json.loads(meta_path.read_text("utf-8"))
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise UserError(f"{meta_path} is damaged; move it and {path.name} away to draw the samples anew")
    changed = [
        f"{name} (then {before.get(name)!r:.60}, now {now.get(name)!r:.60})"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise UserError(
            f"{path} was begun with another {', '.join(changed)}; go on with the same, or write to another directory"
        )


def _keep_whole_batches(path: Path, batches: Sequence[Batch], ids: Sequence[str]) -> int:
    """How many planned batches the file holds in full; lines of an unfinished one are cut."""
    lines = read_jsonl(path)
    planned = [(ids[number], sample) for batch in batches for number, sample in batch.rows]
    found = [(line.get("id"), line.get("sample")) for line in lines]
    if found != planned[: len(found)]:
        raise UserError(f"{path} holds other samples than were planned; something else has written to it: move it away")
    done = whole = 0
    while done < len(batches) and whole + len(batches[done].rows) <= len(lines):
        whole += len(batches[done].rows)
        done += 1
    if whole < len(lines):
        kept = set(planned[:whole])
        truncate_jsonl(path, lambda line: (line["id"], line["sample"]) in kept)
    return done


class TransformersSampler:
    """Samples with ``model.generate``.

    Messages go through the tokenizer's chat template, with ``chat_template_kwargs`` (those the model was trained with)
    and the generation prompt. Text is tokenized as it is. Generation ends at the tokenizer's end-of-sequence token or
    one of those in the model's generation_config.json; nothing else of that file is used.

    Raises:
        UserError: a tokenizer and model without an end-of-sequence token.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: SamplingSettings,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self._eos_ids = _eos_ids(model, tokenizer)
        if not self._eos_ids:
            raise UserError(
                "neither the tokenizer nor the model names an end-of-sequence token; set tokenizer.eos_token"
            )

    def describe(self) -> dict[str, Any]:
        return {"chat_template_kwargs": self.chat_template_kwargs, "model": model_fingerprint(self.model)}

    def tokenize(self, prompts: Mapping[str, Prompt]) -> list[list[int]]:
        """Token ids of the prompts, which are given by question id; a BOS, where the model has one, stands once.

        Raises:
            UserError: messages without a chat template; text that carries the BOS that the tokenizer adds; a prompt
                that leaves no room for ``max_new_tokens``.
        """
        tokenized = []
        for question_id, prompt in prompts.items():
            ids = self._tokenize(prompt)
            self._check_prompt(question_id, ids)
            tokenized.append(ids)
        return tokenized

    def _tokenize(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the prompts are messages, and the model's tokenizer has no chat template; use an instruct model, set "
                "tokenizer.chat_template, or ask with plain text (conversational=False)"
            )
        # Tokenized by the template call itself: its text carries the special tokens already.
        encoded = self.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **self.chat_template_kwargs
        )
        return list(encoded["input_ids"])

    def _check_prompt(self, question_id: str, ids: list[int]) -> None:
        bos = self.tokenizer.bos_token_id
        if not ids:
            raise UserError(f"question {question_id!r}: its prompt has no tokens")
        if bos is not None and ids[:2] == [bos, bos]:
            raise UserError(
                f"question {question_id!r}: its prompt starts with two BOS tokens ({self.tokenizer.bos_token}): the "
                "text carries one and the tokenizer adds another; take it out of the prompt template"
            )
        room = getattr(self.model.config, "max_position_embeddings", None)
        needed = len(ids) + self.settings.max_new_tokens
        if room is not None and needed > room:
            raise UserError(
                f"question {question_id!r}: its prompt has {len(ids)} tokens, with max_new_tokens="
                f"{self.settings.max_new_tokens} that is {needed}, and the model takes {room}; lower max_new_tokens"
            )

    def complete(self, prompt_ids: Sequence[Sequence[int]], seed: int) -> list[Completion]:
        """One completion of each prompt. torch's random state, the model's mode and its settings are left as found.

        Raises:
            UserError: the batch does not fit into the GPU's memory.
        """
        import torch
        from transformers import GenerationConfig

        ids_BS, mask_BS = self._pad_left(prompt_ids)
        greedy = self.settings.temperature == 0
        # top_k=0 switches it off: the library's own default is 50.
        how = {} if greedy else {"temperature": self.settings.temperature, "top_p": self.settings.top_p, "top_k": 0}
        config = GenerationConfig(
            max_new_tokens=self.settings.max_new_tokens,
            do_sample=not greedy,
            eos_token_id=sorted(self._eos_ids),
            pad_token_id=self._pad_id,
            **how,
        )
        with _own_random_state(seed, ids_BS.device), _evaluation_mode(self.model), torch.no_grad():
            try:
                output_BT = self.model.generate(input_ids=ids_BS, attention_mask=mask_BS, generation_config=config)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"batch_size={len(prompt_ids)} completions do not fit into memory; lower batch_size, and write to "
                    "another directory (the samples depend on it)"
                ) from None
        return [self._completion(row) for row in output_BT[:, ids_BS.shape[1] :].tolist()]

    @property
    def _pad_id(self) -> int:
        # Padding is masked and cut off, so that any token serves.
        pad_id = self.tokenizer.pad_token_id
        return min(self._eos_ids) if pad_id is None else pad_id

    def _pad_left(self, prompt_ids: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        width = max(len(ids) for ids in prompt_ids)
        ids_BS = [[self._pad_id] * (width - len(ids)) + list(ids) for ids in prompt_ids]
        mask_BS = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids]
        return torch.tensor(ids_BS, device=self.model.device), torch.tensor(mask_BS, device=self.model.device)

    def _completion(self, ids: list[int]) -> Completion:
        end = next((position for position, token in enumerate(ids) if token in self._eos_ids), None)
        kept = ids if end is None else ids[:end]
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        return Completion(text, tokens=len(kept) + (end is not None), finished=end is not None)


def _eos_ids(model: Any, tokenizer: Any) -> set[int]:
    of_model = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [*of_model] if isinstance(of_model, list | tuple) else [of_model]
    return {token for token in [*ids, tokenizer.eos_token_id] if token is not None}


@contextmanager
def _own_random_state(seed: int, device: torch.device) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    """No dropout, and none of the model's own generation settings, which would fill in what ours leave open."""
    from transformers import GenerationConfig

    # A PEFT model and the model in it may each be asked for theirs.
    models = [model, model.get_base_model()] if hasattr(model, "get_base_model") else [model]
    training, configs = model.training, [each.generation_config for each in models]
    model.eval()
    for each in models:
        each.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for each, config in zip(models, configs, strict=True):
            each.generation_config = config
        model.train(training)


def model_fingerprint(model: Any) -> str:
    """A digest of the names, shapes and first 64 values of all weights: tells checkpoints of one model apart."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
