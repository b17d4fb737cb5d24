"""The run directory: nothing is overwritten, nothing written is lost, and only one process works in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from ta_grpo.errors import UserError
from ta_grpo.rundir import (
    RunDir,
    append_jsonl,
    read_jsonl,
    read_metrics,
    read_rollouts,
    rollouts_file,
    truncate_jsonl,
    write_json_atomic,
    write_parquet_atomic,
)


def manifest(run_dir: RunDir) -> dict:
    return json.loads(run_dir.manifest_file.read_text())


def test_a_run_records_what_was_asked_and_how_it_ended(tmp_path):
    data = tmp_path / "questions.jsonl"
    data.write_text("{}\n")
    with RunDir(tmp_path / "run", {"seed": 3}, {"questions": data}).open() as run:
        assert not manifest(run)["finished"]
    assert json.loads(run.config_file.read_text()) == {"seed": 3}
    written = manifest(run)
    assert written["finished"]
    assert written["data"]["questions"] == "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"
    (attempt,) = written["attempts"]
    assert attempt["outcome"] == "finished"
    assert {"command", "versions", "git_commit", "hardware", "python"} <= attempt.keys()


def test_a_failure_and_an_interruption_are_told_apart(tmp_path):
    for error, outcome in ((RuntimeError("x"), "failed: RuntimeError"), (KeyboardInterrupt(), "interrupted")):
        run = RunDir(tmp_path / outcome[:6], {}).open()
        with pytest.raises(type(error)), run:
            raise error
        assert manifest(run)["attempts"][-1]["outcome"] == outcome
        assert not manifest(run)["finished"]


def test_a_used_directory_is_never_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="--resume"):
        RunDir(tmp_path, {}).open()
    with pytest.raises(UserError, match="no run to resume"):
        RunDir(tmp_path, {}).open(resume=True)
    with pytest.raises(UserError, match="is a file"):
        RunDir(tmp_path / "notes.txt", {}).open()


def test_resume_wants_the_same_settings_and_the_same_data(tmp_path):
    data = tmp_path / "questions.jsonl"
    data.write_text("{}\n")
    config = {"seed": 3, "max_steps": 10}
    with RunDir(tmp_path / "run", config, {"questions": data}).open():
        pass
    with pytest.raises(UserError, match="seed: 3 -> 4"):
        RunDir(tmp_path / "run", config | {"seed": 4}, {"questions": data}).open(resume=True)
    with RunDir(tmp_path / "run", config | {"max_steps": 20}, {"questions": data}).open(True, ["max_steps"]) as run:
        pass
    assert json.loads(run.config_file.read_text())["max_steps"] == 20
    assert len(manifest(run)["attempts"]) == 2
    data.write_text('{"id": 1}\n')
    with pytest.raises(UserError, match=r"questions\.jsonl has changed"):
        RunDir(tmp_path / "run", config | {"max_steps": 20}, {"questions": data}).open(resume=True)


def test_two_processes_do_not_share_a_directory_and_a_kill_frees_it(tmp_path):
    script = (
        "import sys; from ta_grpo.rundir import RunDir; run = RunDir(sys.argv[1], {}).open();"
        "print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    with pytest.raises(UserError, match="another process"):
        RunDir(tmp_path / "run", {}).open(resume=True)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with RunDir(tmp_path / "run", {}).open(resume=True):
        pass


def test_a_torn_line_is_left_out_and_cut_before_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, [{"step": 1}, {"step": 2, "text": "½ \ud800"}])
    whole = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b'{"step": 3, "te')
    assert read_jsonl(path) == [{"step": 1}, {"step": 2, "text": "½ ?"}]
    append_jsonl(path, [{"step": 3}])
    assert path.read_bytes() == whole + b'{"step": 3}\n'
    path.write_bytes(b"x" * 10_000)  # torn within the first line, longer than one block
    append_jsonl(path, [{"step": 1}])
    assert path.read_bytes() == b'{"step": 1}\n'


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        read_jsonl(path)


def test_truncating_keeps_what_is_asked(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert truncate_jsonl(path, lambda record: True) == 0
    append_jsonl(path, [{"step": n} for n in range(5)])
    assert truncate_jsonl(path, lambda record: record["step"] < 3) == 2
    assert [record["step"] for record in read_jsonl(path)] == [0, 1, 2]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_json_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json_atomic(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_an_error_of_the_system_names_the_file_and_how_a_run_ended_does_not_hide_it(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    run = RunDir(tmp_path / "run", {}).open()
    with pytest.raises(OSError, match=r"metrics\.jsonl") as caught, run:  # noqa: PT012
        monkeypatch.setattr(os, "fsync", full)
        append_jsonl(tmp_path / "metrics.jsonl", [{"step": 1}])
    assert caught.value.errno == 28
    monkeypatch.undo()
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    with RunDir(tmp_path / "run", {}).open(resume=True):
        pass


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": "\xff"}', b'{"attempts": 3', b"[" * 100_000])
def test_a_damaged_json_file_is_named(tmp_path, name, content):
    with RunDir(tmp_path / "run", {"a": 1}).open():
        pass
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        RunDir(tmp_path / "run", {"a": 1}).open(resume=True)


def test_a_record_without_a_field_is_named_with_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"stap": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: no step"):
        read_jsonl(path, {"step": int})


def test_metrics_that_end_before_a_finished_run_does_are_refused(tmp_path):
    with RunDir(tmp_path, {}).open():
        for step in (1, 2, 3):
            write_parquet_atomic(rollouts_file(tmp_path, step), [{"id": "a"}])
        append_jsonl(tmp_path / "metrics.jsonl", [{"step": 1}, {"step": 2}])
        assert len(read_metrics(tmp_path)) == 2  # it may be under way
    with pytest.raises(UserError, match="ends with step 2, but the run went on to step 3"):
        read_metrics(tmp_path)
    append_jsonl(tmp_path / "metrics.jsonl", [{"step": 3}])
    assert len(read_metrics(tmp_path)) == 3


def test_a_byte_of_a_rollouts_file_that_changed_is_seen(tmp_path):
    path = rollouts_file(tmp_path, 1)
    write_parquet_atomic(path, [{"completion": "so the answer is 42"}] * 3)
    assert read_rollouts(path, ["completion"]).num_rows == 3
    with pytest.raises(UserError, match=r"cannot be read .*reward"):
        read_rollouts(path, ["reward"])
    path.write_bytes(path.read_bytes().replace(b"answer is 42", b"answer is 43", 1))
    with pytest.raises(UserError, match=r"step_00001\.parquet cannot be read"):
        read_rollouts(path)
