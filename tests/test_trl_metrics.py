"""The training signal's figures: by hand on small groups, and as a run logs them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import ta_grpo.trl.metrics as metrics_module
from ta_grpo.group import signal_metrics
from ta_grpo.trl.metrics import clipped_tokens, k3_kl, on_and_off_prompt_sums
from tiny_models import model, save_model
from trl_runs import FakeEngine, question_rows, ta_trainer

NAN = float("nan")


def test_shares_and_rewards_of_groups_worked_out_by_hand():
    """Three questions, two phrasings, two completions each; the last question has no rephrasing."""
    rewards_QK = torch.tensor([[0.0, 0, 0, 1], [1, 1, 1, 1], [0, 0, NAN, 0]])
    phrasing_QK = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]])
    figures = signal_metrics(rewards_QK, phrasing_QK, torch.tensor([2, 2, 1]), num_phrasings=2)
    assert figures["questions/original/all_wrong"] == pytest.approx(2 / 3)
    assert figures["questions/original/all_right"] == pytest.approx(1 / 3)
    assert figures["questions/original/mixed"] == 0
    assert figures["questions/joint/mixed"] == pytest.approx(1 / 3)
    assert figures["questions/joint/all_wrong"] == pytest.approx(1 / 3)
    assert figures["questions/short_of_rephrasings"] == pytest.approx(1 / 3)
    assert figures["reward/phrasing_0"] == pytest.approx(2 / 7)
    assert figures["reward/phrasing_1"] == pytest.approx(3 / 4)
    for scope in ("original", "joint"):
        shares = [figures[f"questions/{scope}/{name}"] for name in ("all_wrong", "all_right", "mixed", "unscored")]
        assert sum(shares) == pytest.approx(1)


def test_a_group_without_a_single_reward_is_unscored():
    figures = signal_metrics(torch.full((1, 4), NAN), torch.zeros(1, 4), torch.tensor([1]), num_phrasings=1)
    assert figures["questions/joint/unscored"] == 1
    assert figures["questions/joint/all_wrong"] == 0


def test_between_phrasing_variance_by_hand():
    """Phrasing 0 always right, phrasing 1 always wrong: all variance lies between. Equal phrasings: below zero."""
    phrasing = torch.tensor([[0, 0, 1, 1]])
    apart = signal_metrics(torch.tensor([[1.0, 1, 0, 0]]), phrasing, torch.tensor([2]), 2)
    assert apart["reward/variance_between_phrasings"] == pytest.approx(1)
    # MSB = 0, MSW = 1/2, so s2_between = -1/4 and the share -1/4 / (1/4) = -1.
    equal = signal_metrics(torch.tensor([[1.0, 0, 1, 0]]), phrasing, torch.tensor([2]), 2)
    assert equal["reward/variance_between_phrasings"] == pytest.approx(-1)
    none = signal_metrics(torch.tensor([[1.0, 1, 1, 1]]), phrasing, torch.tensor([2]), 2)
    assert math.isnan(none["reward/variance_between_phrasings"])


def test_the_clip_acts_only_where_it_removes_the_gradient():
    log_ratio = torch.tensor([[1.5, 0.5, 1.1]]).log()
    for advantage, expected in ((1.0, [True, False, False]), (-1.0, [False, True, False]), (0.0, [False] * 3)):
        assert clipped_tokens(log_ratio, torch.tensor([advantage]), 0.2, 0.2).tolist() == [expected]


def test_k3_is_zero_for_equal_policies_and_positive_else():
    logps = torch.tensor([[-1.0, -2.0]])
    assert k3_kl(logps, logps).tolist() == [[0, 0]]
    # d = log(ref) - log(pi) = 1: e - 1 - 1
    assert k3_kl(logps, logps + 1)[0, 0].item() == pytest.approx(math.e - 2, abs=1e-6)


def test_sums_are_split_by_the_prompt_that_was_sampled():
    values = torch.tensor([[1.0, 2, 100], [3, 4, 5]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert on_and_off_prompt_sums(values, mask, torch.tensor([False, True])).tolist() == [[3, 2], [12, 3]]


def test_a_run_logs_every_documented_metric(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    base = str(save_model(tmp_path / "base"))
    trained = model()
    trained.config._name_or_path = base
    trainer = ta_trainer(tmp_path, question_rows(4), beta=0.1, num_iterations=2, max_steps=2, model=trained)
    trainer.train()
    logged = set().union(*trainer.state.log_history)
    table = re.findall(r"^\| `(.+?)`(?: … `(.+?)`)? \|", metrics_module.__doc__ or "", re.MULTILINE)
    documented: set[str] = set()
    for name, last in table:
        braces = re.search(r"\{(.+)\}", name)
        if braces:
            documented |= {name.replace(braces[0], choice) for choice in braces[1].split(",")}
        elif last:
            documented |= {f"reward/phrasing_{n}" for n in range(4)}
        else:
            documented.add(name)
    assert len(documented) > 18
    # Those of other settings, of vLLM, and of a step that was skipped.
    elsewhere = ("skipped_steps", "completions/pulled", "dynamic_sampling/", "adaptive_rephrasings/", "sampling/")
    documented = {name for name in documented if not name.startswith(elsewhere)}
    assert documented <= logged
    ours = {name for name in logged if name.startswith(("questions/", "reward/")) or name.endswith("_prompt")}
    assert ours == documented


def test_on_and_off_prompt_figures_of_a_run_are_the_means_over_their_tokens(tmp_path, monkeypatch):
    FakeEngine(monkeypatch)
    trainer = ta_trainer(tmp_path, question_rows(1), ratio_anchor="importance")
    trainer.train()
    (update,) = trainer.recorder.updates
    rows, logps_BT = update.passes[0], update.logps[0]
    mask_BT, off_B = rows["completion_mask"].bool(), rows["phrasing_index"] > 0
    ratio_BT = (logps_BT - rows["old_per_token_logps"]).exp()
    positive_B1 = rows["advantages"][:, None] > 0
    clipped_BT = torch.where(positive_B1, ratio_BT > 1.2, (ratio_BT < 0.8) & (rows["advantages"][:, None] < 0))
    log: dict[str, Any] = trainer.state.log_history[0]
    for side, rows_B in (("on", ~off_B), ("off", off_B)):
        expected = clipped_BT[rows_B][mask_BT[rows_B]].float().mean().item()
        assert log[f"clip_ratio/{side}_prompt"] == pytest.approx(expected, abs=1e-6)
    assert log["clip_ratio/on_prompt"] == 0
    assert log["clip_ratio/off_prompt"] > 0
    tokens = [mask_BT[~off_B].sum().item(), mask_BT[off_B].sum().item()]
    entropies = [log["entropy/on_prompt"], log["entropy/off_prompt"]]
    mean = sum(n * e for n, e in zip(tokens, entropies, strict=True)) / sum(tokens)
    assert log["entropy"] == pytest.approx(mean, abs=1e-4)
