"""CPU seconds and memory of pass@k for eight k, with 2,000 bootstrap resamples over 10,000 problems × 128 samples.

    python benchmarks/pass_at_k_cost.py [--repeats 5]

Each repeat is a process of its own; imports count. Aims: at most 6 CPU-seconds and 300 MB resident.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

PROBLEMS, SAMPLES, RESAMPLES = 10_000, 128, 2_000
KS = (1, 2, 4, 8, 16, 32, 64, 128)


def measure() -> None:
    import numpy as np

    from ta_grpo.statistics import bootstrap_interval, pass_at_k_table

    rng = np.random.default_rng(0)
    correct = rng.binomial(SAMPLES, rng.beta(0.5, 0.5, PROBLEMS))
    for values in pass_at_k_table(SAMPLES, correct, KS).values():
        bootstrap_interval(values, resamples=RESAMPLES)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure()
        return
    figures = []
    for _ in range(options.repeats):
        done = subprocess.run([sys.executable, __file__, "--measure"], check=True, capture_output=True, text=True)
        figures.append([float(word) for word in done.stdout.split()])
    seconds, megabytes = zip(*figures, strict=True)
    print(f"CPU seconds: median {statistics.median(seconds):.2f}, {min(seconds):.2f} to {max(seconds):.2f}")
    print(f"resident MB: median {statistics.median(megabytes):.0f}, most {max(megabytes):.0f}")


if __name__ == "__main__":
    main()
