"""Arms at equal compute: what each differs in, what it spends, and what may be said of the differences."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ta_grpo.cli import main
from ta_grpo.controls.arms import ARMS, CHAIN, Shape
from ta_grpo.controls.experiment import ExperimentSettings, train_settings
from ta_grpo.errors import UserError
from ta_grpo.questions import load_questions
from ta_grpo.statistics import compare_over_seeds, interval_over_seeds

SHAPE = Shape(num_rephrasings=3, generations_per_phrasing=2, questions_per_step=2, max_steps=2)
EXPERIMENT = """
model: tiny
questions: tiny/train
arms: [grpo-matched, ta-grpo]
seeds: [0, 1]
num_rephrasings: 3
generations_per_phrasing: 2
questions_per_step: 2
max_steps: 2
limit: 20
benchmarks: [tiny/test]
eval_limit: 6
num_samples: 4
learning_rate: 2.0e-4
per_device_train_batch_size: 2
max_completion_length: 40
gradient_checkpointing: false
"""


def settings(tmp_path: Path, **changes) -> ExperimentSettings:
    values = {
        "model": "tiny",
        "questions": "tiny/train",
        "benchmarks": "tiny/test",
        "output_dir": tmp_path,
        "num_rephrasings": 3,
        "generations_per_phrasing": 2,
        "questions_per_step": 2,
        "max_steps": 2,
        "limit": 20,
    }
    return ExperimentSettings(**(values | changes))


# What the arms are.


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_request_that_train_takes(tmp_path, arm):
    from ta_grpo.trl.training import batch_arithmetic, read_questions, trainer_config, with_typed_trl

    asked = with_typed_trl(train_settings(settings(tmp_path), arm, 7, tmp_path / "run"))
    counts = batch_arithmetic(trainer_config(asked), read_questions(asked))
    assert asked.seed == 7
    expected = {"grpo": 2 * 2 * 2, "grpo-data": 5 * 2 * 2}.get(arm, 2 * 2 * 8)
    assert counts.completions == expected


def test_each_step_of_the_chain_changes_one_thing():
    matched, data, pooled, anchored, positive = (dict(ARMS[arm].settings(SHAPE)) for arm in CHAIN)
    assert matched == {"num_rephrasings": 0, "num_generations": 8}
    # As many groups of G as there are phrasings: the same completions, other questions.
    assert data == {"num_rephrasings": 0, "num_generations": 2, "questions_per_step": 8}
    assert pooled == {"num_rephrasings": 3, "num_generations": 8, "ratio_anchor": "sampled"}
    assert anchored == {"num_rephrasings": 3, "num_generations": 8}
    assert positive == anchored | {"off_prompt_negatives": "drop"}
    assert [ARMS[arm].questions is not None for arm in CHAIN] == [False, True, False, False, False]


def test_rephrased_data_makes_every_phrasing_a_question_of_its_own(tmp_path):
    asked = train_settings(settings(tmp_path, num_rephrasings=2), "rephrased-data", 0, tmp_path / "run")
    made, source = load_questions(asked.questions), load_questions("tiny/train")[:20]
    assert len(made) == 20 * 3
    assert made[0].question == source[0].question
    assert [q.question for q in made[1:3]] == list(source[0].rephrasings[:2])
    assert {q.answer for q in made[:3]} == {source[0].answer}
    assert all(not q.rephrasings for q in made)
    assert asked.prompt_template == source.prompt_template


def test_settings_of_train_and_trl_have_their_types(tmp_path):
    from ta_grpo.trl.training import trainer_config, with_typed_trl

    asked = settings(tmp_path, train={"learning_rate": "1e-4", "top_k": "5"})
    config = trainer_config(with_typed_trl(train_settings(asked, "ta-grpo", 0, tmp_path / "run")))
    assert (config.learning_rate, config.top_k) == (1e-4, 5)


def test_more_questions_for_grpo_data(tmp_path):
    asked = train_settings(settings(tmp_path), "grpo-data", 0, tmp_path / "run")
    assert (asked.limit, asked.max_steps, asked.num_generations) == (50, 5, 2)


def test_the_recipe_is_an_experiment(tmp_path, capsys):
    recipe = Path(__file__).parent.parent / "recipes" / "tiny_controls.yaml"
    assert main(["compare", str(recipe), "--output-dir", str(tmp_path / "x"), "--dry-run", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert len(jobs) == 6 * 8
    assert {job["completions"] for job in jobs} == {12_800}
    assert not (tmp_path / "x").exists()


# Statistics over seeds.


def test_an_interval_over_seeds_and_problems_is_wider_than_over_problems_alone():
    rng = np.random.default_rng(0)
    values_SQ = rng.random((5, 200)) + rng.normal(0, 0.3, (5, 1))
    both = interval_over_seeds(values_SQ)
    problems = interval_over_seeds(values_SQ.mean(axis=0, keepdims=True))
    assert both.mean == pytest.approx(values_SQ.mean())
    assert both.low < problems.low < both.mean < problems.high < both.high


def test_the_interval_of_a_crossed_design_covers_the_truth():
    """Seed and problem effects of known size: 95 % intervals hold the true mean in most of 200 experiments."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        values = rng.normal(0, 1, (8, 1)) + rng.normal(0, 1, (1, 50)) + rng.normal(0, 1, (8, 50))
        interval = interval_over_seeds(values, resamples=499)
        held += interval.low <= 0 <= interval.high
    assert 160 <= held <= 200


