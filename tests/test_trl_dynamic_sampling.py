"""Dynamic sampling: groups without a gradient give way to groups of other questions, within a budget."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from ta_grpo.cli import main
from ta_grpo.errors import UserError
from ta_grpo.rundir import last_complete_checkpoint, rollouts_files
from ta_grpo.trl import TAGRPOConfig
from trl_runs import FakeEngine, question_rows, ta_trainer, unpadded, vowel_reward

K, QUESTIONS_PER_STEP = 8, 4


def only(mixed: set[str]) -> Any:
    """A reward under which the other questions are right whatever is answered."""

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        own = vowel_reward(completions)
        return [own[i] if id_ in mixed else 1.0 for i, id_ in enumerate(columns["id"])]

    return reward


class Rounds:
    """What each generation batch sampled, question by question, and what it was trained on."""

    def __init__(self, trainer: Any) -> None:
        self.sampled: list[Counter[str]] = []
        self.trainer = trainer
        trainer.on_rollouts = self.collect

    def collect(self, trainer: Any) -> None:
        self.sampled.append(Counter(trainer._logs["extra"]["id"]))
        assert len({len(column) for column in (*trainer._logs["extra"].values(), trainer._logs["advantages"])}) == 1

    def trained(self, update: int = 0) -> Counter[str]:
        """Rows of each question that an update saw, by the prompt q_0."""
        prompts: Counter[str] = Counter()
        for rows in self.trainer.recorder.updates[update].passes:
            for ids in unpadded(rows["prompt_ids"], rows["prompt_mask"]):
                text = self.trainer.recorder_tokenizer.decode(ids, skip_special_tokens=True)
                prompts["id" + text[1:]] += 1
        return prompts


def run(tmp_path: Any, monkeypatch: Any, mixed: set[str], questions: int = 16, **settings: Any) -> Rounds:
    engine = FakeEngine(monkeypatch)
    trainer = ta_trainer(
        tmp_path,
        question_rows(questions),
        only(mixed),
        **{"dynamic_sampling": 4.0, "gradient_accumulation_steps": QUESTIONS_PER_STEP} | settings,
    )
    trainer.recorder_tokenizer = engine.tokenizer
    rounds = Rounds(trainer)
    torch.manual_seed(0)
    trainer.train()
    return rounds


def last_metrics(rounds: Rounds) -> dict[str, float]:
    return next(log for log in rounds.trainer.state.log_history if "loss" in log)


@pytest.mark.parametrize("settings", [{}, {"num_rephrasings": 0}, {"advantage_scope": "per_phrasing"}], ids=str)
def test_a_batch_is_filled_with_mixed_groups(tmp_path, monkeypatch, settings):
    mixed = {f"id{i}" for i in range(0, 16, 2)}
    rounds = run(tmp_path, monkeypatch, mixed, **settings)
    trained = rounds.trained()
    assert len(trained) == QUESTIONS_PER_STEP
    assert set(trained) <= mixed
    assert set(trained.values()) == {K}
    # A question is sampled once, and each round samples as many questions as are missing.
    sampled = sum(rounds.sampled, Counter())
    assert set(sampled.values()) == {K}
    missing = QUESTIONS_PER_STEP - len(set(rounds.sampled[0]) & mixed)
    assert len(rounds.sampled[0]) == QUESTIONS_PER_STEP
    assert len(rounds.sampled[1]) == missing > 0
    metrics = last_metrics(rounds)
    assert metrics["dynamic_sampling/unfilled"] == 0
    assert metrics["dynamic_sampling/sampled"] == len(sampled) / QUESTIONS_PER_STEP
    assert metrics["dynamic_sampling/thrown_away"] == pytest.approx(1 - QUESTIONS_PER_STEP / len(sampled))
    # Other figures are of everything that was sampled.
    assert metrics["questions/joint/mixed"] == pytest.approx(len(set(sampled) & mixed) / len(sampled))


def test_the_rows_of_a_filled_batch_are_those_of_their_rounds(tmp_path, monkeypatch):
    """Prompts, completions, advantages and token counts belong together, whatever width their round was padded to."""
    mixed = {"id5", "id11", "id12"}
    rounds = run(tmp_path, monkeypatch, mixed, num_iterations=2)
    logged: dict[tuple[str, str], list[float]] = {}
    rerun = FakeEngine(monkeypatch)
    trainer = rounds.trainer
    tokens = 0
    for rows in trainer.recorder.updates[0].passes:
        for i, ids in enumerate(unpadded(rows["completion_ids"], rows["completion_mask"])):
            text = rerun.tokenizer.decode(ids, skip_special_tokens=True)
            (prompt_ids,) = unpadded(rows["prompt_ids"][i : i + 1], rows["prompt_mask"][i : i + 1])
            prompt = rerun.tokenizer.decode(prompt_ids, skip_special_tokens=True)
            logged.setdefault((f"id{prompt[1:]}", text), []).append(rows["advantages"][i].item())
            tokens += len(ids)
    by_question: dict[str, list[tuple[float, float]]] = {}
    for (id_, text), advantages in logged.items():
        for advantage in advantages:
            by_question.setdefault(id_, []).append((vowel_reward([text])[0], advantage))
    assert mixed <= set(by_question)
    for id_ in mixed:
        rewards = torch.tensor([reward for reward, _ in by_question[id_]])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        torch.testing.assert_close(torch.tensor([a for _, a in by_question[id_]]), expected, atol=1e-4, rtol=1e-4)
    for rows in trainer.recorder.updates[0].passes:
        assert rows["num_items_in_batch"] == tokens
        assert rows["old_per_token_logps"].shape == rows["completion_ids"].shape


def test_what_the_budget_leaves_missing_stays_uniform(tmp_path, monkeypatch):
    rounds = run(tmp_path, monkeypatch, {"id1"}, dynamic_sampling=2.0)
    sampled = sum(rounds.sampled, Counter())
    assert len(sampled) <= 2 * QUESTIONS_PER_STEP
    assert sum(rounds.trained().values()) == K * QUESTIONS_PER_STEP
    found = "id1" in sampled
    assert last_metrics(rounds)["dynamic_sampling/unfilled"] == 1 - found / QUESTIONS_PER_STEP
    assert ("id1" in rounds.trained()) == found


def test_a_question_set_can_run_out(tmp_path, monkeypatch):
    rounds = run(tmp_path, monkeypatch, set(), questions=6, dynamic_sampling=10.0)
    assert len(sum(rounds.sampled, Counter())) == 6
    assert last_metrics(rounds)["dynamic_sampling/unfilled"] == 1


def test_a_full_batch_costs_nothing_more(tmp_path, monkeypatch):
    """With mixed groups alone, dynamic sampling changes nothing, bit by bit."""
    everything = {f"id{i}" for i in range(16)}
    runs = [run(tmp_path, monkeypatch, everything, dynamic_sampling=budget, max_steps=2) for budget in (3.0, 0.0)]
    ours, plain = (rounds.trainer for rounds in runs)
    for name, weights in plain.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], weights), name


def test_other_questions_depend_on_the_step_alone(tmp_path, monkeypatch):
    mixed = {f"id{i}" for i in range(0, 16, 2)}
    first = run(tmp_path, monkeypatch, mixed, max_steps=3)
    again = run(tmp_path, monkeypatch, mixed, max_steps=3)
    assert first.sampled == again.sampled
    later = [set(sampled) for sampled in first.sampled if len(sampled) < QUESTIONS_PER_STEP]
    assert len({frozenset(each) for each in later}) > 1  # another order at another step


def responses(run_dir: Path) -> list[int]:
    """Completions sampled for each step."""
    return [pyarrow.parquet.read_metadata(path).num_rows for _, path in sorted(rollouts_files(run_dir).items())]


def test_training_ends_at_a_number_of_responses_also_when_resumed(tmp_path):
    words = {
        "--model": "tiny",
        "--questions": "tiny/train",
        "--num-rephrasings": 0,
        "--num-generations": 4,
        "--questions-per-step": 4,
        "--per-device-train-batch-size": 8,
        "--max-completion-length": 40,
        "--trl.dynamic_sampling": 3,
        "--max-responses": 150,
        "--max-steps": 9,
        "--save-steps": 1,
    }

    def train(run_dir: Path, *more: str) -> list[int]:
        flags = words | {"--output-dir": run_dir}
        assert main(["train", *(str(word) for flag in flags.items() for word in flag), *more]) == 0
        return responses(run_dir)

    whole = train(tmp_path / "whole")
    assert max(whole) > 16  # groups were thrown away
    assert sum(whole[:-1]) < 150 - 8 <= sum(whole)
    assert len(whole) < 9
    assert last_complete_checkpoint(tmp_path / "whole").name == f"checkpoint-{len(whole)}"

    # As a kill in the last step leaves it.
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / f"checkpoint-{len(whole)}")
    manifest = tmp_path / "killed" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"finished": False}))
    assert train(tmp_path / "killed", "--resume") == whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dynamic_sampling": 1.0}, "above 1"),
        ({"dynamic_sampling": -1.0}, "above 1"),
        ({"scale_rewards": "batch"}, "scale_rewards"),
        ({"ratio_anchor": "sampled", "pull_to_original": 0.5}, "pull_to_original"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        TAGRPOConfig(
            output_dir=str(tmp_path), **{"dynamic_sampling": 2.0, "num_generations": K, "bf16": False} | settings
        )
