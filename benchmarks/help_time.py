"""CPU seconds of ``ta-grpo --help``, ``ta-grpo train --help`` and ``ta-grpo eval --help``, start of Python included.

    python benchmarks/help_time.py [--repeats 10]

Aim: below 0.5.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys


def cpu_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ta_grpo.cli", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    for words in (["--help"], ["train", "--help"], ["eval", "--help"]):
        cpu_seconds(words)  # bytecode is compiled once
        seconds = [cpu_seconds(words) for _ in range(repeats)]
        print(f"ta-grpo {' '.join(words)}: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
