"""The report: what it says of runs and experiments, which rollouts it shows, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_runs import rows_of, write_results, write_run
from ta_grpo.cli import main
from ta_grpo.report import rollouts
from ta_grpo.report.reading import read_source
from ta_grpo.report.rollouts import STATES, Group, choose, scan, script_safe_json

ARMS = ["grpo-matched", "rephrased-data", "ta-own-prompt", "ta-grpo"]


def text_of(page: Path) -> str:
    """What a reader sees, without scripts, styles and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


# What it is made from.


def test_an_experiment_of_which_only_results_are_there(tmp_path, capsys):
    place = write_results(tmp_path / "experiment", ARMS, seeds=3, sets=("tiny_test", "tiny_ood"))
    (place / "results" / "ta-grpo_seed_2.json").unlink()
    assert main(["report", str(place)]) == 0
    shown, text = capsys.readouterr().out, text_of(place / "report.html")
    assert f"Report: {place / 'report.html'}" in shown
    assert "ta-grpo against grpo-matched (data + pooling + anchoring)" in text
    assert "results of ta-grpo seed 2" in text
    assert f"ta-grpo compare EXPERIMENT.yaml --output-dir {place} --resume" in text
    assert "of all 11 runs: only their results are here" in text
    names = {path.name for path in (place / "figures").iterdir()}
    for figure in ("differences_tiny_test", "differences_tiny_ood", "pass_at_k_tiny_test", "pass_at_k_tiny_ood"):
        assert {f"{figure}.png", f"{figure}.svg"} <= names
    # The numbers are those of the verb compare.
    from ta_grpo.controls.results import compare_arms

    settings = read_source([place]).experiment
    assert settings is not None
    gap = compare_arms(settings).differences["tiny_ood"]["ta-own-prompt", "rephrased-data"][4]
    assert f"ta-own-prompt − rephrased-data pooling pass@4 {100 * gap.difference:+.1f}".replace(
        "-", "−"
    ) in text.replace("-", "−")
    assert f"{gap.seeds} seeds × {gap.problems} questions" in text
    assert "12,800" in text


def test_seeds_that_were_run_elsewhere_count(tmp_path):
    write_results(tmp_path / "all", ARMS, seeds=4)
    write_results(tmp_path / "half", ARMS, seeds=2)
    for path in (tmp_path / "all" / "results").iterdir():
        shutil.copy(path, tmp_path / "half" / "results" / path.name)
    source = read_source([tmp_path / "half"])
    assert source.experiment is not None
    assert source.experiment.seeds == [0, 1, 2, 3]


def test_an_experiment_that_was_run_in_two_parts(tmp_path, capsys):
    write_results(tmp_path / "whole", ARMS[:2], seeds=2)
    for part, seed in (("a", 0), ("b", 1)):
        shutil.copytree(tmp_path / "whole", tmp_path / part)
        for path in (tmp_path / part / "results").glob(f"*_seed_{1 - seed}.json"):
            path.unlink()
    place = tmp_path / "out"
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--output-dir", str(place)]) == 0
    assert main(["report", str(tmp_path / "whole"), "--output-dir", str(tmp_path / "whole_out")]) == 0
    for figure in ("differences_tiny_test.svg", "pass_at_k_tiny_test.svg"):
        assert (place / "figures" / figure).read_bytes() == (tmp_path / "whole_out" / "figures" / figure).read_bytes()
    assert "results of" not in text_of(place / "report.html")  # of none that is missing
    capsys.readouterr()
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "whole"), "--output-dir", str(place)]) == 2
    assert "both hold a result of grpo-matched seed 0" in capsys.readouterr().err
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps(config | {"max_steps": 7}))
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--output-dir", str(place)]) == 2
    assert "different settings" in capsys.readouterr().err


def test_runs_side_by_side(tmp_path, capsys):
    for name, phrasings, each in (("plain", 1, 8), ("expanded", 4, 2)):
        write_run(tmp_path / name, phrasings=phrasings, each=each, steps=30)
        (tmp_path / name / "checkpoint-30").mkdir()
    words = ["report", str(tmp_path / "plain"), str(tmp_path / "expanded"), "--output-dir", str(tmp_path / "out")]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["page"]) == tmp_path / "out" / "report.html"
    text = text_of(tmp_path / "out" / "report.html")
    assert f"ta-grpo eval {tmp_path / 'plain'} --benchmarks SET" in text
    assert f"ta-grpo diagnose {tmp_path / 'plain'}" in text
    assert "6 questions a step, mean of 3 steps at a time; one seed" in text
    assert {path.stem for path in (tmp_path / "out" / "figures").iterdir()} == {
        "mixed_share",
        "diversity",
        "reward",
        "reward_original",
    }
    # As many responses: matched. And the same again is the same file.
    assert "1,440 28,800 28,800 30 30 yes" in text.replace("180 1,440", "1,440")
    page = (tmp_path / "out" / "report.html").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "out" / "report.html").read_bytes() == page
    svg = (tmp_path / "out" / "figures" / "reward.svg").read_text()
    assert "training step</text>" in svg  # text is text


