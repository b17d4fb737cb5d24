"""The named sets: MATH, GSM8K, AMC, OlympiadBench, AIME, Minerva, GPQA-Diamond, and the embedded one.

They are loaded from the Hugging Face Hub or from a file that the user names; only the embedded one ships here. How
each is published and what becomes of its rows is in ``sets`` and ``shapes``. Importing this package is cheap.
"""

from .benchmark import Benchmark, Split
from .sets import BENCHMARKS, PAPER_BENCHMARKS
from .specs import benchmark_names, load_benchmark

__all__ = ["BENCHMARKS", "PAPER_BENCHMARKS", "Benchmark", "Split", "benchmark_names", "load_benchmark"]
