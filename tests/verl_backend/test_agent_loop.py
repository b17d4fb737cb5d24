"""The agent loop with a stub where the engine is: what is asked, and what is handed back."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from configs import compose

from ta_grpo.errors import UserError
from ta_grpo.models import load_tokenizer
from ta_grpo.tiny import POLICY_DIR, questions
from ta_grpo.verl.export import verl_rows

N, K = 3, 8
G = K // (N + 1)
ANSWER = [30, 28, 16, 2]
LIMIT = 17


class StubClient:
    """Answers every request alike, with log-probs; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], dict[str, Any]]] = []

    async def generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append((prompt_ids, sampling_params))
        return TokenOutput(token_ids=ANSWER, log_probs=[-1.0] * len(ANSWER), extra_fields={"global_steps": 3})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(str(POLICY_DIR))


def loop(tokenizer: Any, client: StubClient, *overrides: str) -> Any:
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from ta_grpo.verl.agent_loop import TAGRPOAgentLoop

    settings = {"num_rephrasings": N, "ratio_anchor": "original", "off_prompt_negatives": "keep"}
    config = compose(
        f"actor_rollout_ref.rollout.n={K}",
        "actor_rollout_ref.rollout.name=vllm",
        "data.max_prompt_length=60",
        f"data.max_response_length={LIMIT}",
        *(f"++ta_grpo.{name}={value}" for name, value in settings.items()),
        *overrides,
    )
    return TAGRPOAgentLoop(
        DictConfigWrap(config), client, tokenizer, None, RLHFDataset, DictConfigWrap(config.data), hf_model_type="llama"
    )


def row(rephrasings: int = N) -> dict[str, Any]:
    """A training row as verl's dataset hands it on."""
    exported = next(iter(verl_rows(questions("train")[:1], "{question}", "tiny", for_training=True)))
    exported["extra_info"]["rephrasings"] = exported["extra_info"]["rephrasings"][:rephrasings]
    return exported | {"raw_prompt": exported["prompt"]}


def run_group(tokenizer: Any, given: dict[str, Any], *overrides: str) -> tuple[StubClient, list[Any]]:
    """All completions of one question, as verl asks for them."""
    client = StubClient()

    async def run() -> list[Any]:
        made = loop(tokenizer, client, *overrides)
        return [await made.run({"temperature": 0.7}, session_id=slot, **given) for slot in range(K)]

    return client, asyncio.run(run())


