import json
import logging
import math
import subprocess
import sys
from decimal import Decimal
from importlib import metadata

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict

from ta_grpo.errors import UserError
from ta_grpo.question_rows import SENTINEL_ANSWERS
from ta_grpo.questions import (
    DEFAULT_PROMPT_TEMPLATE,
    Question,
    QuestionSet,
    as_train_rows,
    check_prompt_template,
    load_questions,
    question_prompt,
)

ALL_SUFFIXES = [".jsonl", ".json", ".parquet", ".csv"]


def write_jsonl(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def refusal(source, columns=None):
    with pytest.raises(UserError) as caught:
        load_questions(source, columns)
    return str(caught.value)


def reasons_of(*rows):
    return refusal([{"question": "1 + 1?", "answer": "2"} | row for row in rows])


# Reading


def test_reads_a_row_with_everything(tmp_path):
    path = write_jsonl(
        tmp_path / "few.jsonl",
        {"id": 7, "question": "$\\frac{1}{2}$?", "answer": "0.5", "rephrasings": ["Half?"], "source": "s", "level": 3},
    )
    questions = load_questions(str(path))
    assert list(questions) == [Question("7", "$\\frac{1}{2}$?", "0.5", ("Half?",), "s", {"level": 3})]
    assert (questions.name, questions.path, questions.dropped) == ("few", path, {})
    assert questions.prompt_template == DEFAULT_PROMPT_TEMPLATE


def test_ids_are_made_from_file_and_row(tmp_path):
    rows = [{"question": "a", "answer": "1"}, {"id": None, "question": "b", "answer": "1"}]
    path = write_jsonl(tmp_path / "set.jsonl", rows[0], "", rows[1])
    assert [question.id for question in load_questions(path)] == ["set/1", "set/2"]


@pytest.mark.parametrize(
    ("given_answer", "text"),
    [
        (42, "42"),
        (42.0, "42"),
        (0.5, "0.5"),
        (-0.0, "0"),
        (1e-7, "0.0000001"),
        (1e22, "1" + "0" * 22),
        (Decimal("12.50"), "12.5"),
        (" 42 ", " 42 "),
    ],
)
def test_number_answers_become_plain_digits(given_answer, text):
    assert load_questions([{"question": "q", "answer": given_answer}])[0].answer == text


@pytest.mark.parametrize("answer", [True, math.nan, math.inf, ["4"], {"value": 4}, b"4"])
def test_answers_of_other_types_are_refused(answer):
    assert "row 1, answer: " in refusal([{"question": "q", "answer": answer}])


def test_bom_and_crlf_are_tolerated(tmp_path):
    line = json.dumps({"question": "q", "answer": "1"})
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + (line + "\r\n").encode() * 2)
    assert len(load_questions(tmp_path / "a.jsonl")) == 2
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\nq,1\r\n\r\n")
    assert load_questions(tmp_path / "a.csv")[0] == Question("a/1", "q", "1")
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[" + line.encode() + b"]\r\n")
    assert load_questions(tmp_path / "a.json")[0] == Question("a/1", "q", "1")


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a\u2028b\x85c", "answer": "1"}\n', "utf-8")
    assert load_questions(path)[0].question == "a\u2028b\x85c"


