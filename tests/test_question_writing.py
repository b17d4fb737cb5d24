"""Question files that are written: round trips, refusals, and failed writes."""

from __future__ import annotations

from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ta_grpo.errors import UserError
from ta_grpo.questions import (
    Question,
    load_questions,
    save_questions,
)

ALL_SUFFIXES = [".jsonl", ".json", ".parquet", ".csv"]


def text(accepted=lambda text: True):
    return st.text(st.characters(codec="utf-8"), max_size=12).filter(accepted)


def loads_as(row):
    try:
        return len(load_questions([row])) == 1
    except UserError:
        return False


TEXT = text(lambda text: loads_as({"question": text, "answer": "1"}))
ANSWER = text(lambda text: loads_as({"question": "q", "answer": text}))
ID = text(lambda text: loads_as({"question": "q", "answer": "1", "id": text}))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text(), inner, max_size=2),
    max_leaves=4,
)
EXTRA = st.dictionaries(
    st.sampled_from(["level", 'größe, "x"', "n"]) | text(lambda name: bool(name) and name != "rephrasing_info"),
    JSON,
    max_size=3,
).filter(lambda extra: not extra.keys() & {"id", "question", "answer", "rephrasings", "source"})


@st.composite
def question_lists(draw):
    ids = draw(st.lists(ID, min_size=1, max_size=3, unique=True))
    return [
        Question(
            question_id,
            draw(TEXT),
            draw(ANSWER),
            tuple(f"{i}: {words}" for i, words in enumerate(draw(st.lists(TEXT, max_size=2)))),
            draw(st.just("") | TEXT),
            draw(EXTRA),
        )
        for question_id in ids
    ]


@pytest.mark.parametrize("suffix", ALL_SUFFIXES)
def test_round_trip_is_exact(tmp_path_factory, suffix):
    path = tmp_path_factory.mktemp("round") / f"a{suffix}"

    @given(question_lists())
    def round_trip(questions):
        save_questions(questions, path)
        loaded = list(load_questions(path))
        assert loaded == questions
        assert [repr(question) for question in loaded] == [
            repr(replace(q, extra={k: q.extra[k] for k in got.extra})) for q, got in zip(questions, loaded, strict=True)
        ]

    round_trip()


@pytest.mark.parametrize("suffix", ALL_SUFFIXES)
def test_rephrasing_info_travels_along(tmp_path, suffix):
    info = [{"model": "m", "checks": ["a"]}, {"model": "n", "checks": []}]
    question = Question("1", "q", "1", ("r", "s"), extra={"rephrasing_info": info, "score": 0.25})
    save_questions([question], tmp_path / f"a{suffix}")
    assert list(load_questions(tmp_path / f"a{suffix}")) == [question]


def test_plain_columns_stay_native_in_parquet(tmp_path):
    save_questions([Question("1", "q", "1", extra={"level": 3, "tags": ["a"]})], tmp_path / "a.parquet")
    schema = pyarrow.parquet.read_schema(tmp_path / "a.parquet")
    assert schema.field("level").type == pyarrow.int64()
    assert schema.field("tags").type == pyarrow.list_(pyarrow.string())


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Question("1", "a\ud800", "1"), "question: holds half a character, the lone surrogate '\\ud800'"),
        (Question("1", "q", "1", extra={"note": ["\udfff"]}), "note: holds half a character"),
        (Question("1", "q", "1", extra={"when": object()}), "when: cannot be written"),
        (Question("1", "q", "1", extra={"answer": 1}), "extra: 'answer' cannot name an extra column"),
        (Question("1", "q", "proof"), "answer: 'proof' means that there is none"),
        (Question("1", "q", "1", ("q",)), "rephrasings: number 1 is a copy of the question"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, question, reason):
    for suffix in ALL_SUFFIXES:
        with pytest.raises(UserError) as caught:
            save_questions([question, Question("2", "q", "1")], tmp_path / f"a{suffix}")
        assert f"question '1', {reason}" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_save_refuses_duplicate_ids_no_questions_and_unknown_suffixes(tmp_path):
    with pytest.raises(UserError, match="2 questions have it"):
        save_questions([Question("1", "q", "1"), Question("1", "r", "1")], tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="no questions"):
        save_questions([], tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"\.jsonl, \.json, \.parquet, \.csv; got \.txt"):
        save_questions([Question("1", "q", "1")], tmp_path / "a.txt")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "sub" / "a.jsonl"
    save_questions([Question("1", "q", "1")], path)
    before = path.read_bytes()

    def no_space(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        save_questions([Question("2", "r", "2")], path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
