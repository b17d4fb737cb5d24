import json
from dataclasses import replace

import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_models
from ta_grpo.errors import UserError
from ta_grpo.questions import Question
from ta_grpo.sampling import (
    Completion,
    SamplingSettings,
    TransformersSampler,
    model_fingerprint,
    plan_batches,
    sample_to_file,
)

SETTINGS = SamplingSettings(num_samples=4, max_new_tokens=6, batch_size=6)
QUESTIONS = [Question(f"q{i}", text, "1") for i, text in enumerate(["1+1?", "What is 2 + 3?", "7-4?", "Why?"])]


class InterruptedByTestError(Exception):
    pass


def make_sampler(settings=SETTINGS, seed=0, chat_template=tiny_models.CHAT_TEMPLATE, **kwargs):
    return TransformersSampler(tiny_models.model(seed), tiny_models.tokenizer(chat_template), settings, **kwargs)


def draw(path, sampler=None, questions=QUESTIONS, template="{question}", conversational=True, on_progress=None):
    sample_to_file(sampler or make_sampler(), questions, path, template, conversational, on_progress)
    return path.read_bytes()


def refusal(action, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        action(*args, **kwargs)
    return str(caught.value)


# Settings


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"temperature": -0.1}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.1}, "top_p must be above 0"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"temperature": 0.0}, "set num_samples=1"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, reason):
    assert reason in refusal(replace, SETTINGS, **change)


# The plan


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 7))
def test_a_plan_holds_every_sample_once_longest_prompts_first(lengths, num_samples, batch_size):
    settings = SamplingSettings(num_samples, 8, batch_size=batch_size)
    batches = list(plan_batches([f"id{i}" for i in range(len(lengths))], lengths, settings))
    rows = [row for batch in batches for row in batch.rows]
    assert sorted(rows) == [(number, sample) for number in range(len(lengths)) for sample in range(num_samples)]
    assert [lengths[number] for number, _ in rows] == sorted((lengths[number] for number, _ in rows), reverse=True)
    assert all(len(batch.rows) == batch_size for batch in batches[:-1])
    assert len({batch.seed for batch in batches}) == len(batches)


def test_seeds_depend_on_the_settings_seed_and_the_questions_in_the_batch():
    (batch,) = plan_batches(["a"], [3], replace(SETTINGS, num_samples=2))
    assert batch == next(plan_batches(["a"], [9], replace(SETTINGS, num_samples=2)))
    assert batch.seed != next(plan_batches(["b"], [3], replace(SETTINGS, num_samples=2))).seed
    assert batch.seed != next(plan_batches(["a"], [3], replace(SETTINGS, num_samples=2, seed=1))).seed


# The file


def test_every_question_gets_its_samples(tmp_path):
    progress = []
    draw(tmp_path / "samples.jsonl", on_progress=lambda *counts: progress.append(counts))
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text("utf-8").splitlines()]
    assert sorted((line["id"], line["sample"]) for line in lines) == [
        (question.id, sample) for question in QUESTIONS for sample in range(4)
    ]
    assert all(line.keys() == {"id", "sample", "completion", "tokens", "finished"} for line in lines)
    assert all(1 <= line["tokens"] <= 6 for line in lines)
    assert len({line["completion"] for line in lines}) > 8
    assert progress == [(0, 16), (6, 16), (12, 16), (16, 16)]
    meta = json.loads((tmp_path / "samples.meta.json").read_text())
    assert meta["max_new_tokens"] == 6
    assert meta["prompt_template"] == "{question}"


@pytest.mark.parametrize("after", [0, 6, 12, 16])
def test_an_interrupted_run_ends_as_an_unbroken_one(tmp_path, after):
    unbroken = draw(tmp_path / "unbroken.jsonl")

    def interrupt(done, total):
        if done == after:
            raise InterruptedByTestError

    path = tmp_path / "broken.jsonl"
    with pytest.raises(InterruptedByTestError):
        draw(path, on_progress=interrupt)
    torch.rand(3)  # the global random state is another one now
    assert draw(path) == unbroken
    assert draw(path) == unbroken


@pytest.mark.parametrize("cut", [1, 40, 150, 300, 700])
def test_a_file_torn_anywhere_is_mended(tmp_path, cut):
    path = tmp_path / "samples.jsonl"
    unbroken = draw(path)
    path.write_bytes(unbroken[:-cut])
    assert draw(path) == unbroken


