"""What the figures say in plain words. A finding speaks only where its interval leaves 0, or its threshold, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .figures import paired

UNSAFE_GAP = 0.22
"""Nats a token, -log(1 - 0.2): farther than that, a true importance ratio would clip a negative advantage away."""

LOW_ESS = 0.5
"""Share of the completions: below, the weights throw more than half of what was sampled away."""

HIGH_CLIP = 0.1
"""Share of the tokens: above, the clip takes a good part of the update away."""


@dataclass(frozen=True)
class Finding:
    """One statement and the figures it rests on. ``checkpoint``: of which one, or first and last."""

    name: str
    checkpoint: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def findings_of(result: Mapping[str, Any]) -> list[Finding]:
    """The findings of one checkpoint's figures."""
    found = [
        *_no_gradient(result),
        *_rescue(result),
        *_gap(result),
        *_weights(result),
        *_clip(result),
        *_kl(result),
        *_phrasings(result),
        *_diversity(result),
    ]
    return [Finding(name, result["checkpoint"], text, figures) for name, text, figures in found]


Found = list[tuple[str, str, dict[str, Any]]]


def _no_gradient(result: Mapping[str, Any]) -> Found:
    uniform = result["figures"]["equal_budget/uniform"]
    if not uniform["low"] > 0:
        return []
    wrong, right = (result["figures"][f"equal_budget/{name}"]["mean"] for name in ("all_wrong", "all_right"))
    text = (
        f"{_percent(uniform)} of the questions gave no gradient at {result['group_size']} samples on the original "
        f"({100 * wrong:.0f} % all wrong, {100 * right:.0f} % all right)"
    )
    return [("no_gradient", text, {"equal_budget/uniform": uniform})]


def _rescue(result: Mapping[str, Any]) -> Found:
    gap = result["differences"]["mixed: joint - equal_budget"]
    if not _leaves_out_zero(gap):
        return []
    rescued, lost = (result["figures"][name] for name in ("rescued", "lost"))
    sides = f"{100 * rescued['mean']:.0f} points rescued, {100 * lost['mean']:.0f} points lost, net {_points(gap)}"
    text = (
        f"at the same budget of {result['group_size']} samples, rephrasing mixed more questions: {sides}"
        if gap["low"] > 0
        else f"at the same budget of {result['group_size']} samples, rephrasing left fewer questions mixed: {sides}"
    )
    return [("rescue", text, {"mixed: joint - equal_budget": gap, "rescued": rescued, "lost": lost})]


def _gap(result: Mapping[str, Any]) -> Found:
    """The rephrasings that are far from the original; or, if all are near, the farthest."""
    found: Found = []
    near: dict[int, Any] = {}
    for phrasing in range(1, result["num_rephrasings"] + 1):
        gap = result["figures"].get(f"phrasing_{phrasing}/gap")
        if gap is not None and gap["low"] > UNSAFE_GAP:
            text = (
                f"completions from rephrasing {phrasing} are {gap['mean']:.2g} nats a token away from the original "
                f"[{gap['low']:.2g}, {gap['high']:.2g}]: anchored negatives are unsafe there (above {UNSAFE_GAP})"
            )
            found.append(("surrogate_gap", text, {f"phrasing_{phrasing}/gap": gap}))
        if gap is not None and gap["low"] > 0 and gap["high"] < UNSAFE_GAP:
            near[phrasing] = gap
    if len(near) == result["num_rephrasings"]:
        farthest = max(near, key=lambda phrasing: near[phrasing]["mean"])
        gap = near[farthest]
        text = (
            f"completions from every rephrasing are, on average, close to the original: from the farthest, rephrasing "
            f"{farthest}, {gap['mean']:.2g} nats a token [{gap['low']:.2g}, {gap['high']:.2g}], below {UNSAFE_GAP}"
        )
        found.append(("surrogate_gap_small", text, {f"phrasing_{farthest}/gap": gap}))
    return found


def _weights(result: Mapping[str, Any]) -> Found:
    found: Found = []
    for phrasing in range(1, result["num_rephrasings"] + 1):
        ess = result["figures"][f"phrasing_{phrasing}/ess_share"]
        if ess["high"] < LOW_ESS:
            text = (
                f"sequence weights of rephrasing {phrasing} keep {_percent(ess)} of its completions as effective "
                f"samples of the original (at least {100 / result['per_phrasing']:.0f} % by construction): correcting "
                "by them throws most of the samples away"
            )
            found.append(("weights", text, {f"phrasing_{phrasing}/ess_share": ess}))
    return found


def _clip(result: Mapping[str, Any]) -> Found:
    """What the clip takes away: of a true importance ratio, and in the steps that training recorded."""
    found: Found = []
    clip = result["figures"].get("off_prompt/clip_importance")
    if clip is not None and clip["low"] > HIGH_CLIP:
        text = (
            f"a true importance ratio (ratio_anchor=importance) would lose {_percent(clip)} of the tokens of "
            "rephrasings to the clip at the first update"
        )
        found.append(("clip_importance", text, {"off_prompt/clip_importance": clip}))
    names = [f"clip_ratio/{side}_prompt" for side in ("on", "off")]
    training = result["training"]
    if all(name in training["figures"] for name in names):
        on, off = (training["figures"][name] for name in names)
        if max(on, off) > HIGH_CLIP:
            first, last = training["steps"]
            text = (
                f"in steps {first} to {last} of training the clip took away {100 * on:.0f} % of the tokens of the "
                f"original and {100 * off:.0f} % of those of rephrasings"
            )
            found.append(("clip_in_training", text, {name: training["figures"][name] for name in names}))
    return found