def test_degenerate_intervals():
    assert np.isnan(interval_over_seeds([[0.5]]).low)
    constant = interval_over_seeds([[1.0, 1.0], [1.0, 1.0]])
    assert (constant.mean, constant.low, constant.high) == (1, 1, 1)
    for bad in ([0.5], [[]], [[float("nan")]]):
        with pytest.raises(ValueError, match="finite"):
            interval_over_seeds(bad)
    with pytest.raises(ValueError, match="same seeds"):
        compare_over_seeds([[1.0]], [[1.0, 2.0]])


def test_the_p_value_is_that_of_all_sign_flips_of_the_seeds():
    a_SQ = np.array([[0.9, 0.5], [0.8, 0.6], [0.7, 0.2], [0.9, 0.9]])
    b_SQ = np.array([[0.5, 0.4], [0.7, 0.5], [0.6, 0.5], [0.1, 0.9]])
    compared = compare_over_seeds(a_SQ, b_SQ)
    difference_S = (a_SQ - b_SQ).mean(axis=1)
    flips = np.array(list(itertools.product((1, -1), repeat=4)))
    means = np.abs((flips * difference_S).mean(axis=1))
    assert compared.p_value == pytest.approx(np.mean(means >= abs(difference_S.mean()) - 1e-12))
    assert compared.difference == pytest.approx(difference_S.mean())
    assert compared.lowest_p == 0.125
    assert (compared.seeds, compared.problems) == (4, 2)


# The verb.


