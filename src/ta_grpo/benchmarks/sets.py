r"""The table of the named sets. None of them is part of this package, apart from the embedded one (``ta_grpo.tiny``).

Revisions are open: a set is loaded as it is on the Hub on the day. What makes a run repeatable is a pinned one,
``NAME@REVISION``. Counts are those of the published sets; a Hub set with another count is refused.
"""

from __future__ import annotations

from . import shapes
from .benchmark import TEST, Benchmark, Split

_GPQA_TEMPLATE = (
    "Answer the multiple-choice question below. Reason step by step, then give the letter of the right option, and "
    "nothing else, inside \\boxed{}.\n\n{question}"
)

MATH = Benchmark(
    name="math",
    hub_id="DigitalLearningGmbH/MATH-lighteval",
    config="default",
    splits={"train": Split("train", 7500), TEST: Split("test", 5000)},
    columns={"question": "problem", "answer": "solution"},
    convert=shapes.boxed_solution,
    licence="MIT, as published; the rights to the problems (AoPS, MAA) are contested: do not redistribute them",
)
MATH_500 = Benchmark(
    name="math500",
    hub_id="HuggingFaceH4/MATH-500",
    config="default",
    splits={TEST: Split("test", 500)},
    columns={"id": "unique_id", "question": "problem", "answer": "answer"},
    licence=MATH.licence,
)
GSM8K = Benchmark(
    name="gsm8k",
    hub_id="openai/gsm8k",
    config="main",
    splits={"train": Split("train", 7473), TEST: Split("test", 1319)},
    columns={"question": "question", "answer": "answer"},
    convert=shapes.hashed_solution,
    clean=shapes.without_thousands_commas,
    marker=shapes.HASHES,
    licence="MIT, the questions included",
)
AMC = Benchmark(
    name="amc",
    hub_id="AI-MO/aimo-validation-amc",
    config="default",
    splits={TEST: Split("train", 83)},
    # The published ids repeat.
    columns={"question": "problem", "answer": "answer"},
    clean=shapes.competition_integer,
    licence="data set Apache-2.0; the problems (AMC 12 of 2022 and 2023) are the MAA's: do not redistribute them",
)
OLYMPIADBENCH = Benchmark(
    name="olympiadbench",
    hub_id="Hothan/OlympiadBench",
    config="OE_TO_maths_en_COMP",
    splits={TEST: Split("train", 674)},
    columns={"id": "id", "question": "question", "answer": "final_answer"},
    convert=shapes.listed_answers,
    clean=shapes.without_dollars,
    licence="data set Apache-2.0, repository MIT; the problems are of several contests: do not redistribute them",
)
AIME24 = Benchmark(
    name="aime24",
    hub_id="HuggingFaceH4/aime_2024",
    config="default",
    splits={TEST: Split("train", 30)},
    columns={"id": "id", "question": "problem", "answer": "answer"},
    clean=shapes.competition_integer,
    licence="the problems are the MAA's: do not redistribute them",
)
AIME25 = Benchmark(
    name="aime25",
    hub_id="yentinglin/aime_2025",
    config="default",
    splits={TEST: Split("train", 30)},
    columns={"question": "problem", "answer": "answer"},
    clean=shapes.competition_integer,
    licence=AIME24.licence,
)
MINERVA = Benchmark(
    name="minerva",
    hub_id="knoveleng/Minerva-Math",
    config="default",
    splits={TEST: Split("train", 272)},
    columns={"question": "problem", "answer": "solution"},
    convert=shapes.boxed_solution,
    licence="CC BY-NC-SA 4.0 (MIT OpenCourseWare): non-commercial",
)
GPQA = Benchmark(
    name="gpqa",
    hub_id="Idavidrein/gpqa",
    config="gpqa_diamond",
    splits={TEST: Split("train", 198)},
    columns={"id": "Record ID", "question": "Question", "answer": "Correct Answer"},
    needed=shapes.WRONG_OPTIONS,
    convert=shapes.shuffled_options,
    prompt_template=_GPQA_TEMPLATE,
    licence="CC BY 4.0, gated: its authors ask that no question be shown in plain text on line",
)

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (MATH, MATH_500, GSM8K, AMC, OLYMPIADBENCH, AIME24, AIME25, MINERVA, GPQA)
}

PAPER_BENCHMARKS = (AMC.name, OLYMPIADBENCH.name, AIME24.name, AIME25.name, MINERVA.name, GPQA.name)
"""What arXiv 2601.22478 evaluates on."""