def _kl(result: Mapping[str, Any]) -> Found:
    found: Found = []
    name = "kl_exact: off_prompt - on_prompt"
    gap = result["differences"].get(name)
    if gap is not None and _leaves_out_zero(gap):
        how = "further" if gap["low"] > 0 else "less far"
        text = (
            f"the policy has moved {how} from the base model on rephrasings than on the original: "
            f"{gap['mean_a']:.2g} against {gap['mean_b']:.2g} nats a token, {_nats(gap)}"
        )
        found.append(("kl", text, {name: gap}))
    name = "kl_original - kl_exact_original"
    gap = result["differences"].get(name)
    if gap is not None and _leaves_out_zero(gap):
        text = (
            f"a KL term under the original (ratio_anchor=original, beta > 0) would add up {gap['mean_a']:.2g} nats a "
            f"token on completions of rephrasings, where the two models are {gap['mean_b']:.2g} apart: it is no "
            "estimate of their divergence there"
        )
        found.append(("kl_term", text, {name: gap}))
    return found


def _phrasings(result: Mapping[str, Any]) -> Found:
    found: Found = []
    for phrasing in range(1, result["num_rephrasings"] + 1):
        name = f"reward: phrasing_{phrasing} - phrasing_0"
        gap = result["differences"].get(name)
        if gap is not None and _leaves_out_zero(gap):
            how = "more" if gap["low"] > 0 else "less"
            text = f"rephrasing {phrasing} is answered right {how} often than the original: {_points(gap)}"
            found.append(("phrasing_reward", text, {name: gap}))
    return found


def _diversity(result: Mapping[str, Any]) -> Found:
    """By the mean distance, which does not grow with the number of completions: one pool has more right ones."""
    every, right = (f"diversity/{kind}/cosine_distance: joint - equal_budget" for kind in ("all", "right"))
    gaps = {name: result["differences"][name] for name in (every, right) if name in result["differences"]}
    told = {name: _leaves_out_zero(gap) for name, gap in gaps.items()}
    if told.get(right):
        how = "more" if gaps[right]["low"] > 0 else "less"
        text = f"at the same budget, right completions are {how} diverse with rephrasings: {_distance(gaps[right])}"
        return [("diversity", text, gaps)]
    if told.get(every):
        how = "more" if gaps[every]["low"] > 0 else "less"
        text = (
            f"at the same budget, completions are {how} diverse with rephrasings ({_distance(gaps[every])}), but that "
            "cannot be said of the right ones alone"
        )
        return [("diversity", text, gaps)]
    return []


_TRENDS = {
    "equal_budget/uniform": "the share of questions without gradient on the original",
    "joint/uniform": "the share of questions without gradient in the joint group",
    "equal_budget/diversity/right/cosine_distance": "the mean distance of right completions of the original",
    "on_prompt/entropy": "the entropy a token",
    "on_prompt/tokens": "the length of completions of the original, in tokens,",
    "off_prompt/tokens": "the length of completions of rephrasings, in tokens,",
    "on_prompt/kl_exact": "the KL to the base model, in nats a token,",
    "on_prompt/reward": "the share of right completions of the original",
    "off_prompt/gap": "the surrogate gap",
}


def trends(results: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What changed from the first checkpoint to the last, paired by question."""
    if len(results) < 2:
        return []
    first, last = results[0], results[-1]
    found = []
    for name, what in _TRENDS.items():
        before, after = (_values(result, name) for result in (first, last))
        gap = paired(after, before) if before and after else None
        if gap is not None and _leaves_out_zero(gap):
            went = "rose" if gap["low"] > 0 else "fell"
            text = f"{what} {went}: {gap['difference']:+.3g} [{gap['low']:+.3g}, {gap['high']:+.3g}]"
            found.append(Finding("trend", f"{first['checkpoint']} to {last['checkpoint']}", text, {name: gap}))
    return found


def _values(result: Mapping[str, Any], name: str) -> list[float]:
    return [float("nan") if value is None else value for value in result["per_question"].get(name, [])]


def _leaves_out_zero(gap: Mapping[str, Any]) -> bool:
    """False also where there is no interval (NaN, one question)."""
    return gap["low"] > 0 or gap["high"] < 0


def _percent(figure: Mapping[str, float]) -> str:
    return f"{100 * figure['mean']:.0f} % [{100 * figure['low']:.0f}, {100 * figure['high']:.0f}]"


def _points(gap: Mapping[str, float]) -> str:
    return f"{100 * gap['difference']:+.0f} points [{100 * gap['low']:+.0f}, {100 * gap['high']:+.0f}]"


def _nats(gap: Mapping[str, float]) -> str:
    return f"{gap['difference']:+.2g} [{gap['low']:+.2g}, {gap['high']:+.2g}]"


def _distance(gap: Mapping[str, float]) -> str:
    return f"mean cosine distance {gap['difference']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
