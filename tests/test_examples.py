"""Each example runs, on the embedded policy, as a user would start it."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from scripted_endpoint import scripted_endpoint
from ta_grpo.cli import main
from ta_grpo.questions import load_questions
from ta_grpo.rundir import read_jsonl

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "guides" / "trl.md"


def run(name: str, *words: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def difference() -> str:
    """The change of the TRL script, as the guide shows it."""
    before, after = ((EXAMPLES / name).read_text().splitlines()[2:] for name in SCRIPTS)
    return "\n".join(line for line in list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:])


SCRIPTS = ("grpo_with_trl.py", "ta_grpo_with_trl.py")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_trl_script_trains_before_and_after(tmp_path, name):
    assert "train_runtime" in run(name, str(tmp_path / "out"), cwd=tmp_path)


def test_the_guide_shows_the_change_as_it_is():
    assert difference() in GUIDE.read_text(encoding="utf-8")


def test_a_custom_transformation_is_checked(tmp_path):
    told = run("custom_transformation.py", "out.jsonl", cwd=tmp_path)
    assert "numbers:" in told
    (question,) = load_questions(tmp_path / "out.jsonl")
    assert question.rephrasings == ("How many pens does Ann have? A box holds 6 pens. Ann has 7 boxes.",)


def test_a_custom_template_is_taken(tmp_path, monkeypatch):
    from ta_grpo.rephrasing.transformations import Prompts

    prompts = Prompts(EXAMPLES / "prompts")
    assert "headline of its own" in prompts.rephrase("headline", "What is 1 + 1?").text


def test_an_endpoint_is_evaluated(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    with scripted_endpoint() as endpoint:
        told = run("evaluate_endpoint.py", endpoint.url, "model", str(tmp_path / "out"), cwd=tmp_path)
    assert "tiny_test pass@4:" in told


def test_one_group_is_walked_through(tmp_path):
    told = run("walk_through_one_group.py", cwd=tmp_path)
    table = told.partition("slot  sampled from")[2].splitlines()[1:]
    assert [row.split()[1] for row in table] == ["q_0", "q_0", "q_1", "q_1", "q_2", "q_2", "q_3", "q_3"]
    # Under its own prompt the ratio across prompts is 1, too.
    assert all(row.split()[6] == "1.00" for row in table[:2])


def test_words_in_order_are_rewarded_by_their_pairs():
    sys.path.insert(0, str(EXAMPLES))
    from word_order import in_order

    answer = ["amber, basket, candle"] * 4
    texts = ["amber, basket, candle", "basket, amber, candle", "no idea", [{"content": "Amber. Candle."}]]
    assert in_order(texts, answer) == [1.0, pytest.approx(2 / 3), 0.0, pytest.approx(1 / 3)]


def test_a_reward_of_ones_own_trains_by_its_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES)
    flags = {"--model": "tiny", "--output-dir": tmp_path / "run", "--max-steps": 1, "--num-generations": 8}
    small = {"--questions-per-step": 2, "--per-device-train-batch-size": 8, "--max-completion-length": 8}
    words = [str(word) for flag in (flags | small).items() for word in flag]
    assert main(["train", "--config", str(ROOT / "recipes" / "word_order.yaml"), *words]) == 0, capsys.readouterr().err
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert "rewards/in_order/mean" in line
