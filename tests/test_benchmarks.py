import logging
import os
import subprocess
import sys
from importlib import metadata

import datasets
import pytest

from published_rows import PUBLISHED, refusal, rows_of, write_jsonl
from ta_grpo.benchmarks import BENCHMARKS, PAPER_BENCHMARKS, benchmark_names, load_benchmark
from ta_grpo.errors import UserError
from ta_grpo.questions import DEFAULT_PROMPT_TEMPLATE, load_questions, save_questions
from ta_grpo.verifier import verify

# Names


def test_all_sets_are_named():
    assert set(benchmark_names()) == {*PUBLISHED, "gpqa", "tiny"}
    assert PAPER_BENCHMARKS == ("amc", "olympiadbench", "aime24", "aime25", "minerva", "gpqa")
    assert all(benchmark.licence for benchmark in BENCHMARKS.values())


def test_every_set_is_an_entry_point():
    assert set(benchmark_names()) <= metadata.entry_points(group="ta_grpo.question_sets").names


def test_importing_is_cheap():
    heavy = {"datasets", "torch", "math_verify", "sympy", "pyarrow"}
    code = f"import sys, ta_grpo.benchmarks; sys.exit(str({heavy} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# The Hub


@pytest.mark.parametrize(
    ("spec", "hub_id", "config", "split", "count"),
    [
        ("math/train", "DigitalLearningGmbH/MATH-lighteval", "default", "train", 7500),
        ("math", "DigitalLearningGmbH/MATH-lighteval", "default", "test", 5000),
        ("math500", "HuggingFaceH4/MATH-500", "default", "test", 500),
        ("gsm8k/train", "openai/gsm8k", "main", "train", 7473),
        ("gsm8k", "openai/gsm8k", "main", "test", 1319),
        ("amc", "AI-MO/aimo-validation-amc", "default", "train", 83),
        ("olympiadbench", "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", 674),
        ("aime24/test", "HuggingFaceH4/aime_2024", "default", "train", 30),
        ("aime25", "yentinglin/aime_2025", "default", "train", 30),
        ("minerva", "knoveleng/Minerva-Math", "default", "train", 272),
        ("gpqa", "Idavidrein/gpqa", "gpqa_diamond", "train", 198),
    ],
)
def test_asks_the_hub_for_the_set(hub, spec, hub_id, config, split, count):
    hub.rows = rows_of(spec.split("/")[0], count)
    assert len(load_benchmark(spec)) == count
    assert hub.calls == [((hub_id, config), {"split": split, "revision": None})]


@pytest.mark.parametrize("name", PUBLISHED)
def test_maps_rows_of_the_published_shape(hub, name):
    _, expected = PUBLISHED[name]
    hub.rows = rows_of(name, BENCHMARKS[name].splits["test"].rows)
    questions = load_benchmark(name)
    question = questions[0]
    assert (question.id, question.question, question.answer, dict(question.extra)) == expected
    assert question.source == BENCHMARKS[name].hub_id
    assert question.rephrasings == ()
    assert verify(f"\\boxed{{{question.answer}}}", question.answer).correct
    assert (questions.path, questions.dropped) == (None, {})
    assert questions.name == (name if len(BENCHMARKS[name].splits) == 1 else f"{name}/test")
    assert questions.prompt_template == DEFAULT_PROMPT_TEMPLATE


@pytest.mark.parametrize(
    ("spec", "revision", "asked"),
    [
        ("aime24@a1b2c3", None, "a1b2c3"),
        ("aime24/test@refs/pr/1", None, "refs/pr/1"),
        ("aime24", "v2", "v2"),
        ("aime24@v2", "v2", "v2"),
    ],
)
def test_pins_a_revision(hub, spec, revision, asked):
    hub.rows = rows_of("aime24", 30)
    questions = load_benchmark(spec, revision)
    assert hub.calls[0][1]["revision"] == asked
    assert questions[0].source == f"HuggingFaceH4/aime_2024@{asked}"


@pytest.mark.parametrize("count", [29, 31])
def test_refuses_another_number_of_rows(hub, count):
    hub.rows = rows_of("aime24", count)
    told = refusal("aime24")
    assert f"has {count} rows" in told
    assert "should have 30" in told
    assert "aime24=FILE.jsonl" in told


def test_refuses_rows_of_another_shape(hub):
    hub.rows = [{"question": "1?", "answer": "no hashes here"}] * 1319
    told = refusal("gsm8k")
    assert "openai/gsm8k: 1319 problems" in told
    assert "row 1: answer: a worked solution must end in ####" in told


def test_a_solution_without_a_box_is_dropped_and_counted(hub, caplog):
    hub.rows = [*rows_of("math", 4999), {"problem": "Prove it.", "solution": "Obvious: the answer is 3."}]
    questions = load_benchmark("math")
    assert (len(questions), questions.dropped) == (4999, {"no answer": 1})
    assert "row 5000" in caplog.text


