"""The verb eval on a real language model: SmolLM2-135M-Instruct from its GGUF file, on a CPU."""

from __future__ import annotations

import json

import pytest

from ta_grpo.cli import main
from test_real_model import QUESTIONS, smollm2


@pytest.mark.slow
def test_a_real_model_is_evaluated_from_its_gguf_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = ["--benchmarks", str(QUESTIONS), "--limit", "3", "--num-samples", "3", "--max-new-tokens", "48"]
    assert main(["eval", str(smollm2()), *words, "--output-dir", "out", "--json"]) == 0, capsys.readouterr().err
    (figures,) = json.loads(capsys.readouterr().out)["evaluations"][0]["benchmarks"].values()
    assert (figures["num_questions"], figures["num_samples"]) == (3, 3)
    samples = [json.loads(line) for line in next(tmp_path.glob("out/*/samples.jsonl")).read_text().splitlines()]
    texts = [sample["completion"] for sample in samples]
    assert len(set(texts)) > 4
    assert sum(len(text.split()) > 8 for text in texts) > 4  # words, not noise
    assert all(sample["tokens"] <= 48 for sample in samples)
