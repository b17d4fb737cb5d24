"""pass@k of a model behind an OpenAI-compatible endpoint (vLLM, llama.cpp, a paid one), from Python.

    python evaluate_endpoint.py http://localhost:8000/v1 MODEL OUTPUT_DIR

The same from the command line: ta-grpo eval MODEL --backend endpoint --base-url URL --benchmarks questions.jsonl
A key, where one is needed, comes from the variable OPENAI_API_KEY alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ta_grpo.evaluation.jobs import evaluate_target
from ta_grpo.evaluation.settings import EvalSettings


def main(base_url: str, model: str, output_dir: str) -> None:
    settings = EvalSettings(
        benchmarks=["tiny/test"],  # any named set or question file
        output_dir=Path(output_dir),
        backend="endpoint",
        base_url=base_url,
        num_samples=4,
        ks=[1, 4],
        max_new_tokens=40,
        limit=10,
    )
    (sets,) = evaluate_target(model, settings).values()
    for name, evaluation in sets.items():
        for k, value in evaluation.pass_at_k.items():
            print(f"{name} pass@{k}: {100 * value.mean:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
