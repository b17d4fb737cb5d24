"""The vLLM backend behind a fake of vLLM's two classes."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import ClassVar

import pytest

import tiny_models
from ta_grpo.errors import UserError
from ta_grpo.sampling import Completion, SamplingSettings, VLLMSampler
from ta_grpo.sampling.vllm import files_fingerprint

SETTINGS = SamplingSettings(num_samples=3, max_new_tokens=6, temperature=0.6, top_p=0.95, batch_size=6)


class FakeLLM:
    """Answers with the prompt's length and the seed of each sample; notes what it was asked."""

    made: ClassVar[list[dict]] = []
    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    def __init__(self, **arguments):
        assert not self.alive, "two models do not fit into memory"
        self.alive.add(self)
        self.made.append(arguments)
        self.model_config = SimpleNamespace(max_model_len=100)
        self.calls = []

    def generate(self, prompts, sampling_params, use_tqdm):
        self.calls.append((prompts, sampling_params, use_tqdm))
        outputs = []
        for prompt, how in zip(prompts, sampling_params, strict=True):
            drawn = [
                SimpleNamespace(
                    index=i,
                    text=f"{len(prompt['prompt_token_ids'])} {how.seed + i}",
                    token_ids=list(range(i + 1)),
                    finish_reason="length" if i == 2 else "stop",
                )
                for i in range(how.n)
            ]
            outputs.append(SimpleNamespace(outputs=drawn[::-1]))
        return outputs


@pytest.fixture
def fake_vllm(monkeypatch):
    FakeLLM.made = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=SimpleNamespace))


def make(model="some/model", **engine):
    return VLLMSampler(model, tiny_models.tokenizer(), SETTINGS, engine=engine)


def test_a_batch_is_handed_over_at_once_a_request_a_question(fake_vllm):
    sampler = make(dtype="float32")
    assert FakeLLM.made == [{"model": "some/model", "dtype": "float32"}]
    a, b = sampler.prepare({"a": [{"role": "user", "content": "hi"}], "b": [{"role": "user", "content": "hello"}]})
    assert sampler._tokenizer.decode(b) == "<bos>u:hello\na:"
    drawn = sampler.complete([a, a, a, b, b], 7)
    ((prompts, hows, _),) = sampler._llm.calls
    assert [prompt["prompt_token_ids"] for prompt in prompts] == [a, b]
    assert [(how.n, how.max_tokens, how.temperature, how.top_p) for how in hows] == [
        (3, 6, 0.6, 0.95),
        (2, 6, 0.6, 0.95),
    ]
    assert drawn[:3] == [Completion(f"{len(a)} {hows[0].seed + i}", i + 1, finished=i < 2) for i in range(3)]
    assert [completion.text.split()[0] for completion in drawn[3:]] == [str(len(b))] * 2
    assert len({completion.text.split()[1] for completion in drawn}) == 5
    assert sampler.complete([a, a, a, b, b], 7) == drawn
    assert sampler.complete([a, a, a, b, b], 8) != drawn


def test_a_prompt_that_does_not_fit_is_refused(fake_vllm):
    with pytest.raises(UserError, match="the model takes 100"):
        make().prepare({"long": "x" * 99})


def test_what_decides_the_samples_is_described(fake_vllm, tmp_path):
    tiny_models.save_model(tmp_path / "a", seed=0)
    tiny_models.save_model(tmp_path / "b", seed=1)
    one, other = (make(str(tmp_path / name)).describe() for name in "ab")
    assert one["backend"] == "vllm"
    assert one["model"] != other["model"]
    assert one["model"] == files_fingerprint(str(tmp_path / "a"))
    assert make().describe()["model"] == "some/model"


def test_adapters_alone_are_refused_with_what_to_do(fake_vllm, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="--backend transformers"):
        make(str(tmp_path))


def test_without_vllm_the_command_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=r"pip install 'ta-grpo\[vllm\]'"):
        make()
