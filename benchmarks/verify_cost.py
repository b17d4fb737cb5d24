"""CPU time of the verifier over that of a plain loop of math-verify's parse and verify.

    python benchmarks/verify_cost.py [--repeats 7] [--samples DIR/samples.jsonl --questions SET]

Three figures, each a median of pairs with the range of the middle half; a measurement is a process of its own, whose
start and warm-up do not count, and the worker processes' CPU time does:

1. answers of a model, 64 problems × 128: the verifier over the plain loop on the *distinct* (reference, answer) pairs
   (aim: at most 1.10), and the plain loop over all of them as a multiple of the verifier;
2. distinct answers that need algebra: the verifier over the plain loop (aim: at most 1.15);
3. the same: CPU time over wall time of the verifier (aim: about the number of cores).

The answers are drawn from the embedded policy, or taken from the samples of an evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

PROBLEMS, ANSWERS, DISTINCT = 64, 128, 1_000
MEASURES = ("plain", "ours")


def model_answers(folder: Path) -> Path:
    """64 × 128 completions of the embedded policy, by the verb eval."""
    words = ["--benchmarks", "tiny/test", "--limit", str(PROBLEMS), "--num-samples", str(ANSWERS)]
    words += ["--batch-size", "512", "--output-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "ta_grpo.cli", "eval", "tiny", *words], check=True, stdout=subprocess.DEVNULL)
    return folder / "tiny_test" / "samples.jsonl"


def with_references(samples: Path, spec: str) -> list[tuple[str, str]]:
    from ta_grpo.benchmarks import load_benchmark

    answers = {question.id: question.answer for question in load_benchmark(spec)}
    lines = (json.loads(line) for line in samples.open())
    return [(line["completion"], answers[line["id"]]) for line in islice(lines, PROBLEMS * ANSWERS)]


def distinct_algebra() -> list[tuple[str, str]]:
    """Surds with a rational factor, against themselves in another form or against another one."""
    rng = random.Random(0)
    pairs = set()
    while len(pairs) < DISTINCT:
        a, b, c, d = rng.randint(1, 60), rng.randint(2, 9), rng.randint(2, 50), rng.randint(2, 9)
        answer = (
            f"\\frac{{{a * d}\\sqrt{{{c}}}}}{{{b * d}}}"
            if rng.random() < 0.5
            else f"\\frac{{{a + 1}}}{{{b}}}\\sqrt{{{c}}}"
        )
        pairs.add((f"So it is $\\boxed{{{answer}}}$.", f"\\frac{{{a}}}{{{b}}}\\sqrt{{{c}}}"))
    return sorted(pairs)


def distinct(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A completion of each (reference, extracted answer)."""
    from ta_grpo.verifier import extract_answer

    return list({(gold, extract_answer(completion)): (completion, gold) for completion, gold in pairs}.values())


def measure(how: str, pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """CPU and wall seconds, the workers' included."""
    warm = [(f"\\boxed{{\\frac{{{n}}}{{3}}\\sqrt{{7}}}}", f"\\sqrt{{{n}}}") for n in range(2, 18)]
    if how == "plain":
        from math_verify import parse, verify

        def run(some: list[tuple[str, str]]) -> None:
            for completion, gold in some:
                verify(parse(f"\\boxed{{{gold}}}"), parse(completion))
    else:
        from ta_grpo.verifier import verify_many

        run = verify_many
    run(warm)
    cpu, wall = cpu_seconds(), time.monotonic()
    run(pairs)
    return cpu_seconds() - cpu, time.monotonic() - wall


def cpu_seconds() -> float:
    from ta_grpo.verifier import worker_status

    total = time.process_time()
    for pid in worker_status().pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def in_a_process(how: str, file: Path) -> tuple[float, float]:
    words = [sys.executable, __file__, "--measure", how, "--pairs", str(file)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    cpu, wall = map(float, done.stdout.split())
    return cpu, wall


def told(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--questions", default="tiny/test")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(*measure(options.measure, [tuple(pair) for pair in json.loads(options.pairs.read_text())]))
        return
    with tempfile.TemporaryDirectory() as folder:
        samples = options.samples or model_answers(Path(folder) / "answers")
        every = with_references(samples, options.questions)
        sets = {"all": every, "distinct": distinct(every), "algebra": distinct_algebra()}
        files = {name: Path(folder) / f"{name}.json" for name in sets}
        for name, pairs in sets.items():
            files[name].write_text(json.dumps(pairs))
        all_, few, algebra = map(len, sets.values())
        print(f"{all_} answers, {few} distinct pairs; {algebra} distinct pairs that need algebra")
        over_distinct, speed_up, overhead, cores = [], [], [], []
        for _ in range(options.repeats):
            ours, plain, all_plain = (
                in_a_process(how, files[name])[0]
                for how, name in (("ours", "all"), ("plain", "distinct"), ("plain", "all"))
            )
            over_distinct.append(ours / plain)
            speed_up.append(all_plain / ours)
            ours, wall = in_a_process("ours", files["algebra"])
            overhead.append(ours / in_a_process("plain", files["algebra"])[0])
            cores.append(ours / wall)
    print(f"verifier on all answers / plain loop on distinct pairs: {told(over_distinct)}")
    print(f"plain loop on all answers / verifier: {told(speed_up)}")
    print(f"distinct answers that need algebra, verifier / plain loop: {told(overhead)}")
    print(f"the same, CPU seconds a second of the verifier: {told(cores)}")


if __name__ == "__main__":
    main()
