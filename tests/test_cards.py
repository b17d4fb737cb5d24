"""The cards beside checkpoints and rephrased files say what happened, and are fit for the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from ta_grpo.cli import main
from ta_grpo.model_card import write_model_card

SHA = "ab" * 32
PASS = {"mean": 0.5, "low": 0.25, "high": 0.75, "confidence": 0.95}


def front_matter(text: str) -> dict[str, Any]:
    start, matter, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(matter)


def a_run(place: Path, model: str, **config: Any) -> Path:
    """A run of two checkpoints, as train leaves it."""
    settings = {
        "model": model,
        "questions": "/srv/sets/math.jsonl",
        "num_rephrasings": 3,
        "ratio_anchor": "original",
    }
    manifest = {"data": {"questions": SHA}, "attempts": [{"versions": {"ta-grpo": "0.1", "trl": "1.16.0"}}]}
    for step in (2, 4):
        (place / f"checkpoint-{step}").mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(settings | {"trl": {"top_p": 0.9}} | config))
    (place / "manifest.json").write_text(json.dumps(manifest))
    lines = [{"step": step, "step_time": 10.0, "num_tokens": 1000 * step} for step in (1, 2, 3, 4)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def an_evaluation(folder: Path) -> None:
    folder.mkdir(parents=True)
    summary = {"name": "math500", "num_samples": 8, "correct": {"a": 4, "b": 0}, "pass_at_k": {"1": PASS}}
    (folder / "summary.json").write_text(json.dumps(summary))


def card(checkpoint: Path) -> str:
    write_model_card(checkpoint)
    return (checkpoint / "README.md").read_text(encoding="utf-8")


def test_a_checkpoint_s_card_has_base_recipe_data_budget_and_citation(tmp_path):
    text = card(a_run(tmp_path / "run", "Qwen/Qwen3-1.7B") / "checkpoint-2")
    assert front_matter(text)["base_model"] == "Qwen/Qwen3-1.7B"
    assert front_matter(text)["library_name"] == "transformers"
    for said in ("after 2 updates of TA-GRPO", "| `top_p` | 0.9 |", SHA, "20 seconds", "2,000 tokens", "2601.22478"):
        assert said in text
    assert "Not evaluated yet" in text


def test_results_stand_with_their_intervals_on_the_card_of_their_own_checkpoint(tmp_path):
    run = a_run(tmp_path / "run", "Qwen/Qwen3-1.7B")
    an_evaluation(run / "eval" / "math500")
    assert "| math500 | 2 | 8 | 1 | 50.0 | 25.0 to 75.0 |" in card(run / "checkpoint-4")
    assert "Not evaluated yet" in card(run / "checkpoint-2")
    an_evaluation(run / "eval" / "checkpoint-2" / "math500")
    assert "25.0 to 75.0" in card(run / "checkpoint-2")


def test_no_path_of_a_machine_is_told(tmp_path):
    run = a_run(tmp_path / "run", str(tmp_path / "model.gguf"), reward="accuracy", vllm="/opt/models/x")
    text = card(run / "checkpoint-2")
    assert "`model.gguf`" in text
    assert "base_model" not in front_matter(text)
    assert str(tmp_path) not in text
    assert "/srv/" not in text
    assert "/opt/" not in text


def test_plain_grpo_and_adapters_are_called_so(tmp_path):
    run = a_run(tmp_path / "run", "tiny", num_rephrasings=0)
    (run / "checkpoint-2" / "adapter_config.json").write_text("{}")
    text = card(run / "checkpoint-2")
    assert "updates of GRPO" in text
    assert "LoRA adapters of `tiny`" in text
    assert front_matter(text)["library_name"] == "peft"


def test_a_rephrased_file_gets_a_card(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    row = {"id": "a", "question": "A box holds 6 pens. How many pens are in 7 boxes?", "answer": "42"}
    Path("q.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["rephrase", "q.jsonl", "-o", "out.jsonl", "-n", "2", "--rules"]) == 0
    assert "out.README.md" in capsys.readouterr().out
    text = Path("out.README.md").read_text(encoding="utf-8")
    assert front_matter(text)["configs"] == [{"config_name": "default", "data_files": "out.jsonl"}]
    for said in ("Rephrasings of q.jsonl", "rules, without a model", "No model was asked.", "2601.22478"):
        assert said in text