def test_of_two_forms_of_an_answer_the_last_is_taken(tmp_path):
    row = {"problem": "Halve five.", "solution": "This is $\\boxed{2.5}$ or $\\boxed{\\frac{5}{2}}$."}
    assert load_benchmark(f"math={write_jsonl(tmp_path / 'any.jsonl', row)}")[0].answer == "\\frac{5}{2}"


def test_question_sets_can_be_trained_on(hub):
    hub.rows = rows_of("gsm8k", 7473)
    assert load_questions("gsm8k")[0].id == "gsm8k/train/1"
    assert load_questions("gsm8k/train@v1").name == "gsm8k/train"
    assert [call[1] for call in hub.calls] == [
        {"split": "train", "revision": None},
        {"split": "train", "revision": "v1"},
    ]


def test_evaluation_sets_have_no_training_split():
    with pytest.raises(UserError, match=r"aime24 has no split 'train'; there is: aime24/test"):
        load_questions("aime24")


def test_without_network_says_so_and_names_the_way_round(tmp_path):
    code = (
        "from ta_grpo.benchmarks import load_benchmark\n"
        "from ta_grpo.errors import UserError\n"
        "try: load_benchmark('gsm8k/train')\n"
        "except UserError as error: print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "openai/gsm8k cannot be loaded: offline mode is on, and the set is not in the cache" in done.stdout
    assert "gsm8k/train=FILE.jsonl" in done.stdout


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionError("Couldn't reach 'Idavidrein/gpqa' on the Hub (ConnectTimeout)"), "the Hub cannot be reached"),
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'Idavidrein/gpqa' is a gated dataset on the Hub. Log in"),
            "it is gated; ask for access on https://huggingface.co/datasets/Idavidrein/gpqa, then log in: hf auth",
        ),
        (
            datasets.exceptions.DatasetNotFoundError("Revision 'x' doesn't exist for dataset 'Idavidrein/gpqa'"),
            "Revision 'x' doesn't exist",
        ),
        (
            ValueError("BuilderConfig 'gpqa_diamond' not found.\nAvailable: []"),
            "BuilderConfig 'gpqa_diamond' not found",
        ),
        (RuntimeError(), "RuntimeError: no reason is given"),
    ],
)
def test_says_why_the_hub_gives_nothing(hub, error, told):
    hub.error = error
    message = refusal("gpqa")
    assert told in message
    assert message.endswith("or use a file of the set: gpqa=FILE.jsonl")


def test_without_datasets_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "run: pip install datasets; or use a file of the set: aime24=FILE.jsonl" in refusal("aime24")


# Files


@pytest.mark.parametrize("name", PUBLISHED)
def test_reads_a_file_of_the_published_shape(tmp_path, name):
    row, expected = PUBLISHED[name]
    path = write_jsonl(tmp_path / "any.jsonl", {key: value for key, value in row.items() if value is not None})
    questions = load_benchmark(f"{name}={path}")
    question = questions[0]
    assert (question.id, question.question, question.answer, dict(question.extra)) == expected
    assert questions.path == path
    assert question.source == ""


@pytest.mark.parametrize("name", [*PUBLISHED, "gpqa"])
def test_reads_a_file_of_question_records(tmp_path, name):
    row = {"id": "mine", "question": "A or B?", "answer": "B", "rephrasings": ["B or A?"], "level": 2}
    path = write_jsonl(tmp_path / "any.jsonl", row, {"question": "C or B?", "answer": "B"})
    questions = load_benchmark(f"{name}={path}")
    first = questions[0]
    assert (first.id, first.question, first.answer, dict(first.extra)) == ("mine", "A or B?", "B", {"level": 2})
    assert first.rephrasings == ("B or A?",)
    assert questions[1].id == f"{questions.name}/2"
    assert questions.prompt_template == BENCHMARKS[name].prompt_template


@pytest.mark.parametrize("name", [*PUBLISHED, "gpqa"])
def test_a_set_that_is_saved_is_read_back_the_same(tmp_path, hub, name):
    hub.rows = rows_of(name, BENCHMARKS[name].splits["test"].rows)
    questions = load_benchmark(name)
    save_questions(questions, tmp_path / "saved.jsonl")
    assert list(load_benchmark(f"{name}={tmp_path / 'saved.jsonl'}")) == list(questions)


def test_answers_are_brought_to_the_same_form_in_both_shapes(tmp_path):
    path = write_jsonl(tmp_path / "own.jsonl", {"id": "a", "question": "Five squared?", "answer": "025"})
    assert load_benchmark(f"aime24={path}")[0].answer == "25"


def test_a_split_of_a_file_is_only_a_name(tmp_path):
    path = write_jsonl(tmp_path / "any.jsonl", PUBLISHED["math"][0])
    assert load_benchmark(f"math/train={path}")[0].id == "math/train/1"
    assert load_questions(f"math/train={path}").name == "math/train"