def test_what_is_done_is_not_drawn_again(tmp_path, monkeypatch):
    path = tmp_path / "samples.jsonl"
    unbroken = draw(path)
    path.write_bytes(unbroken[: len(unbroken) // 2])
    sampler = make_sampler()
    drawn = []
    monkeypatch.setattr(
        sampler,
        "complete",
        lambda ids, seed, arrived: drawn.append(seed) or TransformersSampler.complete(sampler, ids, seed),
    )
    assert draw(path, sampler) == unbroken
    assert len(drawn) == 2
    drawn.clear()
    draw(path, sampler)
    assert drawn == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampler": make_sampler(replace(SETTINGS, temperature=0.5))}, "temperature (then 1.0, now 0.5)"),
        ({"sampler": make_sampler(replace(SETTINGS, batch_size=5))}, "batch_size"),
        ({"sampler": make_sampler(seed=1)}, "model"),
        ({"sampler": make_sampler(chat_template_kwargs={"mode": ">"})}, "chat_template_kwargs"),
        ({"template": "Q: {question}"}, "prompt_template"),
        ({"conversational": False}, "conversational"),
        ({"questions": QUESTIONS[:3]}, "questions"),
    ],
)
def test_going_on_with_something_else_is_refused(tmp_path, change, named):
    path = tmp_path / "samples.jsonl"
    before = draw(path)
    assert named in refusal(draw, path, **change)
    assert path.read_bytes() == before


def test_files_that_are_not_ours_are_refused(tmp_path):
    path = tmp_path / "samples.jsonl"
    lines = draw(path).splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    assert "other samples than were planned" in refusal(draw, path)
    (tmp_path / "samples.meta.json").write_text("{")
    assert "damaged" in refusal(draw, path)
    (tmp_path / "samples.meta.json").unlink()
    assert "samples.meta.json is not" in refusal(draw, path)


def test_questions_that_cannot_be_sampled_are_refused(tmp_path):
    path = tmp_path / "samples.jsonl"
    assert "no questions" in refusal(draw, path, questions=[])
    assert "same id" in refusal(draw, path, questions=QUESTIONS[:1] * 2)
    assert "must hold it once" in refusal(draw, path, template="no mark")
    assert not list(tmp_path.iterdir())


# Sampling itself


def test_the_same_seed_gives_the_same_completions_and_leaves_the_random_state():
    sampler = make_sampler()
    prompts = sampler.prepare({"a": "abc", "b": "a longer one"})
    state = torch.random.get_rng_state()
    first = sampler.complete(prompts, 5)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(7)
    assert sampler.complete(prompts, 5) == first
    assert sampler.complete(prompts, 6) != first


def test_samples_follow_the_models_distribution():
    sampler = make_sampler(replace(SETTINGS, max_new_tokens=1, temperature=0.3))
    (ids,) = sampler.prepare({"a": "abc"})
    drawn = sampler.complete([ids] * 4000, 0)
    with torch.no_grad():
        probabilities = (sampler.model(torch.tensor([ids])).logits[0, -1] / 0.3).softmax(0)
    top = probabilities.argmax().item()
    text = sampler.tokenizer.decode([top])
    share = sum(completion.text == text for completion in drawn) / len(drawn)
    assert share == pytest.approx(probabilities[top].item(), abs=0.04)
    # More than 50 different tokens: the library's own top-k is off.
    flat = make_sampler(replace(SETTINGS, max_new_tokens=1, temperature=50.0))
    assert len({completion.text for completion in flat.complete([ids] * 4000, 0)}) > 80


def test_a_completion_does_not_depend_on_padding():
    sampler = make_sampler(replace(SETTINGS, num_samples=1, temperature=0.0))
    short, long = sampler.prepare({"a": "ab", "b": "a prompt that is much longer than the other one"})
    assert sampler.complete([short, long], 0)[0] == sampler.complete([short], 0)[0]


def test_greedy_takes_the_likeliest_token_each_time():
    sampler = make_sampler(replace(SETTINGS, num_samples=1, temperature=0.0, max_new_tokens=3))
    (ids,) = sampler.prepare({"a": "abc"})
    expected = list(ids)
    with torch.no_grad():
        for _ in range(3):
            expected.append(sampler.model(torch.tensor([expected])).logits[0, -1].argmax().item())
    assert sampler.complete([ids], 0)[0].text == sampler.tokenizer.decode(expected[len(ids) :])


def biased_to(token, sampler):
    """The sampler's model, made to give one token nearly always."""
    head = torch.nn.Linear(32, sampler.model.config.vocab_size)
    torch.nn.init.zeros_(head.weight)
    head.bias.data.zero_()[token] = 50.0
    sampler.model.lm_head = head
    return sampler


def test_the_end_is_told_apart_from_a_cut():
    ids = [[1, 30, 31]]
    ended = biased_to(2, make_sampler()).complete(ids, 0)
    assert ended == [Completion(text="", tokens=1, finished=True)]
    cut = biased_to(13, make_sampler()).complete(ids, 0)
    assert cut == [Completion(text="9" * 6, tokens=6, finished=False)]


