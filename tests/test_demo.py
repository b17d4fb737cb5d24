"""The demo, at its smallest: the whole way from the base policy to a table, and on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ta_grpo.cli import demo, main
from ta_grpo.trl import training

SMALL = ["demo", "--steps", "2", "--test-questions", "4"]


def test_the_demo_trains_evaluates_and_tells(tmp_path, capsys, monkeypatch):
    words = [*SMALL, "--output-dir", str(tmp_path / "demo")]
    assert main(words) == 0
    shown = capsys.readouterr()
    for expected in ("base", "GRPO", "TA-GRPO", "pass@1", "pass@32", "difference", "mixed", str(tmp_path)):
        assert expected in shown.out
    page = tmp_path / "demo" / "report.html"
    assert f"open {page} in a browser" in shown.out
    assert "ta-grpo against grpo" in page.read_text("utf-8")
    # Two steps on four questions tell nothing apart, and the demo says so.
    assert "cannot be told apart" in shown.out
    assert "step 2/2" in shown.err
    for run, rephrasings in (("grpo", 0), ("ta-grpo", 3)):
        config = json.loads((tmp_path / "demo" / run / "config.json").read_text())
        assert (config["num_rephrasings"], config["num_generations"]) == (rephrasings, 32)
    # Finished: nothing is done again, and the figures are the same.
    monkeypatch.setattr("ta_grpo.trl.training.TAGRPOTrainer", None)
    monkeypatch.setattr("ta_grpo.models.load_model", None)
    assert main([*words, "--resume", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert set(again["pass_at_k"]) == {"base", "GRPO", "TA-GRPO"}
    assert set(again["pass_at_k"]["base"]) == {"1", "2", "4", "8", "16", "32"}
    assert 0 < again["mixed_groups_in_training"]["TA-GRPO"] <= 1
    summary = json.loads((tmp_path / "demo" / "ta-grpo" / "eval" / "tiny_test" / "summary.json").read_text())
    assert again["pass_at_k"]["TA-GRPO"]["1"]["mean"] == pytest.approx(summary["pass_at_k"]["1"]["mean"])
    assert main(words) == 2
    # Another demo is no continuation of this one.
    capsys.readouterr()
    assert main(["demo", "--steps", "3", "--test-questions", "4", *words[5:], "--resume"]) == 2
    assert "max_steps: 2 -> 3" in capsys.readouterr().err
    assert main(["demo", "--steps", "2", "--test-questions", "5", *words[5:], "--resume"]) == 2
    assert "limit: 4 -> 5" in capsys.readouterr().err


def test_a_demo_interrupted_between_its_arms_goes_on(tmp_path, capsys, monkeypatch):
    words = [*SMALL, "--output-dir", str(tmp_path / "demo"), "--json"]
    trainer_class, made = training.TAGRPOTrainer, []

    def stop_at_the_second(*args, **kwargs):
        made.append(Path(kwargs["args"].output_dir).name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return trainer_class(*args, **kwargs)

    monkeypatch.setattr(training, "TAGRPOTrainer", stop_at_the_second)
    assert main(words) == 130
    assert main([*words, "--resume"]) == 0
    assert made == ["grpo", "ta-grpo", "ta-grpo"]
    assert "verdict" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [((0.02, 0.01, 0.03), "differs from GRPO in pass@1 by +2.0 points"), ((0.02, -0.01, 0.05), "cannot be told apart")],
)
def test_the_verdict_speaks_only_of_intervals_without_zero(monkeypatch, gap, expected):
    from ta_grpo import evaluation
    from ta_grpo.statistics import PairedComparison

    compared = PairedComparison(*gap, p_value=0.5, n=10, confidence=0.95)
    monkeypatch.setattr(evaluation, "compare", lambda a, b, ks: {1: compared})
    assert expected in demo.verdict({"GRPO": None, "TA-GRPO": None})  # pyright: ignore[reportArgumentType]