def test_tells_the_number_of_rows_of_a_file(tmp_path, caplog):
    path = write_jsonl(tmp_path / "few.jsonl", *rows_of("aime24", 2))
    with caplog.at_level(logging.INFO, "ta_grpo"):
        assert len(load_benchmark(f"aime24={path}")) == 2
    assert f"aime24: 2 rows in {path}; the published set has 30" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING
    write_jsonl(path, *rows_of("aime24", 30))
    caplog.clear()
    with caplog.at_level(logging.INFO, "ta_grpo"):
        load_benchmark(f"aime24={path}")
    assert caplog.records[-1].levelno == logging.INFO


def test_bad_rows_are_named_all_at_once_with_their_lines(tmp_path):
    path = write_jsonl(
        tmp_path / "any.jsonl",
        {"question": "1?", "answer": "One.\n#### 1"},
        "{broken",
        {"question": "2?", "answer": "2"},
        {"question": "3?", "answer": "#### "},
        {"question": " ", "answer": "#### 4"},
    )
    told = refusal(f"gsm8k={path}")
    assert f"{path}: 4 problems" in told
    assert "line 2: broken JSON" in told
    assert "line 3: answer: a worked solution must end in ####" in told
    assert "line 4: answer: a worked solution must end in ####" in told
    assert "line 5, question: is empty" in told


def test_a_list_that_holds_no_text_is_refused(tmp_path):
    path = write_jsonl(tmp_path / "any.jsonl", {"id": 1, "question": "1?", "final_answer": [3]})
    assert "line 1: final_answer: must be a list of texts; it holds a number (3)" in refusal(f"olympiadbench={path}")


def test_a_context_comes_before_its_question(tmp_path):
    row = {"id": 1, "question": "What is $x$?", "final_answer": ["2", "3"], "context": "Let $x^2-5x+6=0$.\n"}
    question = load_benchmark(f"olympiadbench={write_jsonl(tmp_path / 'any.jsonl', row)}")[0]
    assert (question.question, question.answer) == ("Let $x^2-5x+6=0$.\n\nWhat is $x$?", "2, 3")


def test_a_file_in_neither_shape_is_refused(tmp_path):
    path = write_jsonl(tmp_path / "any.jsonl", {"Problem": "1?", "Answer": "1"})
    told = refusal(f"aime24={path}")
    assert (
        "neither rows of aime24 as published (columns answer, problem) nor questions (columns question, answer)" in told
    )
    assert "the columns are: Problem, Answer" in told


def test_an_empty_file_is_refused(tmp_path):
    assert "holds no questions" in refusal(f"aime24={write_jsonl(tmp_path / 'none.jsonl')}")


def test_a_file_of_questions_needs_no_name(tmp_path):
    path = write_jsonl(tmp_path / "few=1@x.jsonl", {"question": "1?", "answer": "1"})
    assert load_benchmark(str(path))[0].id == "few=1@x/1"


# The embedded set


def test_loads_the_embedded_set():
    assert load_benchmark("tiny").name == "tiny/test"
    assert load_benchmark("tiny/ood").name == "tiny/ood"
    assert load_benchmark("tiny").prompt_template == "{question}"


# Requests that are wrong


@pytest.mark.parametrize(
    ("spec", "revision", "told"),
    [
        ("aime", None, "did you mean aime25?"),
        ("aime26=file.jsonl", None, "no benchmark 'aime26'; the benchmarks are: math, "),
        ("gpqqa@v1", None, "did you mean gpqa?"),
        ("aime24/dev", None, "aime24 has no split 'dev'; there is: aime24/test"),
        ("gsm8k/", None, "gsm8k has no split ''; there is: gsm8k/train, gsm8k/test"),
        ("aime24@", None, "name the revision after the @"),
        ("aime24=", None, "name the file after the equals sign, such as aime24=FILE.jsonl"),
        ("aime24=nowhere.jsonl", None, "aime24: there is no file nowhere.jsonl"),
        ("aime24@v1", "v2", "two revisions are asked for, 'v1' and 'v2'"),
        ("aime24@v1=file.jsonl", None, "a file has no revision; leave out 'v1'"),
        ("aime24=file.jsonl", "v1", "a file has no revision; leave out 'v1'"),
        ("tiny/none", None, "no split 'none'"),
        ("tiny@v1", None, "neither files nor revisions"),
        ("tiny=file.jsonl", None, "neither files nor revisions"),
        ("tiny", "v1", "tiny has no revision; leave out 'v1'"),
        ("nowhere.jsonl", None, "there is no file nowhere.jsonl"),
        ("", None, "no question set of that name"),
    ],
)
def test_wrong_requests_are_refused_by_their_fix(spec, revision, told):
    assert told in refusal(spec, revision)