def run(place: Path, *words: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    """``ta-grpo compare``, killed where a result file of that name is about to be written."""
    script = (
        "import os, signal, sys\n"
        "from ta_grpo.controls import experiment\n"
        "write = experiment.write_json_atomic\n"
        "def killing(path, content):\n"
        "    if os.environ['KILL_AT'] == path.name: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write(path, content)\n"
        "experiment.write_json_atomic = killing\n"
        "from ta_grpo.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, "compare", "experiment.yaml", "--output-dir", "out", *words],
        cwd=place,
        env=os.environ | {"KILL_AT": kill_at},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_two_arm_two_seed_miniature_killed_in_between_and_resumed(tmp_path):
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    killed = run(tmp_path, kill_at="ta-grpo_seed_0.json")
    assert killed.returncode == -9, killed.stderr
    results = tmp_path / "out" / "results"
    assert [path.name for path in results.iterdir()] == ["grpo-matched_seed_0.json"]
    first = (results / "grpo-matched_seed_0.json").read_bytes()
    assert run(tmp_path).returncode == 2  # used: --resume
    resumed = run(tmp_path, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert (results / "grpo-matched_seed_0.json").read_bytes() == first
    shown = json.loads(resumed.stdout)
    assert shown["seeds"] == {"grpo-matched": [0, 1], "ta-grpo": [0, 1]}
    assert shown["budgets"]["ta-grpo"]["responses"] == 2 * 2 * 8
    assert shown["budgets"]["ta-grpo"]["updates"] == 2
    assert shown["matched"] == {"grpo-matched": True, "ta-grpo": True}
    (pair,) = shown["differences"]["tiny_test"]
    assert pair == "ta-grpo - grpo-matched"
    gap = shown["differences"]["tiny_test"][pair]["1"]
    stored = {path.stem: json.loads(path.read_text())["evaluations"] for path in results.iterdir()}
    by_hand = [
        sum(stored[f"{arm}_seed_{seed}"]["tiny_test"]["correct"].values()) / (6 * 4)
        for arm in ("ta-grpo", "grpo-matched")
        for seed in (0, 1)
    ]
    assert gap["difference"] == pytest.approx((by_hand[0] + by_hand[1] - by_hand[2] - by_hand[3]) / 2)
    assert gap["lowest_p"] == 0.5
    assert any("no p-value can be below 0.5" in warning for warning in shown["warnings"])
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == shown
    # A result that was copied from another machine counts as done; one of another experiment is refused.
    result = json.loads(first)
    (results / "grpo-matched_seed_0.json").write_text(json.dumps(result | {"experiment": "another"}))
    other = run(tmp_path, "--resume")
    assert other.returncode == 2
    assert "another experiment" in other.stderr or "other settings" in other.stderr


def test_only_some_arms_run_here(tmp_path, capsys):
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    words = ["compare", str(tmp_path / "experiment.yaml"), "--output-dir", str(tmp_path / "out")]
    assert main([*words, "--only", "ta-grpo:1"]) == 0
    shown = capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out" / "results").iterdir()] == ["ta-grpo_seed_1.json"]
    assert "ta-grpo" in shown
    assert "budgets" in shown


BAD = {
    "missing file": (["nowhere.yaml"], "there is no file"),
    "unknown arm": (["experiment.yaml", "--arms", "ta-gpro"], "did you mean 'ta-grpo'"),
    "seeds": (["experiment.yaml", "--seeds", "one"], "whole numbers"),
    "twice": (["experiment.yaml", "--seeds", "1,1"], "each named once"),
    "only": (["experiment.yaml", "--only", "ta-pull"], "no arm"),
    "decided by arms": (["experiment.yaml", "--train.num_generations", "4"], "the arms decide"),
    "mistyped for train": (["experiment.yaml", "--train.learning_rate", "fast"], "learning_rate must be"),
    "unknown setting": (["typo.yaml"], "did you mean 'max_steps'"),
    "no set": (["experiment.yaml", "--benchmarks", ""], "--benchmarks is missing"),
    "size": (["experiment.yaml", "--max-steps", "0"], "must be 1 or more"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_experiment_is_told_with_its_fix(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    (tmp_path / "typo.yaml").write_text(EXPERIMENT.replace("max_steps", "max_step"))
    words, message = BAD[case]
    assert main(["compare", words[0], "--output-dir", "out", *words[1:]]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def made_up_results(asked: ExperimentSettings, responses: dict[str, int], least: dict[str, int]) -> None:
    """Result files of arms that have spent so many responses and have at least so many of four samples right."""
    rng = np.random.default_rng(0)
    for arm in responses:
        for seed in asked.seeds:
            path = asked.result_file(arm, seed)
            path.parent.mkdir(exist_ok=True)
            budget = dict.fromkeys(("questions", "tokens_generated", "tokens_trained", "updates", "seconds"), 1)
            correct = {f"q{i}": int(rng.integers(least.get(arm, 0), 5)) for i in range(30)}
            path.write_text(
                json.dumps(
                    {
                        "experiment": asked.digest(),
                        "budget": budget | {"responses": responses[arm]},
                        "evaluations": {"set": {"num_samples": 4, "correct": correct}},
                    }
                )
            )


def test_the_method_is_compared_with_matched_grpo_and_each_arm_with_what_it_changes(tmp_path):
    from ta_grpo.controls.results import compare_arms

    arms = "grpo-matched,rephrased-data,ta-own-prompt,ta-grpo,ta-both,ta-adaptive"
    asked = settings(tmp_path, arms=arms, seeds="0,1", num_samples=4)
    made_up_results(asked, dict.fromkeys(asked.arms, 100), least={})
    assert list(compare_arms(asked).differences["set"]) == [
        ("ta-grpo", "grpo-matched"),
        ("rephrased-data", "grpo-matched"),
        ("ta-own-prompt", "rephrased-data"),
        ("ta-grpo", "ta-own-prompt"),
        ("ta-both", "grpo-matched"),
        ("ta-adaptive", "ta-grpo"),
    ]


def test_unmatched_budgets_and_undecided_differences_are_told(tmp_path):
    from ta_grpo.controls.results import compare_arms

    asked = settings(tmp_path, arms="grpo,ta-grpo,ta-pull", seeds="0,1,2,3,4,5", num_samples=4)
    made_up_results(asked, {"grpo": 97, "ta-grpo": 100, "ta-pull": 101}, least={"ta-pull": 3})
    compared = compare_arms(asked)
    assert compared.matched == {"grpo": False, "ta-grpo": True, "ta-pull": True}
    assert any("not matched in responses" in warning and "grpo" in warning for warning in compared.warnings)
    assert any("hold 0" in warning for warning in compared.warnings)
    # Four intervals: two pairs at two k; the better arm's leave 0 out.
    assert any("of 4 intervals of 95 %, about 0.2 leave 0 out by chance" in warning for warning in compared.warnings)
    assert not any("p-value" in warning for warning in compared.warnings)
    damaged = asked.result_file("grpo", 0)
    damaged.write_text("{")
    with pytest.raises(UserError, match="damaged"):
        compare_arms(asked)