def test_the_models_own_end_tokens_count_too_and_a_pad_token_may_be_the_end_token():
    sampler = make_sampler()
    sampler.model.generation_config.eos_token_id = [2, 13]
    sampler = biased_to(13, TransformersSampler(sampler.model, sampler.tokenizer, SETTINGS))
    assert sampler.complete([[1, 30]], 0) == [Completion("", 1, True)]
    tokenizer = tiny_models.tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    same = biased_to(2, TransformersSampler(tiny_models.model(), tokenizer, SETTINGS))
    assert same.complete([[1, 30], [1, 30, 31]], 0) == [Completion("", 1, True)] * 2
    tokenizer.pad_token = None
    assert same.complete([[1, 30], [1, 30, 31]], 0) == [Completion("", 1, True)] * 2


def test_no_end_token_at_all_is_refused():
    model, tokenizer = tiny_models.model(), tiny_models.tokenizer()
    tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    assert "tokenizer.eos_token" in refusal(TransformersSampler, model, tokenizer, SETTINGS)


@pytest.mark.parametrize("with_adapter", [False, True])
def test_generation_settings_of_the_model_are_left_out_and_left_alone(with_adapter):
    model, tokenizer = tiny_models.model(), tiny_models.tokenizer()
    prompts = [[1, *([30] * 20)]] * 8
    if with_adapter:
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    expected = TransformersSampler(model, tokenizer, SETTINGS).complete(prompts, 0)
    inner = model.get_base_model() if with_adapter else model
    own = inner.generation_config
    own.update(do_sample=True, repetition_penalty=30.0, top_k=1, min_new_tokens=3, no_repeat_ngram_size=1)
    model.train()
    assert TransformersSampler(model, tokenizer, SETTINGS).complete(prompts, 0) == expected
    assert inner.generation_config is own
    assert model.generation_config is own
    assert model.training


class SmallMemory:
    """A model that takes so many rows at once."""

    def __init__(self, model, rows):
        self.rows, self.seen, self.generate_all = rows, [], model.generate

    def generate(self, input_ids, **kwargs):
        self.seen.append(len(input_ids))
        if len(input_ids) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.generate_all(input_ids=input_ids, **kwargs)


def test_what_does_not_fit_into_memory_is_drawn_in_halves(monkeypatch, caplog):
    sampler = make_sampler()
    memory = SmallMemory(sampler.model, rows=3)
    monkeypatch.setattr(sampler.model, "generate", memory.generate)
    prompts = sampler.prepare({f"q{i}": "abc" for i in range(8)})
    drawn = sampler.complete(prompts, 3)
    assert len(drawn) == 8
    assert len({completion.text for completion in drawn}) == 8
    assert memory.seen == [8, 4, 2, 2, 2, 2]
    assert "going on with 2" in caplog.text
    assert sampler.complete(prompts, 3) == drawn
    assert memory.seen[6:] == [2, 2, 2, 2]
    memory.rows = 0
    assert "lower max_new_tokens" in refusal(sampler.complete, prompts, 3)


# Prompts


def test_messages_go_through_the_template_with_one_bos():
    sampler = make_sampler(chat_template_kwargs={"mode": ">"})
    (ids,) = sampler.prepare({"a": [{"role": "user", "content": "hi"}]})
    assert sampler.tokenizer.decode(ids) == "<bos>u:hi\na>"
    assert ids.count(sampler.tokenizer.bos_token_id) == 1


def test_text_gets_the_tokenizers_bos():
    (ids,) = make_sampler().prepare({"a": "hi"})
    assert make_sampler().tokenizer.decode(ids) == "<bos>hi"


def test_prompts_that_would_go_wrong_are_refused():
    sampler = make_sampler(chat_template=None)
    assert "conversational=False" in refusal(sampler.prepare, {"a": [{"role": "user", "content": "hi"}]})
    unmarked = TransformersSampler(tiny_models.model(), tiny_models.tokenizer(add_bos=False), SETTINGS)
    assert "question 'a': its prompt has no tokens" in refusal(unmarked.prepare, {"a": ""})
    assert "two BOS tokens (<bos>)" in refusal(sampler.prepare, {"a": "<bos>hi"})
    message = refusal(sampler.prepare, {"short": "hi", "long": "x" * 250})
    assert "'long'" in message
    assert "257" in message
    assert "the model takes 256" in message


def test_fingerprint_tells_checkpoints_apart():
    model = tiny_models.model()
    before = model_fingerprint(model)
    assert before == model_fingerprint(tiny_models.model())
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-6
    assert model_fingerprint(model) != before
