"""From the lines of a probe to figures with intervals over questions.

Shapes: Q questions, P = N + 1 phrasings, G completions of each phrasing, K = P * G completions of a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..group import group_outcomes, variance_share_between_phrasings
from ..statistics import bootstrap_interval, paired_comparison
from ..verifier.notation import normalise
from .diversity import Embedder, diversity_figures
from .passes import ess_share, surrogate_gap

Line = Mapping[str, Any]
PerQuestion = dict[str, list[float]]
"""Figure -> (Q,) values, NaN where a question has none."""

# The checker did not judge these; they are no reward of 0.
_NO_REWARD = ("unusable_gold", "error")
_STATES = ("all_wrong", "all_right", "mixed", "unscored")


def per_question_figures(
    lines: Sequence[Line], ids: Sequence[str], num_rephrasings: int, per_phrasing: int, embedder: Embedder | None
) -> tuple[PerQuestion, float]:
    """Every figure of every question, and the share of the reward variance between phrasings.

    Names: ``original/…`` G completions of q_0, ``equal_budget/…`` all K of q_0, ``joint/…`` G of each phrasing,
    ``phrasing_n/…`` those sampled under q_n (all K for n = 0), ``on_prompt/…`` and ``off_prompt/…`` under q_0 and
    under rephrasings; the latter are those of ``_of_completions``. ``joint/reward_variance_between`` and
    ``…_within`` phrasings add up, over questions, to the share that is returned.
    """
    num_phrasings = num_rephrasings + 1
    of_question: dict[str, list[Line]] = {question_id: [] for question_id in ids}
    for line in lines:
        of_question[line["id"]].append(line)
    sorted_lines = [
        sorted(of_question[question_id], key=lambda line: (line["phrasing"], line["block"], line["sample"]))
        for question_id in ids
    ]
    group = num_phrasings * per_phrasing
    figures: PerQuestion = {}
    pools = {
        "original": [lines[:per_phrasing] for lines in sorted_lines],
        "equal_budget": [lines[:group] for lines in sorted_lines],
        "joint": [[*lines[:per_phrasing], *lines[group:]] for lines in sorted_lines],
    }
    for name, pool in pools.items():
        figures |= _prefixed(name, _signal(pool))
    figures["rescued"] = _both(figures["joint/mixed"], figures["equal_budget/uniform"])
    figures["lost"] = _both(figures["equal_budget/mixed"], figures["joint/uniform"])
    for name in ("equal_budget", "joint"):
        figures |= _prefixed(f"{name}/diversity", _rows(_diversity(pool, embedder) for pool in pools[name]))
    for phrasing in range(num_phrasings):
        drawn = [[line for line in lines if line["phrasing"] == phrasing] for lines in sorted_lines]
        figures |= _prefixed(f"phrasing_{phrasing}", _rows(_of_completions(part, phrasing > 0) for part in drawn))
    figures |= _prefixed("on_prompt", _rows(_of_completions(lines[:group], False) for lines in sorted_lines))
    figures |= _prefixed("off_prompt", _rows(_of_completions(lines[group:], True) for lines in sorted_lines))
    figures["off_prompt/clip_importance"] = _importance_clip(pools["joint"])
    rewards_QPG = _rewards(pools["joint"]).reshape(-1, num_phrasings, per_phrasing)
    figures |= _prefixed("joint", _variances(rewards_QPG))
    return figures, variance_share_between_phrasings(rewards_QPG)


def _signal(pool: Sequence[Sequence[Line]]) -> PerQuestion:
    """1 for the state that a question's group is in; ``uniform``: it gives no gradient."""
    outcomes = group_outcomes(_rewards(pool))
    states = {name: getattr(outcomes, f"{name}_Q").double().tolist() for name in _STATES}
    return states | {"uniform": [1 - mixed for mixed in states["mixed"]]}


