"""Metrics under the names that docs/metrics.md gives: in ``metrics.jsonl``, and as real trackers have kept them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ta_grpo.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
N = 3
FLAGS = {
    "--model": "tiny",
    "--questions": "tiny/train",
    "--num-rephrasings": N,
    "--num-generations": 8,
    "--per-device-train-batch-size": 8,
    "--questions-per-step": 2,
    "--max-steps": 2,
    "--max-completion-length": 40,
    "--beta": 0.01,
}


def words(tracker: str, run: str, **more: Any) -> list[str]:
    flags = FLAGS | more | {"--trl.report_to": tracker, "--output-dir": run}
    return ["train", *(str(word) for flag in flags.items() for word in flag)]


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two steps of the embedded policy, with real rewards, that TensorBoard has watched."""
    path = tmp_path_factory.mktemp("watched") / "run"
    assert main(words("tensorboard", str(path))) == 0
    return path


# The page


def documented() -> dict[str, str]:
    """Metric -> where it is logged, in the words of the page."""
    names: dict[str, str] = {}
    for cells in re.findall(r"^\| (`.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        first, *_, where = cells.split(" | ")
        for written in re.findall(r"`([^`]+)`", first):
            written = written.replace("{0..N}", "{" + ",".join(map(str, range(N + 1))) + "}")
            parts = re.split(r"\{(.+?)\}", written.replace("{reward function}", "accuracy_reward"))
            choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
            for name in map("".join, itertools.product(*choices)):
                assert name not in names, f"{name} is documented twice"
                names[name] = where
    return names


WITH_SETTING = {
    "`pull_to_original` > 0": {"--ratio-anchor": "sampled", "--pull-to-original": 1},
    "`dynamic_sampling` > 0": {"--trl.dynamic_sampling": 2},
    "`adaptive_rephrasings`": {"--trl.adaptive_rephrasings": "true"},
}
NEEDS_ANOTHER_RUN = (*WITH_SETTING, "vLLM with the correction", "after the first")


def test_the_page_names_what_a_run_logs_and_nothing_else(run):
    logged = set().union(*lines_of(run)) - {"step"}
    here = {name for name, where in documented().items() if where not in NEEDS_ANOTHER_RUN}
    assert len(here) > 50
    assert logged == here


def test_the_page_names_what_the_trainer_documents():
    """Also those that need vLLM, or a gradient that is not finite."""
    import ta_grpo.trl.metrics as metrics_module

    told = re.findall(r"^\| `([^`]+)`", metrics_module.__doc__ or "", re.MULTILINE)
    page = set(documented())
    assert len(told) > 9
    for name in told:
        head, _, rest = name.partition("{")
        choices = [head + choice + rest.partition("}")[2] for choice in rest.partition("}")[0].split(",")]
        assert set(choices if rest else [name]) <= page


def test_a_run_without_rephrasings_logs_what_the_page_says(tmp_path):
    assert main(words("none", str(tmp_path / "run"), **{"--num-rephrasings": 0, "--beta": 0, "--max-steps": 1})) == 0
    (line,) = lines_of(tmp_path / "run")
    wheres = ("always", "losses that clip", "`reward` is `accuracy`")
    assert set(line) - {"step"} == {name for name, where in documented().items() if where in wheres}


@pytest.mark.parametrize("where", WITH_SETTING)
def test_a_setting_with_metrics_of_its_own_logs_them(tmp_path, where):
    assert main(words("none", str(tmp_path / "run"), **WITH_SETTING[where], **{"--beta": 0, "--max-steps": 1})) == 0
    names = {name for name, its_where in documented().items() if its_where == where}
    assert names
    assert names <= set(lines_of(tmp_path / "run")[0])


# Trackers


def same(tracked: dict[int, dict[str, float]], run: Path) -> None:
    """Each step has each metric that has a value, under its name with ``train/`` before it."""
    for line in lines_of(run):
        step = line.pop("step")
        assert len(line) > 50
        for name, value in line.items():
            if value is not None:
                assert tracked[step][f"train/{name}"] == pytest.approx(value, rel=1e-6), name


def test_tensorboard_has_every_metric_of_every_step(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (run / "runs").glob("*/events.out.tfevents.*")
    events = EventAccumulator(str(file.parent))
    events.Reload()
    tracked: dict[int, dict[str, float]] = {1: {}, 2: {}}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            tracked[event.step][name] = event.value
    same(tracked, run)


def watched(tracker: str, place: Path, **environment: str) -> Path:
    """A run of its own process that a tracker watches; skipped, with the reason, where it is not installed."""
    if importlib.util.find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed; to run this: pip install 'ta-grpo[trackers]'")
    done = subprocess.run(
        [sys.executable, "-m", "ta_grpo.cli", *words(tracker, "run")],
        cwd=place,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place / "run"


def test_trackio_has_every_metric_of_every_step(tmp_path):
    run = watched("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "kept"))
    script = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as kept\n"
        "(name,) = kept.get_runs('huggingface'); print(json.dumps(kept.get_logs('huggingface', name)))"
    )
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "kept")}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    rows = [row for row in json.loads(told.stdout.splitlines()[-1]) if "train/loss" in row]
    same({int(row["train/global_step"]): row for row in rows}, run)


def test_wandb_has_every_metric_of_every_step(tmp_path):
    run = watched("wandb", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    from wandb.proto import wandb_internal_pb2  # pyright: ignore[reportMissingImports]

    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    tracked = {}
    for content in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if "train/loss" in row:
            tracked[row["train/global_step"]] = row
    same(tracked, run)


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of an offline run: LevelDB's log format (blocks of 32 KiB) after a head of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


@pytest.mark.parametrize(
    ("tracker", "told"),
    [
        ("wanbd", "report_to='wanbd' is no tracker; use one of"),
        ("trackio", "report_to='trackio' needs a package that is not installed; run: pip install 'ta-grpo[trackers]'"),
        ("mlflow", "report_to='mlflow' needs a package that is not installed; install its package"),
    ],
)
def test_a_tracker_that_is_not_there_is_told_before_anything_is_made(tmp_path, capsys, monkeypatch, tracker, told):
    monkeypatch.setattr("transformers.integrations.integration_utils.is_trackio_available", lambda: False)
    monkeypatch.setattr("transformers.integrations.integration_utils.is_mlflow_available", lambda: False)
    assert main(words(tracker, str(tmp_path / "run"))) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
