"""What of the verl back end needs no verl: the mapped settings, the export, and what the command line tells."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ta_grpo.cli import main
from ta_grpo.questions import Question, load_questions, save_questions
from ta_grpo.trl import TAGRPOConfig
from ta_grpo.trl.train_settings import TrainSettings
from ta_grpo.verl.mapping import SETTINGS, mapped_overrides

# Where one settings file cannot ask both for the same: verl has no linear schedule.
OTHER_DEFAULT = {"lr_scheduler_type": ("linear", "constant")}


def test_defaults_are_those_of_trl_and_of_the_verb():
    trl = {field.name: field.default for field in dataclasses.fields(TAGRPOConfig)}
    verb = {field.name: field.default for field in dataclasses.fields(TrainSettings)}
    for name, mapped in SETTINGS.items():
        if verb.get(name) is not None:
            assert mapped.default == verb[name], name
        elif name in OTHER_DEFAULT:
            assert (str(getattr(trl[name], "value", trl[name])), mapped.default) == OTHER_DEFAULT[name]
        elif name != "questions_per_step":
            assert mapped.default == trl[name], name
    settings = TrainSettings(model="tiny", questions="tiny", output_dir=Path("run"))
    assert SETTINGS["questions_per_step"].default == settings.questions_per_step


def test_a_mapped_value_keeps_its_meaning():
    overrides = mapped_overrides({"questions_per_step": 16, "max_steps": 10, "epsilon": 0.1}, lambda count: 64 // count)
    assert overrides["data.train_batch_size"] == 16
    assert overrides["trainer.total_epochs"] == 3  # 4 steps each
    assert overrides["actor_rollout_ref.actor.clip_ratio_high"] == 0.1


def test_export_writes_rows_for_training_and_validation(tmp_path, capsys):
    words = [
        "export",
        "--questions",
        "tiny",
        "--limit",
        "5",
        "--validation",
        "tiny/test",
        "--output-dir",
        str(tmp_path),
    ]
    assert main(words) == 0
    assert "rephrasings" in capsys.readouterr().out
    train = pq.read_table(tmp_path / "train.parquet").to_pylist()
    questions = load_questions("tiny")[:5]
    assert len(train) == 5
    for number, (row, question) in enumerate(zip(train, questions, strict=True)):
        assert row["agent_name"] == "ta_grpo"
        assert row["prompt"] == [{"role": "user", "content": question.question}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": question.answer}
        assert row["extra_info"]["index"] == number
        assert row["extra_info"]["id"] == question.id
        asked = [messages[0]["content"] for messages in row["extra_info"]["rephrasings"]]
        assert asked == list(question.rephrasings)
    validation = pq.read_table(tmp_path / "validation.parquet").to_pylist()
    assert {row["agent_name"] for row in validation} == {"single_turn_agent"}
    assert all(row["extra_info"]["rephrasings"] == [] for row in validation)
    assert main(words) == 2
    assert "never overwritten" in capsys.readouterr().err


def test_answers_that_cannot_be_checked_are_left_out_and_told(tmp_path, caplog):
    path = tmp_path / "questions.jsonl"
    save_questions(
        [Question("a", "1+1?", "2", ("one and one?",)), Question("b", "9^9^9^9^9?", "9^{9^{9^{9^{9}}}}", ("it?",))],
        path,
    )
    words = ["export", "--questions", str(path), "--output-dir"]
    assert main([*words, str(tmp_path / "checked")]) == 0
    assert [row["extra_info"]["id"] for row in pq.read_table(tmp_path / "checked" / "train.parquet").to_pylist()] == [
        "a"
    ]
    assert "1 of 2 questions are left out" in caplog.text
    assert main([*words, str(tmp_path / "own"), "--reward", "mine:score"]) == 0
    assert len(pq.read_table(tmp_path / "own" / "train.parquet")) == 2


def test_the_template_and_columns_reach_the_prompt(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n', encoding="utf-8")
    words = ["export", "--questions", str(tmp_path / "q.jsonl"), "--columns.question", "problem"]
    assert main([*words, "--prompt-template", "Answer {question}!", "--output-dir", str(tmp_path / "out")]) == 0
    row = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()[0]
    assert row["prompt"][0]["content"] == "Answer 1+1?!"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--backend", "verl"],
            "Python 3.11 or 3.12" if sys.version_info >= (3, 13) else "pip install 'ta-grpo[verl]'",
        ),
        (["--backend", "deepspeed"], "use trl or verl"),
        (["--ray-address", "auto"], "--ray-address is for --backend verl"),
        (["--", "trainer.nnodes=2"], "overrides after -- are for --backend verl"),
        (["--backend", "verl", "--ratio-anchor", "importance"], "use original or sampled"),
    ],
    ids=str,
)
def test_a_wrong_request_is_told(tmp_path, capsys, words, told):
    run = ["train", "--model", "tiny", "--questions", "tiny", "--output-dir", str(tmp_path / "run")]
    assert main([*run, *words]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_documentation_has_every_mapped_setting():
    page = (Path(__file__).parents[1] / "docs" / "verl.md").read_text(encoding="utf-8")
    table = page.split("## Settings")[1].split("##")[0]
    assert [name for name in SETTINGS if f"`{name}`" not in table] == []