def _variances(rewards_QPG: Any) -> PerQuestion:
    """Components of a question's reward variance, MSB and MSW as in ``variance_share_between_phrasings``:

        reward_variance_within = MSW,   reward_variance_between = (MSB - MSW) / G

    Both are unbiased, so the latter may be below 0. NaN where a reward is missing, or for G = 1.
    """
    per_phrasing = rewards_QPG.shape[2]
    within_Q = rewards_QPG.var(dim=2).mean(dim=1)
    between_Q = rewards_QPG.mean(dim=2).var(dim=1) - within_Q / per_phrasing
    return {"reward_variance_between": between_Q.tolist(), "reward_variance_within": within_Q.tolist()}


def _importance_clip(pool: Sequence[Sequence[Line]]) -> list[float]:
    """Share of a question's off-prompt tokens whose gradient the clip of a true importance ratio would take away.

        rho_t = pi(o_t | q_0, o_<t) / pi(o_t | q_n, o_<t),   the policy being the old one too: the first update

    On the side where the joint advantage of the completion lets the clip act (``ratio_anchor="importance"``). The ratio
    of the other two anchors is 1 at the first update, and nothing is clipped.
    """
    from ..group import joint_advantages

    shares = []
    for lines, advantages in zip(pool, joint_advantages(_rewards(pool)).tolist(), strict=True):
        off = [(line, advantage) for line, advantage in zip(lines, advantages, strict=True) if line["phrasing"] > 0]
        clipped = sum(line["ratio_below"] for line, advantage in off if advantage < 0)
        clipped += sum(line["ratio_above"] for line, advantage in off if advantage > 0)
        tokens = sum(line["tokens"] for line, _ in off)
        shares.append(clipped / tokens if tokens else math.nan)
    return shares


def _rewards(pool: Sequence[Sequence[Line]]) -> Any:
    import torch

    return torch.tensor([[_reward(line) for line in lines] for lines in pool])


def _reward(line: Line) -> float:
    return math.nan if line["outcome"] in _NO_REWARD else float(line["outcome"] == "right")


def _both(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x * y for x, y in zip(a, b, strict=True)]


def _diversity(lines: Sequence[Line], embedder: Embedder | None) -> dict[str, float]:
    """Of all completions, and of the right ones alone: wrong noise is not diversity."""
    texts = [line["completion"] for line in lines]
    answers = [None if line["extracted"] is None else normalise(line["extracted"]) for line in lines]
    vectors_CD = None if embedder is None else _embed(texts, embedder)
    right = [number for number, line in enumerate(lines) if line["outcome"] == "right"]
    of_right = diversity_figures(
        [texts[number] for number in right],
        [answers[number] for number in right],
        None if vectors_CD is None else vectors_CD[right],
    )
    if not right:  # nothing is known of right completions, not even that they are few
        of_right = dict.fromkeys(of_right, math.nan)
    return {f"all/{name}": value for name, value in diversity_figures(texts, answers, vectors_CD).items()} | {
        f"right/{name}": value for name, value in of_right.items()
    }


def _embed(texts: Sequence[str], embedder: Embedder) -> NDArray[np.float64]:
    """A text that comes several times is embedded once."""
    different = list(dict.fromkeys(texts))
    vectors_CD = embedder.embed(different)
    number = {text: row for row, text in enumerate(different)}
    return vectors_CD[[number[text] for text in texts]]


def _of_completions(lines: Sequence[Line], off_prompt: bool) -> dict[str, float]:
    """Figures of completions sampled under one prompt (or several rephrasings); a token where not said otherwise.

    ``reward`` a completion; ``tokens`` a completion; ``cut``: share that did not end; ``entropy`` under the prompt it
    was sampled from; ``kl`` (k3, as TRL's) and ``kl_exact`` (over the vocabulary): the policy's divergence from the
    reference, under the prompt it was sampled from.

    Off-prompt also, all under q_0: ``gap`` and ``ess_share`` (see ``passes``); ``kl_original``, what the KL term of
    anchored training adds up: completions of q_n are no sample under q_0, so this is no estimate of a divergence, and
    may be far above it; ``kl_exact_original``, the divergence of the two models' next tokens under q_0 at the
    beginnings that completions of q_n have.
    """
    tokens = sum(line["tokens"] for line in lines)
    rewards = [reward for line in lines if not math.isnan(reward := _reward(line))]
    figures = {
        "reward": sum(rewards) / len(rewards) if rewards else math.nan,
        "entropy": _a_token(lines, "entropy_sampled", tokens),
        "tokens": tokens / len(lines) if lines else math.nan,
        "cut": sum(not line["finished"] for line in lines) / len(lines) if lines else math.nan,
        "kl": _a_token(lines, "kl_sampled", tokens),
        "kl_exact": _a_token(lines, "kl_exact_sampled", tokens),
    }
    if off_prompt:
        logps = [line["logp_sampled"] for line in lines], [line["logp_original"] for line in lines]
        figures |= {"gap": surrogate_gap(*logps, [line["tokens"] for line in lines]), "ess_share": ess_share(*logps)}
        figures["kl_original"] = _a_token(lines, "kl_original", tokens)
        figures["kl_exact_original"] = _a_token(lines, "kl_exact_original", tokens)
    return figures