def test_diagnostics_are_shown(tmp_path):
    run = write_run(tmp_path / "run")
    figures = {
        f"phrasing_{n}/gap": {"mean": 0.1 * n, "low": 0.08 * n, "high": 0.13 * n, "confidence": 0.95, "n": 16}
        for n in (1, 2, 3)
    } | {"equal_budget/diversity/all/cosine_distance": {"mean": 0.2, "low": None, "high": None, "n": 1}}
    checkpoint = {"checkpoint": "checkpoint-4", "step": 4, "num_questions": 16, "figures": figures}
    finding = {"name": "gap", "checkpoint": "checkpoint-4", "text": "far <b>away</b>", "figures": {}}
    (run / "diagnostics.json").write_text(json.dumps({"checkpoints": [checkpoint], "findings": [finding]}))
    assert main(["report", str(run), "--rollouts", "0"]) == 0
    assert {"surrogate_gap", "distance_on_probe"} <= {path.stem for path in (run / "figures").iterdir()}
    page = (run / "report.html").read_text("utf-8")
    assert "far &lt;b&gt;away&lt;/b&gt;" in page
    assert "They were left out with <code>--rollouts 0</code>" in page
    assert "<script" not in page


REFUSED = {
    "nothing": ([], "name a run"),
    "no directory": (["nowhere"], "is no directory"),
    "something else": (["other"], "neither a run nor an experiment"),
    "two runs": (["a", "b"], "--output-dir is missing"),
    "twice": (["a", "a", "--output-dir", "out"], "named twice"),
    "beside an experiment": (["experiment", "a"], "leave those out"),
    "against": (["a", "b", "--output-dir", "out", "--against", "c"], "name one of a, b"),
    "against in an experiment": (["experiment", "--against", "a"], "--against is for runs"),
    "no results": (["begun"], "holds no results yet"),
    "damaged": (["damaged"], "cannot be read"),
    "a file": (["a", "--output-dir", "file"], "is a file"),
    "count": (["a", "--rollouts", "-1"], "must be 0 or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_reported_is_told_with_its_fix(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "damaged"):
        write_run(Path(name), steps=1)
    next(Path("damaged/rollouts").iterdir()).write_text("no Parquet")
    write_results(Path("experiment"), ARMS[:2], seeds=1)
    write_results(Path("begun"), ARMS[:2], seeds=0 + 1)
    for path in Path("begun/results").iterdir():
        path.unlink()
    Path("other").mkdir()
    Path("file").touch()
    words, message = REFUSED[case]
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()


# Which rollouts are shown.


def group(number: int, states: set[str], size: int = 16, run: int = 0, characters: int = 100) -> Group:
    return Group(run, number // 8, number % 8, f"q{number}", "?", size, 1, frozenset(states), characters, 0.5)


def test_groups_know_their_state_from_the_rewards(tmp_path):
    run = write_run(tmp_path / "run", steps=6)
    groups = list(scan(0, read_source([run]).runs[0], sample=4))
    assert len(groups) == 36
    assert {state for each in groups for state in each.states} == set(STATES) - {"unscored"}
    by_hand = [
        {row["reward"] for row in rows_of(run)[start : start + 16]} == {0.0, 1.0} for start in range(0, 36 * 16, 16)
    ]
    assert ["mixed" in each.states for each in groups] == by_hand


def test_every_filter_has_examples_whatever_is_left_out():
    groups = [group(number, {"mixed"}, run=number // 2000) for number in range(4000)]
    rare = {"timed_out": 1777, "truncated": 2345, "all_wrong": 3990, "no_answer": 5}
    for state, number in rare.items():
        groups[number] = group(number, {state}, run=number // 2000)
    chosen = choose(groups, 6_000)
    assert set(rare) <= {state for each in chosen.in_page for state in each.states}
    assert sum(each.size for each in chosen.in_page) == 4_992  # whole groups of 16, not above 5,000
    assert sum(each.size for part in chosen.in_files for each in part) == 1_008
    assert (chosen.rollouts, chosen.rollouts_there, chosen.groups_there) == (6_000, 64_000, 4_000)
    runs = [each.run for each in chosen.in_page]
    assert abs(runs.count(0) - runs.count(1)) < 10
    steps = [each.step for each in chosen.in_page if each.run == 0]
    assert (min(steps), max(steps)) == (0, 249)


def test_long_responses_fill_the_page_sooner():
    chosen = choose([group(number, {"mixed"}, characters=500_000) for number in range(100)], 100_000)
    assert len(chosen.in_page) == 16
    assert sum(map(len, chosen.in_files)) == 84
    assert all(len(part) <= 8 for part in chosen.in_files)
    assert choose([], 100).groups == []
    alone = choose([group(0, {"mixed"}, size=9_000, characters=90_000_000)], 10_000)
    assert [len(part) for part in alone.in_files] == [1]


@given(st.recursive(st.text() | st.none() | st.integers(), st.lists, max_leaves=5))
def test_any_text_can_stand_in_a_script(content):
    safe = script_safe_json(content)
    assert not re.search("[<>&\u2028\u2029]", safe)
    assert json.loads(safe) == content


def test_questions_without_ids_and_rewards_of_several_functions(tmp_path):
    run = write_run(tmp_path / "run", steps=1)
    path = run / "rollouts" / "step_00001.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    rows = [row | {"id": None, "reward/format": 0.5, "reward": float("inf") if not i else row["reward"]}
            for i, row in enumerate(rows)]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    source = read_source([run])
    groups = list(scan(0, source.runs[0], 4))
    assert groups[0].question_id.startswith("set/0")
    told = json.loads(script_safe_json(rollouts.contents_of(groups, source.runs)))
    assert told["groups"][0][2] == ["accuracy_reward", "format"]
    assert told["groups"][0][1][0][1] == "inf"


def test_groups_of_different_sizes_are_read_whole(tmp_path):
    """As adaptive_rephrasings leaves them; their rows add up to whole groups all the same."""
    run = write_run(tmp_path / "run", steps=1, questions=4)
    path = run / "rollouts" / "step_00001.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[:8] + rows[16:28] + rows[32:44]), path)
    assert [each.size for each in scan(0, read_source([run]).runs[0], 4)] == [8, 12, 12]