def tokens(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def test_phrasings_are_asked_and_the_original_is_handed_back(tokenizer: Any) -> None:
    given = row()
    client, outputs = run_group(tokenizer, given)
    phrasings = [tokens(tokenizer, messages) for messages in [given["prompt"], *given["extra_info"]["rephrasings"]]]
    assert [ids for ids, _ in client.asked] == [phrasings[slot // G] for slot in range(K)]
    for slot, output in enumerate(outputs):
        assert output.prompt_ids == phrasings[0]
        assert output.response_ids == ANSWER
        assert output.response_mask == [1] * len(ANSWER)
        assert output.response_logprobs is None
        assert output.extra_fields["phrasing_index"] == slot // G
        assert output.extra_fields["global_steps"] == 3  # the engine's own fields stay


def test_every_phrasing_has_the_same_allowance(tokenizer: Any) -> None:
    client, _ = run_group(tokenizer, row())
    assert {params["max_tokens"] for _, params in client.asked} == {LIMIT}
    assert {params["temperature"] for _, params in client.asked} == {0.7}


def test_a_short_question_deals_its_phrasings_round(tokenizer: Any) -> None:
    client, outputs = run_group(tokenizer, row(rephrasings=1))
    assert [output.extra_fields["phrasing_index"] for output in outputs] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert len(Counter(tuple(ids) for ids, _ in client.asked)) == 2
    assert {output.extra_fields["phrasings_available"] for output in outputs} == {2}


def test_sampled_anchor_hands_back_what_was_asked(tokenizer: Any) -> None:
    client, outputs = run_group(tokenizer, row(), "ta_grpo.ratio_anchor=sampled")
    assert [output.prompt_ids for output in outputs] == [ids for ids, _ in client.asked]
    assert outputs[-1].response_logprobs == [-1.0] * len(ANSWER)


def test_fields_reach_verls_queue_without_log_probs_of_the_engine(tokenizer: Any) -> None:
    _, outputs = run_group(tokenizer, row())
    fields = outputs[-1].as_dict()
    assert "rollout_log_probs" not in fields
    assert fields["extra_fields"]["phrasing_index"] == N


@pytest.mark.parametrize(
    ("missing", "told"), [("session_id", "trainer.use_v1=True"), ("extra_info", "ta-grpo export")], ids=str
)
def test_what_is_missing_is_told(tokenizer: Any, missing: str, told: str) -> None:
    given = row() | {"session_id": 0}
    del given[missing]

    async def run() -> None:
        await loop(tokenizer, StubClient()).run({}, **given)

    with pytest.raises(UserError, match=told):
        asyncio.run(run())


class Nested(list):
    """As a nested tensor of verl's queue: rows to unbind."""

    is_nested = True

    def unbind(self) -> list[Any]:
        return list(self)


def rows_of(rewards: dict[int, float], size: int = K) -> Any:
    """One question's completions, by slot, and a padding row of verl's, as its queue hands them to the trainer."""
    import torch

    from ta_grpo.verl.trainer import Rows

    slots = list(rewards)
    batch = SimpleNamespace(
        keys=[*(f"uid_{slot}_0" for slot in slots), "pad_0_0"], tags=[*({} for _ in slots), {"is_padding": True}]
    )
    extra = [{"phrasing_index": slot // G, "phrasings_available": N + 1} for slot in [*slots, 0]]
    count = len(slots) + 1
    data = {
        "rm_scores": Nested(torch.tensor([0.0, reward]) for reward in [*rewards.values(), 0.0]),
        "advantages": Nested(torch.full((2,), 1.0 if reward else -1.0) for reward in [*rewards.values(), 0.0]),
        "responses": Nested(torch.zeros(2) for _ in range(count)),
        "entropy": Nested(torch.full((2,), float(slot >= G)) for slot in [*slots, 0]),
        "old_log_probs": Nested(torch.zeros(2) for _ in range(count)),
        "extra_fields": extra,
    }
    return Rows.of(batch, data)


def test_figures_and_advantages_of_a_group_with_a_failed_completion() -> None:
    rows = rows_of({0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0, 5: 0.0, 7: 1.0})  # slot 6 failed
    groups = rows.groups(K, N + 1)
    figures = groups.metrics() | rows.metrics(end_token=2)
    assert figures["reward"] == pytest.approx(3 / 7)
    assert figures["reward_std"] == pytest.approx(statistics.stdev([1, 0, 0, 0, 1, 0, 1]))
    assert figures["frac_reward_zero_std"] == 0.0
    assert (figures["completions/max_length"], figures["completions/clipped_ratio"]) == (2, 1.0)
    assert rows.metrics(end_token=0)["completions/clipped_ratio"] == 0.0
    assert figures["reward/phrasing_3"] == 1.0
    assert figures["questions/joint/mixed"] == 1.0
    assert (figures["entropy/on_prompt"], figures["entropy/off_prompt"]) == (0.0, 1.0)
    kept = [advantage[0].item() for advantage in rows.corrected(groups, drop=False)]
    assert kept == [1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0]  # the padding row too: verl masks it
    dropped = [advantage[0].item() for advantage in rows.corrected(groups, drop=True)]
    assert dropped == [1.0, -1.0, 0.0, 0.0, 1.0, 0.0, 1.0, -1.0]


@pytest.mark.parametrize("rewards", [{0: 1.0}, dict.fromkeys(range(K), 1.0), dict.fromkeys(range(K), 0.0)], ids=str)
def test_groups_that_teach_nothing_have_no_advantage(rewards: dict[int, float]) -> None:
    """verl gives a lone completion its raw reward."""
    rows = rows_of(rewards)
    advantages = rows.corrected(rows.groups(K, N + 1), drop=False)
    assert all(advantage.eq(0).all() for advantage in advantages[:-1])
