"""The verb check: what is wrong with a rephrased file, in our layout and in others'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rephrasing_endpoint import WORDINGS, questions
from ta_grpo.cli import main
from ta_grpo.questions import Question
from ta_grpo.rephrasing.audit import audit
from ta_grpo.rephrasing.importers import load_rephrased
from ta_grpo.rephrasing.overlap import OverlapIndex


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rephrased(count: int = 3) -> list[dict[str, Any]]:
    rows = questions(count)
    for number, row in enumerate(rows):
        a, b = 11 + 7 * number, 12 + 5 * number
        row["rephrasings"] = [wording.format(a=a, b=b) for wording in WORDINGS[:3]]
    return rows


def check(capsys, *words: str) -> tuple[int, Any, str]:
    code = main(["check", *words, "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else None, shown.err


def test_a_good_file_passes(tmp_path, capsys):
    path = write(tmp_path / "q.jsonl", rephrased())
    code, found, _ = check(capsys, str(path))
    assert (code, found["failed"], found["questions"], found["rephrasings"]) == (0, False, 3, 9)
    assert main(["check", str(path)]) == 0
    assert "Nothing is wrong" in capsys.readouterr().out


def test_everything_that_is_wrong_is_told_at_once(tmp_path, capsys):
    rows = rephrased(4)
    rows[0]["rephrasings"][1] = rows[0]["rephrasings"][1].replace("11", "12")
    rows[1]["answer"] = "\\frac{1}{"
    rows[2]["question"] = rows[3]["question"].upper() + " "
    rows[2]["rephrasings"] = []
    path = write(tmp_path / "q.jsonl", rows)
    code, found, _ = check(capsys, str(path))
    assert code == 1
    assert {(f["id"], f["rephrasing"], f["check"]) for f in found["rejected"]} == {("q0", 2, "numbers")}
    assert [f["id"] for f in found["answers"]] == ["q1"]
    assert [(f["id"], f["other_id"]) for f in found["duplicates"]] == [("q3", "q2")]
    assert (found["rephrasings_rejected"], found["by_check"]) == (1, {"numbers": 1})
    assert main(["check", str(path), "--show", "1"]) == 1
    shown = capsys.readouterr().out
    for told in ("q0, rephrasing 2: numbers", "q1: ", "q3 and q2", "Something is wrong"):
        assert told in shown
    code, found, _ = check(capsys, str(path), "--skip-checks", "numbers")
    assert found["rejected"] == []
    code, found, _ = check(capsys, str(path), "--limit", "1", "--checks", "copy,leak")
    assert (code, found["questions"]) == (0, 1)


def test_overlap_with_a_benchmark_is_told_with_both_texts(tmp_path, capsys):
    path = write(tmp_path / "q.jsonl", rephrased())
    theirs = [{"question": WORDINGS[1].format(a=18, b=17) + " Write a number.", "answer": "35"}]
    theirs += [
        {"question": "What is the sum of the first hundred odd numbers that are no primes at all?", "answer": "5"}
    ]
    other = write(tmp_path / "bench.jsonl", theirs)
    aime = write(tmp_path / "aime.jsonl", [{"question": "Find the sum of all n.", "answer": "70"}])
    code, found, _ = check(capsys, str(path), "--against", f"{other},aime24={aime}")
    assert code == 1
    (pair,) = found["overlaps"]
    assert (pair["id"], pair["rephrasing"], pair["benchmark"]) == ("q1", 2, "bench")
    assert pair["benchmark_text"] == theirs[0]["question"]
    assert pair["share"] == 1.0
    assert found["benchmarks"] == {"bench": 2, "aime24": 1}
    assert main(["check", str(path), "--against", str(other)]) == 1
    shown = capsys.readouterr().out
    assert theirs[0]["question"][:60] in shown.replace("\n", " ")
    assert "overlap with bench (2)" in shown
    assert main(["check", str(path), "--against", str(aime)]) == 0


def test_overlap_counts_runs_of_words_of_the_shorter_text():
    index = OverlapIndex(ngram=3)
    index.add("b", [Question("x", "one two three four five six", "1"), Question("y", "Too short", "1")])
    (shared,) = index.find("zero, ONE two; three four. nine ten eleven")
    assert (shared.id, shared.share) == ("x", 2 / 4)
    assert index.find("zero one two three nine ten eleven", share=0.5) == []
    assert [shared.id for shared in index.find("too  short!")] == ["y"]
    assert index.find("too short to be the same") == []
    assert index.find("...") == []


def test_copies_within_a_question_are_the_checks_to_reject():
    text = WORDINGS[0].format(a=1, b=2)
    found = audit([Question("q", "Tom has 1 apple and buys 2. How many has he?", "3", (text, text))])
    assert [(f["rephrasing"], f["check"]) for f in found.rejected] == [(2, "copy")]
    assert not found.duplicates


def a9_rows() -> list[dict[str, Any]]:
    rows = [
        {"index": number, "sub_index": sub, "question": text, "answer": row["answer"]}
        for number, row in enumerate(rephrased(2))
        for sub, text in enumerate([row["question"], *row["rephrasings"]])
    ]
    return [*reversed(rows), {"index": 9, "sub_index": 0, "question": "", "answer": ""}]


def test_the_authors_layout(tmp_path, capsys):
    path = write(tmp_path / "a9.jsonl", a9_rows())
    imported = load_rephrased(str(path))
    by_id = {question.id: question for question in imported.questions}
    assert by_id["a9/0"].question == questions(1)[0]["question"]
    assert by_id["a9/0"].rephrasings == tuple(rephrased(1)[0]["rephrasings"])
    assert imported.left_out == {"no question (padding)": 1}
    code, found, _ = check(capsys, str(path))
    assert (code, found["layout"], found["questions"], found["rephrasings"]) == (0, "math-a9-u", 2, 6)


def test_the_authors_layout_with_faults(tmp_path, capsys):
    rows = [row for row in a9_rows() if (row["index"], row["sub_index"]) != (0, 0)]
    rows[0]["answer"] = "7"
    rows.append({"index": 5, "sub_index": "x", "question": "Why?", "answer": "1"})
    code, found, _ = check(capsys, str(write(tmp_path / "a9.jsonl", rows)))
    assert code == 1
    told = "\n".join(found["problems"])
    for problem in ("the original (sub_index 0) is missing", "its rows answer", "sub_index is no number"):
        assert problem in told


def metamath_rows() -> list[dict[str, Any]]:
    (row,) = rephrased(1)
    rows = [
        {
            "query": text,
            "original_question": row["question"],
            "response": "11 + 12 = 23\n#### 23\nThe answer is: 23",
            "type": "GSM_Rephrased",
        }
        for text in row["rephrasings"]
    ]
    rows.append(rows[0] | {"response": "Together \\boxed{23}"})
    rows.append(rows[0] | {"type": "GSM_AnsAug", "query": row["question"]})
    rows.append(rows[0] | {"type": "GSM_FOBAR", "query": "If the answer is 23, what is x?"})
    return rows


def test_metamaths_layout(tmp_path, capsys):
    path = write(tmp_path / "mm.jsonl", metamath_rows())
    code, found, _ = check(capsys, str(path))
    assert (code, found["layout"], found["questions"], found["rephrasings"]) == (0, "metamath", 1, 3)
    assert found["left_out"] == {"type GSM_AnsAug": 1, "type GSM_FOBAR": 1, "the same query once more": 1}
    (question,) = load_rephrased(str(path), "metamath").questions
    assert (question.answer, question.question) == ("23", questions(1)[0]["question"])
    rows = metamath_rows()
    rows[1]["response"] = "The answer is: 24"
    code, found, _ = check(capsys, str(write(tmp_path / "mm2.jsonl", rows)))
    assert code == 1
    assert "its rows answer 23 and 24" in found["problems"][0]


def test_columns_of_another_name(tmp_path, capsys):
    rows = [{"problem": r["question"], "final": r["answer"], "others": r["rephrasings"]} for r in rephrased()]
    path = write(tmp_path / "q.jsonl", rows)
    words = ["--columns.question", "problem", "--columns.answer", "final", "--columns.rephrasings", "others"]
    code, found, _ = check(capsys, str(path), *words)
    assert (code, found["rephrasings"]) == (0, 9)


BAD = {
    "no such file": (["nowhere.jsonl"], "nowhere.jsonl"),
    "bad rows": (["bad.jsonl"], "line 2"),
    "unknown layout": (["q.jsonl", "--layout", "a9"], "use questions, math-a9-u, metamath"),
    "other layout": (["q.jsonl", "--layout", "metamath"], "needs the column 'query'"),
    "layout of a set": (["tiny/test", "--layout", "metamath"], "name a file"),
    "unknown check": (["q.jsonl", "--checks", "number"], "did you mean numbers"),
    "unknown benchmark": (["q.jsonl", "--against", "aime42"], "aime42"),
    "missing benchmark file": (["q.jsonl", "--against", "aime24=nowhere.jsonl"], "nowhere.jsonl"),
    "no run": (["q.jsonl", "--ngram", "0"], "--ngram=0"),
    "too much overlap": (["q.jsonl", "--overlap", "1.5"], "--overlap=1.5"),
    "mistyped flag": (["q.jsonl", "--limit", "few"], "whole number"),
    "nothing in it": (["padding.jsonl"], "holds no question with an answer"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_request_is_told_and_ends_with_2(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "q.jsonl", rephrased())
    write(tmp_path / "padding.jsonl", a9_rows()[-1:])
    (tmp_path / "bad.jsonl").write_text('{"question": "x", "answer": "1"}\n{"question"\n')
    words, told = BAD[case]
    code, found, err = check(capsys, *words)
    assert (code, found) == (2, None)
    assert told in err
    assert "Traceback" not in err
