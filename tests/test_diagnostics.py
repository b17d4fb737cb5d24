"""The diagnostics: their figures on small groups worked by hand, and the verb through the real command line."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diagnostics_oracles import OneHot, kl_oracle
from ta_grpo.diagnostics.diversity import distinct_n_grams, diversity_figures, mean_cosine_distance, vendi_score
from ta_grpo.diagnostics.figures import differences, per_question_figures, with_intervals
from ta_grpo.diagnostics.findings import findings_of, trends
from ta_grpo.diagnostics.passes import ess_share, outside_range, score, surrogate_gap
from ta_grpo.diagnostics.recorded import recorded
from ta_grpo.errors import UserError
from tiny_models import model as tiny_model
from trl_runs import row_logps

# Diversity


def test_distinct_n_grams_by_hand():
    texts = ["2 + 2 = 4", "2 + 3 = 5"]
    assert distinct_n_grams(texts, 1) == 6 / 10  # 2 + = 4 3 5
    assert distinct_n_grams(texts, 2) == 7 / 8  # only "2 +" twice
    assert math.isnan(distinct_n_grams(["one two"], 3))


@given(st.integers(1, 12))
def test_vendi_of_identical_is_one_and_of_orthogonal_is_their_number(count):
    same_CD = np.tile([[0.6, 0.8]], (count, 1))
    assert vendi_score(same_CD) == pytest.approx(1)
    assert vendi_score(np.eye(count)) == pytest.approx(count)
    if count > 1:
        assert mean_cosine_distance(same_CD) == pytest.approx(0)
        assert mean_cosine_distance(np.eye(count)) == pytest.approx(1)


def test_diversity_of_nothing_and_of_one():
    assert math.isnan(mean_cosine_distance(np.eye(1)))
    assert math.isnan(vendi_score(np.empty((0, 3))))
    figures = diversity_figures(["a", "b", "c"], ["1", "1", None], None)
    assert figures["distinct_answers"] == 1
    assert "vendi" not in figures


# Log-probs


def test_scores_are_those_of_unpadded_passes():
    model, rng = tiny_model().eval(), torch.Generator().manual_seed(0)
    lengths = [(5, 3), (17, 1), (2, 9), (8, 0), (11, 4)]
    rows = [[torch.randint(3, 100, (n,), generator=rng).tolist() for n in pair] for pair in lengths]
    prompts, completions = [row[0] for row in rows], [row[1] for row in rows]
    for rows_a_pass in (1, 2, 5):
        for scored, prompt, completion in zip(
            score(model, prompts, completions, 1.0, rows_a_pass), prompts, completions, strict=True
        ):
            logps = row_logps(model, prompt, completion) if completion else torch.zeros(0)
            assert scored.logp == pytest.approx(logps.sum().item(), abs=1e-4)
    (warm,) = score(model, prompts[:1], completions[:1], 2.0, 1)
    logits = model(torch.tensor([prompts[0] + completions[0]])).logits[0, 4:-1] / 2
    logps = logits.log_softmax(-1)
    assert warm.logp == pytest.approx(logps[range(3), completions[0]].sum().item(), abs=1e-4)
    assert warm.entropy == pytest.approx(-(logps.exp() * logps).sum().item(), abs=1e-4)


def test_kl_is_that_of_its_equations():
    policy, reference = tiny_model(0).eval(), tiny_model(1).eval()
    prompts, completions = [[1, 5, 9], [1, 50, 60, 70, 80], [1]], [[20, 30, 40, 2], [7], []]
    for rows_a_pass in (1, 3):
        told = score(policy, prompts, completions, 0.8, rows_a_pass, reference)
        for scored, prompt, completion in zip(told, prompts, completions, strict=True):
            k3, exact = kl_oracle(policy, reference, prompt, completion, 0.8) if completion else (0.0, 0.0)
            assert scored.kl == pytest.approx(k3, rel=1e-3, abs=1e-5)
            assert scored.kl_exact == pytest.approx(exact, rel=1e-3, abs=1e-5)
            assert completion == [] or exact > 0.01
    (none,) = score(policy, prompts[:1], completions[:1], 0.8, 1)
    assert (none.kl, none.kl_exact) == (None, None)
    (own,) = score(policy, prompts[:1], completions[:1], 0.8, 1, policy)
    assert (own.kl, own.kl_exact) == (0, 0)


def test_k3_estimates_the_kl_of_the_prompt_that_was_sampled_and_of_no_other():
    policy, reference = tiny_model(0).eval(), tiny_model(1).eval()
    vocabulary = list(range(policy.config.vocab_size))
    answers = [[token] for token in vocabulary]

    def under(prompt: list[int]) -> Any:
        return score(policy, [prompt] * len(answers), answers, 1.0, 64, reference)

    original, rephrasing = under([1, 5, 9]), under([1, 50, 60, 70])
    mean = {
        where: sum(math.exp(drawn.logp) * scored.kl for drawn, scored in zip(sampler, original, strict=True))
        for where, sampler in (("on", original), ("off", rephrasing))
    }
    exact = original[0].kl_exact
    assert mean["on"] == pytest.approx(exact, rel=1e-4)
    assert abs(mean["off"] - exact) > 0.1 * exact


def test_a_reference_with_another_vocabulary_is_refused():
    other = tiny_model(1)
    other.resize_token_embeddings(120)
    with pytest.raises(UserError, match=r"120 tokens.*--no-kl"):
        score(tiny_model(0), [[1, 5]], [[7]], 1.0, 1, other)


def test_tokens_outside_the_clipping_range_are_those_that_the_trainer_would_clip():
    from ta_grpo.trl.metrics import clipped_tokens

    log_ratio = np.log([0.5, 0.75, 0.85, 1.0, 1.25, 1.35])
    assert outside_range(log_ratio, 0.2, 0.3) == (2, 1)
    for advantage, count in ((-1.0, 2), (1.0, 1)):
        clipped = clipped_tokens(torch.tensor(log_ratio)[None], torch.tensor([advantage]), 0.2, 0.3)
        assert clipped.sum() == count


def test_gap_and_effective_sample_size_by_hand():
    assert surrogate_gap([-1.0, -2.0], [-3.0, -4.0], [3, 5]) == pytest.approx(0.5)
    assert math.isnan(surrogate_gap([0.0], [0.0], [0]))
    assert ess_share([-5.0, -5.0], [-6.0, -6.0]) == pytest.approx(1)
    weights = [math.log(3), 0.0]
    assert ess_share([0.0, 0.0], weights) == pytest.approx(16 / (2 * 10))
    assert ess_share([0.0, 0.0, 0.0, 0.0], [-2000.0, -5000.0, -5000.0, -5000.0]) == pytest.approx(1 / 4)


# Figures


def line(question: str, phrasing: int, block: int, sample: int, right: bool, **more: Any) -> dict[str, Any]:
    text = f"{question} {phrasing} {block} {sample}"
    drawn = {"completion": text, "tokens": 2, "finished": True, "extracted": text}
    sums = {"logp_sampled": -1.0, "logp_original": -1.0 - phrasing, "entropy_sampled": 1.0 + phrasing}
    sums |= {"kl_sampled": 0.2, "kl_exact_sampled": 0.1 + 0.3 * phrasing, "ratio_below": 1, "ratio_above": 0}
    sums |= {"kl_original": 0.2 + phrasing, "kl_exact_original": 0.1 + 0.5 * phrasing}
    place = {"id": question, "phrasing": phrasing, "block": block, "sample": sample}
    return place | drawn | sums | {"outcome": "right" if right else "wrong"} | more


def probed(question: str, original: str, rephrased: str) -> list[dict[str, Any]]:
    """N = 1, G = 2: two blocks of q_0 and one of q_1; r is a right completion."""
    lines = [line(question, 0, i // 2, i % 2, letter == "r") for i, letter in enumerate(original)]
    return lines + [line(question, 1, 0, i, letter == "r") for i, letter in enumerate(rephrased)]


QUESTIONS = {
    "rescued": ("wwww", "rw"),
    "mixed by budget": ("wwrw", "ww"),  # lost: uniform jointly
    "all right": ("rrrr", "rr"),
    "mixed": ("rwrw", "wr"),
}


def figures_of(questions: dict[str, tuple[str, str]]) -> dict[str, list[float]]:
    lines = [each for name, blocks in questions.items() for each in probed(name, *blocks)]
    figures, _ = per_question_figures(lines[::-1], list(questions), 1, 2, OneHot())
    return figures


def test_the_training_signal_by_hand():
    figures = figures_of(QUESTIONS)
    assert figures["original/mixed"] == [0, 0, 0, 1]
    assert figures["equal_budget/mixed"] == [0, 1, 0, 1]
    assert figures["equal_budget/all_wrong"] == [1, 0, 0, 0]
    assert figures["equal_budget/all_right"] == [0, 0, 1, 0]
    assert figures["joint/mixed"] == [1, 0, 0, 1]
    assert figures["rescued"] == [1, 0, 0, 0]
    assert figures["lost"] == [0, 1, 0, 0]
    assert figures["phrasing_0/reward"] == [0, 0.25, 1, 0.5]
    assert figures["phrasing_1/reward"] == [0.5, 0, 1, 0.5]
    assert figures["phrasing_1/gap"] == [0.5] * 4  # 1 nat over 2 tokens
    assert figures["phrasing_1/ess_share"] == [1] * 4
    assert figures["on_prompt/entropy"] == [0.5] * 4
    assert figures["off_prompt/entropy"] == [1] * 4
    assert figures["on_prompt/kl"] == pytest.approx([0.1] * 4)
    assert figures["on_prompt/kl_exact"] == pytest.approx([0.05] * 4)
    assert figures["off_prompt/kl"] == pytest.approx([0.1] * 4)
    assert figures["off_prompt/kl_exact"] == pytest.approx([0.2] * 4)
    assert figures["off_prompt/kl_original"] == pytest.approx([0.6] * 4)
    assert figures["off_prompt/kl_exact_original"] == pytest.approx([0.3] * 4)
    assert "on_prompt/kl_original" not in figures
    assert figures["off_prompt/tokens"] == [2] * 4
    assert figures["joint/diversity/all/vendi"] == pytest.approx([4] * 4)
    assert figures["joint/diversity/right/vendi"] == pytest.approx([1, math.nan, 4, 2], nan_ok=True)
    told = with_intervals(figures)
    assert told["joint/diversity/right/vendi"]["n"] == 3
    assert told["rescued"]["mean"] == 0.25
    assert differences(figures, 1)["mixed: joint - equal_budget"]["difference"] == 0


def test_the_clip_of_a_true_importance_ratio_by_hand():
    """Two tokens a completion. Right in a mixed group: A > 0, tokens above count; wrong: A < 0, those below."""
    lines = probed("q", "wwww", "rw")
    outside = {"r": {"ratio_below": 2, "ratio_above": 1}, "w": {"ratio_below": 2, "ratio_above": 0}}
    for drawn in lines[4:]:
        drawn |= outside["r" if drawn["outcome"] == "right" else "w"]
    figures, _ = per_question_figures(lines, ["q"], 1, 2, None)
    assert figures["off_prompt/clip_importance"] == [(1 + 2) / 4]
    for original in ("wwww", "rrrr"):  # uniform jointly: no advantage, nothing to clip
        figures, _ = per_question_figures(probed("q", original, original[:2]), ["q"], 1, 2, None)
        assert figures["off_prompt/clip_importance"] == [0]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_variances_between_and_within_phrasings_add_up_to_the_share(rewards):
    questions = {f"q{i}": "".join("wr"[right] for right in row) for i, row in enumerate(rewards)}
    lines = [each for name, row in questions.items() for each in probed(name, row[:4], row[4:])]
    figures, share = per_question_figures(lines, list(questions), 1, 2, None)
    for row, between, within in zip(
        questions.values(),
        figures["joint/reward_variance_between"],
        figures["joint/reward_variance_within"],
        strict=True,
    ):
        blocks = [[float(letter == "r") for letter in block] for block in (row[:2], row[4:])]
        assert within == pytest.approx(np.mean([np.var(block, ddof=1) for block in blocks]))
        assert between == pytest.approx(np.var(np.mean(blocks, axis=1), ddof=1) - within / 2)
    mean_between, mean_within = (np.mean(figures[f"joint/reward_variance_{side}"]) for side in ("between", "within"))
    if mean_between + mean_within > 0:
        assert share == pytest.approx(mean_between / (mean_between + mean_within), abs=1e-5)
    else:
        assert math.isnan(share)


def test_without_a_reference_there_is_no_kl():
    lines = probed("q", "rwrw", "rw")
    for drawn in lines:
        for name in [name for name in drawn if name.startswith("kl")]:
            del drawn[name]
    figures, _ = per_question_figures(lines, ["q"], 1, 2, None)
    assert math.isnan(figures["on_prompt/kl_exact"][0])
    assert "on_prompt/kl_exact" not in with_intervals(figures)
    assert "kl_exact: off_prompt - on_prompt" not in differences(figures, 1)


def test_what_training_recorded_is_averaged_since_the_checkpoint_before(tmp_path):
    rows = [
        {"step": 1, "clip_ratio/on_prompt": 0.5, "entropy": 9.0},
        {"step": 2, "clip_ratio/on_prompt": 0.1, "clip_ratio/off_prompt": 0.3, "loss": 1.0},
        {"step": 3, "clip_ratio/on_prompt": 0.2, "clip_ratio/off_prompt": None, "entropy": 2.0},
        {"step": 4, "clip_ratio/on_prompt": 0.9},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = recorded(tmp_path, 1, 3)
    assert (told["steps"], told["lines"]) == ([2, 3], 2)
    assert told["figures"] == pytest.approx({"clip_ratio/on_prompt": 0.15, "clip_ratio/off_prompt": 0.3, "entropy": 2})
    nothing = {"steps": [], "lines": 0, "figures": {}}
    assert recorded(tmp_path, 4, 9) == recorded(tmp_path / "nowhere", 0, 9) == nothing


def test_what_the_checker_could_not_judge_is_no_wrong_answer():
    lines = probed("q", "rrrr", "rr")
    lines[0] |= {"outcome": "error"}
    figures, _ = per_question_figures(lines, ["q"], 1, 2, None)
    assert figures["equal_budget/all_right"] == [1]
    assert figures["phrasing_0/reward"] == [1]


def result_of(questions: dict[str, tuple[str, str]], checkpoint: str = "checkpoint-1") -> dict[str, Any]:
    figures = figures_of(questions)
    sizes = {"num_rephrasings": 1, "per_phrasing": 2, "group_size": 4}
    told = {"figures": with_intervals(figures), "differences": differences(figures, 1), "per_question": figures}
    training = {"steps": [], "lines": 0, "figures": {}}
    return {"checkpoint": checkpoint, "training": training} | sizes | told


def test_findings_speak_where_the_interval_leaves_zero_out_and_only_there():
    clear = {f"q{i}": QUESTIONS["rescued"] for i in range(9)} | {"m": QUESTIONS["mixed"]}
    told = {finding.name: finding for finding in findings_of(result_of(clear))}
    assert "90 %" in told["no_gradient"].text
    assert "4 samples on the original (90 % all wrong, 0 % all right)" in told["no_gradient"].text
    assert "90 points rescued, 0 points lost, net +90 points" in told["rescue"].text
    assert told["rescue"].figures["rescued"]["mean"] == 0.9
    assert "rephrasing 1 are 0.5 nats a token away" in told["surrogate_gap"].text
    assert "unsafe" in told["surrogate_gap"].text
    # 0.2 - 0.05 nats a token, and 0.6 where 0.3 are: the same for every question.
    assert "further from the base model on rephrasings" in told["kl"].text
    assert "0.2 against 0.05 nats a token, +0.15" in told["kl"].text
    assert "add up 0.6 nats a token" in told["kl_term"].text
    assert "two models are 0.3 apart" in told["kl_term"].text
    # One of two tokens below, which acts on the wrong half of the mixed groups' completions.
    assert "would lose 25 % [25, 25] of the tokens" in told["clip_importance"].text
    even = {name: QUESTIONS[name] for name in ("rescued", "mixed by budget", "mixed")}
    names = {finding.name for finding in findings_of(result_of(even))}
    assert not names & {"rescue", "phrasing_reward"}
    one = {finding.name for finding in findings_of(result_of({"q": QUESTIONS["rescued"]}))}
    assert not one  # one question has no interval


def test_rephrasings_that_are_all_near_the_original_are_told_too():
    result = result_of({f"q{i}": QUESTIONS["mixed"] for i in range(4)})
    near = {"mean": 0.1, "low": 0.05, "high": 0.2, "n": 4}
    for high, names in ((0.2, {"surrogate_gap_small"}), (0.3, set())):
        result["figures"]["phrasing_1/gap"] = near | {"high": high}
        assert {f.name for f in findings_of(result) if "surrogate" in f.name} == names


def test_a_clip_that_takes_much_away_in_training_is_told():
    result = result_of({f"q{i}": QUESTIONS["mixed"] for i in range(4)})
    for off, told in ((0.3, True), (0.05, False)):
        shares = {"clip_ratio/on_prompt": 0.01, "clip_ratio/off_prompt": off}
        result["training"] = {"steps": [6, 10], "lines": 5, "figures": shares}
        texts = [finding.text for finding in findings_of(result) if finding.name == "clip_in_training"]
        assert bool(texts) == told
        assert (
            not told or "in steps 6 to 10 of training the clip took away 1 % of the tokens of the original" in texts[0]
        )


def test_trends_are_paired_between_the_first_and_the_last_checkpoint():
    names = [f"q{i}" for i in range(8)]
    before = result_of(dict.fromkeys(names, QUESTIONS["mixed"]))
    after = result_of(dict.fromkeys(names, QUESTIONS["all right"]), "checkpoint-9")
    told = [finding.text for finding in trends([before, after])]
    assert any("share of questions without gradient on the original rose: +1" in text for text in told)
    assert not trends([before])
    assert not trends([before, before])
