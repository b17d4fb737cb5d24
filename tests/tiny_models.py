"""Random two-layer models and a character tokenizer: small enough that a training step takes milliseconds."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a{{ ':' if mode is not defined else mode }}{% endif %}"
)


def tokenizer(chat_template: str | None = CHAT_TEMPLATE, add_bos: bool = True) -> PreTrainedTokenizerFast:
    """One token a printable character; plain text gets a BOS in front, as Llama's tokenizer does."""
    vocab = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *string.printable])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = chat_template
    return made


def model(seed: int = 0, hidden: int = 32) -> LlamaForCausalLM:
    """A random Llama; the same seed gives the same weights."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4 + len(string.printable),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.2,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    torch.random.set_rng_state(state)
    return made


def save_model(path: Path, seed: int = 0, hidden: int = 32) -> Path:
    """Write a model and its tokenizer in Hugging Face form."""
    model(seed, hidden).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
