"""Memory of rescoring stored samples: 10,000 problems, and 10 or 100 samples of each.

    python benchmarks/rescore_memory.py [--samples-a-problem 10 100]

The completions are built: a few hundred characters, with a boxed number that is right in a third of them. Aim: below
500 MB resident for a million samples, and hardly more than for a tenth of them.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROBLEMS = 10_000


def write_samples(folder: Path, samples_a_problem: int) -> None:
    rng = random.Random(0)
    filler = "We add what is given and take away what is spent, step by step. " * 5
    with open(folder / "questions.jsonl", "w") as file:
        for number in range(PROBLEMS):
            file.write(json.dumps({"id": f"p{number}", "question": f"{number}?", "answer": str(number)}) + "\n")
    with open(folder / "samples.jsonl", "w") as file:
        for number in range(PROBLEMS):
            for sample in range(samples_a_problem):
                answer = number + rng.randrange(3)
                text = f"{filler}{rng.randrange(1000)}: the answer is \\boxed{{{answer}}}."
                line = {"id": f"p{number}", "sample": sample, "completion": text, "tokens": 80, "finished": True}
                file.write(json.dumps(line) + "\n")
    (folder / "samples.meta.json").write_text(json.dumps({"num_samples": samples_a_problem}))


def measure(folder: Path) -> None:
    from ta_grpo.evaluation import rescore
    from ta_grpo.questions import load_questions

    began = time.monotonic()
    evaluation = rescore(load_questions(folder / "questions.jsonl"), folder, ks=[1])
    assert 0.3 < evaluation.pass_at_k[1].mean < 0.37
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{megabytes:.0f} MB resident, {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples-a-problem", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    for count in options.samples_a_problem:
        with tempfile.TemporaryDirectory() as folder:
            write_samples(Path(folder), count)
            done = subprocess.run(
                [sys.executable, __file__, "--measure", folder], check=True, capture_output=True, text=True
            )
        print(f"{PROBLEMS * count:,} samples: {done.stdout.strip()}")


if __name__ == "__main__":
    main()
