"""Settings files and typed values: every mistake is named with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from ta_grpo.errors import UserError
from ta_grpo.settings import check_names, read_settings_file, typed_settings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "not valid YAML"),
        (b"- 1\n- 2\n", "must hold one 'setting: value' a line; got a list"),
        (b"1: 2\n", "must hold"),
        (b"a: \xff\n", r"not UTF-8 text \(byte 3\)"),
        (b"a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        (b"a: 1\nb: {c: 1, c: 2}\n", "'c' occurs twice; keep one"),
        (b"a: &x [1, 2]\nb: *x\n", r"the alias \*x: write its value out"),
        (b"a: " + b"9" * 5000, "not valid YAML"),
        (b"a: 2026-99-99", "not valid YAML"),
        (b"a: " + b"[" * 5000, "not valid YAML"),
    ],
)
def test_a_settings_file_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_settings_file(path)


def test_a_missing_settings_file_and_an_empty_one(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        read_settings_file(tmp_path / "run.yaml")
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert read_settings_file(tmp_path / "run.yaml") == {}
    with pytest.raises(UserError, match="is a directory"):
        read_settings_file(tmp_path)


def test_unknown_names_are_all_told_with_the_nearest():
    with pytest.raises(UserError) as error:
        check_names(["num_generation", "beta", "zzz"], ["num_generations", "beta"], "run.yaml")
    assert str(error.value) == (
        "run.yaml: unknown setting 'num_generation'; did you mean 'num_generations'?; unknown setting 'zzz'"
    )


TYPES: dict[str, Any] = {
    "whole": int,
    "rate": float,
    "flag": bool,
    "name": str,
    "maybe": int | None,
    "either": str | bool,
    "numbers": list[float] | None,
    "mapping": dict[str, Any] | str | None,
    "choice": Literal["a", "b"],
    "anything": Any,
    "place": Path,
}


@pytest.mark.parametrize(
    ("name", "value", "typed"),
    [
        ("whole", "3", 3),
        ("rate", "1e-6", 1e-6),
        ("rate", 1, 1.0),
        ("flag", "True", True),
        ("maybe", "null", None),
        ("maybe", "4", 4),
        ("either", "false", False),
        ("either", "auto", "auto"),
        ("numbers", "[1, 2.5]", [1.0, 2.5]),
        ("numbers", [1, "2"], [1.0, 2.0]),
        ("mapping", '{"use_reentrant": false}', {"use_reentrant": False}),
        ("choice", "b", "b"),
        ("anything", 2.5, 2.5),
        ("place", "runs/first", Path("runs/first")),
    ],
)
def test_values_take_the_type_of_their_setting(name, value, typed):
    result = typed_settings({name: value}, TYPES, "flag")[name]
    assert result == typed
    assert type(result) is type(typed)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("whole", 2.5, "whole must be a whole number; got 2.5"),
        ("whole", "2.5", "whole number"),
        ("whole", True, "whole number"),
        ("whole", None, "whole number"),
        ("rate", "fast", "rate must be a number"),
        ("rate", "nan", "number"),
        ("rate", True, "number"),
        ("flag", 1, "true or false"),
        ("flag", "yes", "true or false"),
        ("name", 3, "name must be text; got 3"),
        ("numbers", [1, "x"], "a list"),
        ("numbers", 3, "null or a list"),
        ("numbers", "[1,", "null or a list"),
        ("choice", "c", "choice must be one of a, b; got 'c'"),
        ("place", 3, "place must be"),
    ],
)
def test_values_of_another_type_are_refused(name, value, message):
    with pytest.raises(UserError, match=message):
        typed_settings({name: value}, TYPES, "run.yaml")


def test_all_wrong_types_are_told_at_once():
    with pytest.raises(UserError, match=r"whole must be.*; rate must be"):
        typed_settings({"whole": "x", "rate": "y"}, TYPES, "run.yaml")


def test_a_number_that_no_float_holds(tmp_path):
    with pytest.raises(UserError, match=r"rate must be a number; got 9+") as caught:
        typed_settings({"rate": 10**400 - 1}, {"rate": float}, where="x")
    assert len(str(caught.value)) < 200
