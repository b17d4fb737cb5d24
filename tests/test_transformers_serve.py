"""``transformers serve``, a real server, with the embedded policy, asked by the verb eval with the official client."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ta_grpo.cli import main
from ta_grpo.questions import load_questions, save_questions
from ta_grpo.tiny import POLICY_DIR

_STARTS_WITHIN = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """Address and model name of a server that samples: the policy's generation_config.json says so."""
    folder = tmp_path_factory.mktemp("served")
    model = folder / "policy"
    shutil.copytree(POLICY_DIR, model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(model), "--host", "127.0.0.1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"], env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _STARTS_WITHIN
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1", str(model)
    finally:
        process.terminate()
        process.wait(30)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as response:  # noqa: S310 - loopback
            return response.status == 200
    except OSError:
        return False


def test_a_real_server_that_ignores_n_is_evaluated(server, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    url, model = server
    words = ["--benchmarks", "tiny/test", "--limit", "6", "--num-samples", "4", "--max-new-tokens", "40"]
    words += ["--backend", "endpoint", "--base-url", url, "--concurrency", "2", "--output-dir", "out"]
    assert main(["eval", model, *words, "--json"]) == 0, capsys.readouterr().err
    figures = json.loads(capsys.readouterr().out)["evaluations"][0]["benchmarks"]["tiny_test"]
    assert (figures["num_questions"], figures["num_samples"]) == (6, 4)
    samples = [json.loads(line) for line in (tmp_path / "out" / "tiny_test" / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 24
    assert len({sample["completion"] for sample in samples}) > 6  # it samples, and one answer is not taken four times
    # The policy puts its answers in a box, and gets some of them right.
    assert sum("\\boxed" in sample["completion"] for sample in samples) >= 20
    assert figures["outcomes"]["right"] > 0
    assert not (tmp_path / "out" / "tiny_test" / "samples.arrived.jsonl").exists()


def test_a_real_server_is_asked_for_rephrasings(server, tmp_path, capsys, monkeypatch):
    """The policy was never taught to rephrase: the checks must see that, and the report must say it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    url, model = server
    out = tmp_path / "out.jsonl"
    source = tmp_path / "plain.jsonl"
    save_questions([replace(question, rephrasings=()) for question in load_questions("tiny/test")], source)
    words = [str(source), "-o", str(out), "-n", "2", "--limit", "3", "--model", model, "--base-url", url]
    words += ["--max-attempts", "2", "--max-tokens", "40", "--concurrency", "2", "--judge-model", model]
    assert main(["rephrase", *words, "--json"]) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)
    quality = result["quality"]
    assert (quality["questions"], quality["accepted"] + quality["missing"]) == (3, 6)
    assert quality["missing"] >= 5
    assert sum(check["rejected"] for check in quality["checks"].values()) >= quality["rejected"] >= 10
    assert result["spent"]["calls"] >= 10
    assert result["spent"]["tokens_in"] > 1000
    assert result["spent"]["cost"] is None
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(len(record.get("rephrasing_shortfall", [])) for record in records) == quality["missing"]
    assert main(["rephrase", *words, "--resume"]) == 0
    assert "missing" in capsys.readouterr().out