def _a_token(lines: Sequence[Line], name: str, tokens: int) -> float:
    """Mean over all tokens of a sum that lines have; NaN without tokens, or where a line has no such sum."""
    sums = [line[name] for line in lines if name in line]
    return sum(sums) / tokens if tokens and len(sums) == len(lines) else math.nan


def _rows(rows: Any) -> PerQuestion:
    rows = list(rows)
    return {name: [row[name] for row in rows] for name in rows[0]}


def _prefixed(prefix: str, figures: PerQuestion) -> PerQuestion:
    return {f"{prefix}/{name}": values for name, values in figures.items()}


def with_intervals(figures: PerQuestion) -> dict[str, dict[str, float]]:
    """Figure -> mean over the ``n`` questions that have it, ``low``, ``high`` (95 %); left out where none has it."""
    told = {}
    for name, values in figures.items():
        there = [value for value in values if not math.isnan(value)]
        if there:
            told[name] = asdict(bootstrap_interval(there)) | {"n": len(there)}
    return told


def difference(figures: PerQuestion, a: str, b: str) -> dict[str, float] | None:
    """Figure a minus figure b, paired by question, with its interval; None where no question has both."""
    return paired(figures.get(a, []), figures.get(b, []))


def paired(a_Q: Sequence[float], b_Q: Sequence[float]) -> dict[str, float] | None:
    """a minus b over the questions that have both, with its interval and both means; None where there is none."""
    both = [(a, b) for a, b in zip(a_Q, b_Q, strict=True) if not (math.isnan(a) or math.isnan(b))]
    if not both:
        return None
    a_there, b_there = zip(*both, strict=True)
    means = {"mean_a": float(np.mean(a_there)), "mean_b": float(np.mean(b_there))}
    return means | asdict(paired_comparison(a_there, b_there))


def differences(figures: PerQuestion, num_rephrasings: int) -> dict[str, dict[str, float]]:
    """The paired differences that findings rest on."""
    diversity = [name.removeprefix("joint/") for name in figures if name.startswith("joint/diversity/")]
    pairs = {f"{name}: joint - equal_budget": (f"joint/{name}", f"equal_budget/{name}") for name in diversity}
    for name in ("mixed", "all_wrong", "all_right"):
        pairs[f"{name}: joint - equal_budget"] = (f"joint/{name}", f"equal_budget/{name}")
        pairs[f"{name}: equal_budget - original"] = (f"equal_budget/{name}", f"original/{name}")
    for phrasing in range(1, num_rephrasings + 1):
        pairs[f"reward: phrasing_{phrasing} - phrasing_0"] = (f"phrasing_{phrasing}/reward", "phrasing_0/reward")
    for name in ("reward", "entropy", "tokens", "kl_exact"):
        pairs[f"{name}: off_prompt - on_prompt"] = (f"off_prompt/{name}", f"on_prompt/{name}")
    pairs["kl_original - kl_exact_original"] = ("off_prompt/kl_original", "off_prompt/kl_exact_original")
    told = {name: difference(figures, *pair) for name, pair in pairs.items()}
    return {name: gap for name, gap in told.items() if gap is not None}