def test_csv_holds_rephrasings_as_a_json_list(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('question,answer,rephrasings,level\nq,007,"[""r, 1"", ""s""]",5\n"two\nlines",2,,\n', "utf-8")
    first, second = load_questions(path)
    assert first == Question("a/1", "q", "007", ("r, 1", "s"), extra={"level": 5})
    assert second == Question("a/2", "two\nlines", "2")


def test_csv_lines_are_named_where_they_begin(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('question,answer,rephrasings\n"two\nlines",2,\nq,1\nr,2,not a list\n', "utf-8")
    message = refusal(path)
    assert "line 4: 2 cells, but the header has 3" in message
    assert "line 5, rephrasings: must be a list of texts; got text ('not a list')" in message


def test_reads_datasets_and_lists_of_dicts():
    rows = [{"question": "q", "answer": "1", "rephrasings": ["r"], "level": 2}]
    assert load_questions(rows)[0] == Question("questions/1", "q", "1", ("r",), extra={"level": 2})
    assert load_questions(Dataset.from_list(rows))[0] == load_questions(rows)[0]
    assert "train, test" in refusal(DatasetDict({"train": Dataset.from_list(rows), "test": Dataset.from_list(rows)}))


def test_null_cells_of_a_table_are_absent(tmp_path):
    table = pyarrow.table({"question": ["q", "r"], "answer": [1.0, 2.5], "id": ["a", None], "level": [None, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    expected = [Question("a", "q", "1"), Question("a/2", "r", "2.5", extra={"level": 3})]
    assert list(load_questions(tmp_path / "a.parquet")) == expected


# Columns


def test_columns_are_renamed_and_none_is_lost():
    rows = [{"problem": "q", "solution": "long", "answer": "6", "n": 1}]
    question = load_questions(rows, {"question": "problem", "answer": "solution"})[0]
    assert (question.question, question.answer) == ("q", "long")
    assert question.extra == {"file_answer": "6", "n": 1}


def test_two_columns_can_swap_names():
    question = load_questions([{"question": "4", "answer": "2 + 2"}], {"question": "answer", "answer": "question"})[0]
    assert (question.question, question.answer, question.extra) == ("2 + 2", "4", {})


def test_a_mapped_column_that_is_not_there():
    message = refusal([{"problem": "q", "answer": "1"}], {"question": "problm"})
    assert "no column 'problm'" in message
    assert "problem, answer" in message
    assert "did you mean 'problem'" in message


def test_mapping_to_an_unknown_field():
    assert "'prompt' is no field" in refusal([{"question": "q", "answer": "1"}], {"prompt": "question"})


@pytest.mark.parametrize("missing", ["question", "answer"])
def test_a_column_missing_in_every_row_is_told_once(missing):
    row = {"question": "q", "answer": "1", "other": "x"}
    del row[missing]
    message = refusal([row] * 50)
    assert f"no column {missing!r}" in message
    assert "other" in message
    assert f"columns={{{missing!r}: ...}}" in message
    assert "row" not in message


# Bad files


@pytest.mark.parametrize("suffix", ALL_SUFFIXES[:2] + ALL_SUFFIXES[3:])
def test_an_empty_file_is_refused(tmp_path, suffix):
    for content in ["", "\n\n", "\ufeff"]:
        (tmp_path / f"a{suffix}").write_text(content, "utf-8")
        assert "holds no questions" in refusal(tmp_path / f"a{suffix}")


def test_files_without_rows_are_refused(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "a.csv").write_text("question,answer\n")
    pyarrow.parquet.write_table(pyarrow.table({"question": [], "answer": []}), tmp_path / "a.parquet")
    for suffix in (".json", ".csv", ".parquet"):
        assert "holds no questions" in refusal(tmp_path / f"a{suffix}")
    assert "holds no questions" in refusal([])


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_bytes_that_are_not_utf8_are_placed(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"question\ncaf\xe9\n")
    assert "byte 12 (line 2) is not UTF-8" in refusal(path)


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("q")
    assert ".jsonl, .json, .parquet, .csv; got .txt" in refusal(tmp_path / "a.txt")
    (tmp_path / "b.parquet").write_text("not parquet")
    assert "not a Parquet file" in refusal(tmp_path / "b.parquet")
    (tmp_path / "c.json").write_text('{"question": "q"}')
    assert "holds an object" in refusal(tmp_path / "c.json")
    (tmp_path / "d.json").write_text('[\n{"question": "q",}]')
    assert "line 2: broken JSON" in refusal(tmp_path / "d.json")
    (tmp_path / "e.csv").write_text('question,answer\n"q,1\n')
    assert "broken CSV" in refusal(tmp_path / "e.csv")
    (tmp_path / "f.csv").write_text("question,question\nq,1\n")
    assert "'question' occurs twice" in refusal(tmp_path / "f.csv")
    assert "cannot be read from int" in refusal(3)


# Bad rows


def test_all_bad_rows_are_reported_at_once(tmp_path):
    path = write_jsonl(
        tmp_path / "a.jsonl",
        {"id": "x", "question": "q", "answer": "1"},
        '{"question": "\\sqrt 2"}',
        "[1, 2]",
        {"id": "x", "question": " \n", "answer": [3]},
        {"id": "x", "question": "r", "answer": "1"},
        '{"question": "q", "question": "r", "answer": "1"}',
        '{"question": ' + "[" * 100_000,
    )
    message = refusal(path)
    assert message.startswith(f"{path}: 7 problems\n")
    assert "line 2: broken JSON: Invalid \\escape at column 15 (a backslash is written twice: \\\\frac)" in message
    assert "line 3: a list ([1, 2]), not an object" in message
    assert "line 4, question: is empty" in message
    assert "line 4, answer: must be text or a number; got a list ([3])" in message
    assert "line 5, id: 'x' is the id of line 1 too" in message
    assert "line 6: broken JSON: the field 'question' occurs twice" in message
    assert "line 7: broken JSON" in message


def test_a_long_report_is_cut_and_counted():
    message = refusal([{"question": "", "answer": "1"}] * 33)
    assert message.count("\n  row ") == 20
    assert "33 problems" in message
    assert "and 13 more" in message


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": None}, "question: is missing"),
        ({"question": "\t"}, "question: is empty"),
        ({"question": 5}, "question: must be text; got a number (5)"),
        ({"question": ["q"]}, "question: must be text; got a list"),
        ({"id": ""}, "id: is empty"),
        ({"id": "a\nb"}, "id: 'a\\nb' holds a character that cannot be printed"),
        ({"id": True}, "id: must be text or a number"),
        ({"source": 3}, "source: must be text"),
        ({"rephrasings": "r"}, "rephrasings: must be a list of texts; got text ('r')"),
        ({"rephrasings": ["r", " "]}, "rephrasings: number 2 is empty"),
        ({"rephrasings": [None]}, "rephrasings: number 1 is missing"),
        ({"rephrasings": [1]}, "rephrasings: number 1 must be text"),
        ({"rephrasings": ["1 +  1?\n"]}, "rephrasings: number 1 is a copy of the question"),
        ({"rephrasings": ["a b", "c", "a\tb"]}, "rephrasings: number 3 is a copy of number 1"),
        ({"rephrasings": ["a"], "rephrasing_info": []}, "rephrasing_info: must be a list as long as rephrasings"),
    ],
)
def test_bad_fields(row, reason):
    assert f"row 1, {reason}" in reasons_of(row)


@pytest.mark.parametrize("field", ["question", "answer", "rephrasings"])
@pytest.mark.parametrize(
    ("eaten", "command"),
    [
        (r"\frac{1}{2}", "frac"),
        (r"\binom42", "binom"),
        (r"3\times 4", "times"),
        (r"\theta", "theta"),
        (r"\text{cm}", "text"),
        (r"\tan(x)", "tan"),
        (r"x\to 0", "to"),
        (r"\triangle ABC", "triangle"),
        (r"\right)", "right"),
        (r"a\rho", "rho"),
        (r"x\neq 3", "neq"),
        (r"\nabla f", "nabla"),
    ],
)
def test_latex_that_json_has_eaten_is_refused(field, eaten, command):
    text = json.loads(f'"Find {eaten}."')
    message = reasons_of({field: [text] if field == "rephrasings" else text})
    assert f"row 1, {field}: " in message
    assert "in JSON a backslash is written twice, \\\\" + command in message


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\x1b", "\x7f", "\ud800"])
def test_control_characters_and_half_characters_are_refused(character):
    assert f"{character!r} in " in reasons_of({"question": f"a{character}b"})


@pytest.mark.parametrize("text", ["a\tb", "x\to\tx", "is\tan apple", "one\ntwo", "a\r\nb", "a\r", "no\new", "\ttext"])
def test_plain_tabs_and_line_ends_are_kept(text):
    assert load_questions([{"question": text, "answer": "1"}])[0].question == text


# Answers that are none


def test_sentinel_answers_are_dropped_counted_and_logged(tmp_path, caplog):
    answers = ["4", "", None, "Proof", " N/A ", "no", "proof"]
    path = write_jsonl(
        tmp_path / "a.jsonl", *({"question": "q", "answer": answer} for answer in answers), {"question": "q"}
    )
    with caplog.at_level(logging.WARNING):
        questions = load_questions(path)
    assert [(question.id, question.answer) for question in questions] == [("a/1", "4"), ("a/6", "no")]
    assert sum(questions.dropped.values()) == 6
    assert questions.dropped["no answer"] == 3
    (record,) = caplog.records
    assert "6 of 8 rows have no final answer" in record.getMessage()
    assert "line 2, line 3, line 4, line 5, line 7, …" in record.getMessage()


def test_nothing_but_sentinels_is_an_error():
    assert "none of its 2 rows has a final answer" in refusal([{"question": "q", "answer": a} for a in ("proof", None)])


# Named sets


def test_an_unknown_name_lists_the_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal("tinny")
    assert "there is no file tinny" in message
    assert "tiny" in message
    assert "did you mean tiny?" in message


def test_named_sets_take_the_split_and_a_file_wins(tmp_path, monkeypatch):
    module = tmp_path / "made_up_sets.py"
    module.write_text(
        "from ta_grpo.questions import Question, QuestionSet\n"
        "def questions(split):\n"
        "    return QuestionSet([Question('1', split, '1')], name='made_up', prompt_template='Q: {question}')\n"
        "def plain(split):\n"
        "    return [Question('1', split, '1')]\n"
    )
    entries = metadata.EntryPoints(
        metadata.EntryPoint(name, f"made_up_sets:{function}", "ta_grpo.question_sets")
        for name, function in (("made_up", "questions"), ("bare.jsonl", "plain"))
    )
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: entries.select(**wanted))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_questions("made_up")[0].question == "train"
    assert load_questions("made_up/test")[0].question == "test"
    assert load_questions("made_up").prompt_template == "Q: {question}"
    assert load_questions("bare.jsonl/dev").name == "bare.jsonl/dev"
    assert "leave out the column names" in refusal("made_up", {"question": "q"})
    write_jsonl(tmp_path / "bare.jsonl", {"question": "of the file", "answer": "1"})
    assert load_questions("bare.jsonl")[0].question == "of the file"


# The set


def test_a_set_is_a_sequence_and_a_slice_is_a_set():
    questions = QuestionSet(
        [Question(str(i), "q", "1") for i in range(5)], "name", dropped={"no answer": 2}, prompt_template="{question}"
    )
    part = questions[1:3]
    assert isinstance(part, QuestionSet)
    assert [question.id for question in part] == ["1", "2"]
    assert (part.name, part.dropped, part.prompt_template) == ("name", {"no answer": 2}, "{question}")
    assert questions[-1].id == "4"
    assert questions[0] in questions


# Prompts


def test_the_question_is_put_in_literally():
    template = "{name} {question} \\boxed{}"
    text = "What is {question} in {0} of {{x}}?"
    assert question_prompt(text, template, False) == "{name} " + text + " \\boxed{}"
    assert question_prompt(text, template, True) == [{"role": "user", "content": "{name} " + text + " \\boxed{}"}]


@pytest.mark.parametrize("template", ["", "Solve.", "{question} {question}", "{Question}"])
def test_a_template_holds_the_question_once(template):
    for use in (
        check_prompt_template,
        lambda t: QuestionSet([], prompt_template=t),
        lambda t: as_train_rows([], t, True),
    ):
        with pytest.raises(UserError, match="must hold it once"):
            use(template)
    check_prompt_template(DEFAULT_PROMPT_TEMPLATE)


@pytest.mark.parametrize("conversational", [True, False])
def test_train_rows_have_one_type_of_prompt(conversational):
    (row,) = as_train_rows([Question("1", "q", "4", ("r", "s"))], "Q: {question}", conversational)
    expected = [[{"role": "user", "content": f"Q: {t}"}] if conversational else f"Q: {t}" for t in "qrs"]
    assert row == {"id": "1", "prompt": expected[0], "rephrasings": expected[1:], "answer": "4"}


def test_importing_needs_no_heavy_library():
    code = (
        "import sys, ta_grpo.questions; print([m for m in ('torch', 'pyarrow', 'pandas', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_sentinels_are_compared_without_case():
    assert all(sentinel == sentinel.casefold().strip() for sentinel in SENTINEL_ANSWERS)


def test_a_damaged_parquet_file_is_told_and_never_a_traceback(tmp_path):
    rows = [{"question": "Wie viele Äpfel?", "answer": "3", "note": {"a": None}}]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    content = path.read_bytes()
    path.write_bytes(content.replace("Äpfel".encode(), b"\xff\xffpfel"))
    assert "not a Parquet file that can be read" in refusal(path)
    metadata = {"ta_grpo": "json"}
    schema = pyarrow.schema([("question", "string"), ("answer", "string")]).append(
        pyarrow.field("note", pyarrow.string(), metadata=metadata)
    )
    pyarrow.parquet.write_table(pyarrow.table([["Why?"], ["1"], ["{"]], schema=schema), path)
    assert "row 1: broken JSON" in refusal(path)


def test_a_limit_reads_no_more_of_a_file_than_it_needs(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"question": "What is {n}?", "answer": "{n}"}}\n' for n in range(5)) + "not json\n")
    assert [question.answer for question in load_questions(path, limit=3)] == ["0", "1", "2"]
    assert load_questions(path, limit=3).path == path
    assert "line 6" in refusal(path)


def test_what_a_limit_has_left_out_on_its_way_is_told(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    answers = ["1", "null", "2", "proof", "3"]
    path.write_text("".join(f'{{"question": "What?", "answer": "{answer}"}}\n' for answer in answers))
    loaded = load_questions(path, limit=2)
    assert [question.answer for question in loaded] == ["1", "2"]
    assert loaded.dropped == dict.fromkeys(loaded.dropped, 1)
    assert len(loaded.dropped) == 1
    assert "1 of 3 rows have no final answer and are left out" in caplog.text
