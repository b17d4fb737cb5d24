"""What each figure shows. Each takes figures that are computed already, and says units and n in its caption."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..controls.results import chain_step
from ..statistics import Interval
from .drawing import INK, MUTED, PAPER, Figure, Style, drawing, finished, legend
from .outcomes import Gap
from .training import Curve

PassCurves = Mapping[str, Mapping[int, Interval]]
"""Arm -> k -> pass@k."""

Pairs = Mapping[tuple[str, str], Mapping[int, Gap]]
"""(Arm, the arm before it) -> k -> paired difference."""


def file_name(*words: str) -> str:
    """A name for files, of letters, digits and _ alone."""
    return "_".join(re.sub(r"[^A-Za-z0-9]+", "_", word).strip("_") for word in words).lower()


def pass_figure(name: str, curves: PassCurves, styles: Mapping[str, Style], over: str) -> Figure:
    """pass@k of all arms on one set, with bands."""
    alpha = _band(len(curves))
    with drawing() as (canvas, axes):
        for arm, by_k in curves.items():
            ks = sorted(by_k)
            means, low, high = ([100 * getattr(by_k[k], side) for k in ks] for side in ("mean", "low", "high"))
            _line(axes, styles[arm], ks, means, arm)
            if not any(map(math.isnan, (*low, *high))):
                axes.fill_between(ks, low, high, color=styles[arm].color, alpha=alpha, linewidth=0)
        ks = sorted({k for by_k in curves.values() for k in by_k})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set_xlabel("k, samples of a question")
        axes.set_ylabel("pass@k, %")
        axes.set_title(name)
        legend(canvas, axes)
        caption = f"pass@k in %, unbiased estimate; band: 95 % interval over {over}."
        return finished(canvas, file_name("pass_at_k", name), f"pass@k on {name}", caption)


def difference_figure(name: str, pairs: Pairs, over: str, paired_by: str) -> Figure:
    """Paired differences along the chain of controls, and of the other arms against its first."""
    ks = sorted({k for by_k in pairs.values() for k in by_k})
    with drawing(height=0.9 + 0.62 * len(pairs)) as (canvas, axes):
        for row, ((a, b), by_k) in enumerate(pairs.items()):
            step = chain_step(a, b)
            axes.text(
                0.0,
                row - 0.36,
                f"{step}: {a} − {b}" if step else f"{a} − {b}",
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=9,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8},
            )
            for place, k in enumerate(sorted(by_k)):
                _interval(axes, by_k[k], row + 0.02 + 0.26 * place, ks.index(k))
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_ylim(len(pairs) - 0.2, -0.65)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("difference, points of pass@k")
        axes.set_title(name)
        for place, k in enumerate(ks):
            axes.plot([], [], color=_K_STYLES[place % 2][0], marker=_K_STYLES[place % 2][1], label=f"pass@{k}")
        legend(canvas, axes)
        caption = (
            f"Differences in points of pass@k on {name}, paired by {paired_by}; bar: 95 % interval over {over}. "
            "Filled: the interval leaves 0 out."
        )
        return finished(canvas, file_name("differences", name), f"What each change did on {name}", caption)


_K_STYLES = (("#0072b2", "o"), ("#d55e00", "s"))


def _interval(axes: Any, gap: Gap, height: float, place: int) -> None:
    color, marker = _K_STYLES[place % 2]
    clear = gap.low > 0 or gap.high < 0
    if not math.isnan(gap.low):
        axes.plot([100 * gap.low, 100 * gap.high], [height] * 2, color=color, linewidth=1.8, solid_capstyle="butt")
    face = color if clear else PAPER
    axes.plot([100 * gap.difference], [height], marker=marker, color=color, markerfacecolor=face, markersize=6)


def training_figure(
    name: str, title: str, axis: str, curves: Mapping[str, Curve], styles: Mapping[str, Style], caption: str
) -> Figure:
    """A figure of each arm over the steps of training."""
    with drawing() as (canvas, axes):
        for arm, curve in curves.items():
            style, scale = styles[arm], 100 if axis.endswith("%") else 1
            means, low, high = ([scale * value for value in side] for side in (curve.mean, curve.low, curve.high))
            _line(axes, style, curve.steps, means, arm, every=max(1, len(curve.steps) // 6))
            if curve.seeds > 1:
                axes.fill_between(curve.steps, low, high, color=style.color, alpha=_band(len(curves)), linewidth=0)
        axes.set_xlabel("training step")
        axes.set_ylabel(axis)
        axes.set_title(title)
        legend(canvas, axes)
        return finished(canvas, file_name(name), title, caption)


def checkpoint_figure(
    name: str,
    title: str,
    axis: str,
    points: Mapping[str, Mapping[int, Mapping[str, float]]],
    styles: Mapping[str, Style],
    caption: str,
) -> Figure:
    """A figure of each run over its checkpoints, with intervals; step 0 is the base model."""
    with drawing() as (canvas, axes):
        for run, by_step in points.items():
            _bars(axes, styles[run], by_step, run)
        axes.set_xlabel("training step of the checkpoint")
        axes.set_ylabel(axis)
        axes.set_title(title)
        legend(canvas, axes)
        return finished(canvas, file_name(name), title, caption)


def gap_figure(gaps: Mapping[str, Mapping[int, Mapping[str, float]]], styles: Mapping[str, Style], n: str) -> Figure:
    """Surrogate gap of each rephrasing: how far what is sampled under it lies from the original question."""
    from ..diagnostics.findings import UNSAFE_GAP  # imports torch, which a report needs for nothing else

    with drawing() as (canvas, axes):
        for place, (run, by_phrasing) in enumerate(gaps.items()):
            shift = 0.12 * (place - (len(gaps) - 1) / 2)
            _bars(axes, styles[run], {phrasing + shift: gap for phrasing, gap in by_phrasing.items()}, run, line=False)
        phrasings = sorted({phrasing for by_phrasing in gaps.values() for phrasing in by_phrasing})
        axes.axhline(UNSAFE_GAP, color=MUTED, linestyle="--", linewidth=1)
        axes.text(
            phrasings[-1] + 0.45, UNSAFE_GAP, f"{UNSAFE_GAP}: clipped", ha="right", va="bottom", color=MUTED, fontsize=9
        )
        axes.set_xticks(phrasings, [f"q{phrasing}" for phrasing in phrasings])
        axes.set_xlim(phrasings[0] - 0.5, phrasings[-1] + 0.5)
        low, high = axes.get_ylim()
        axes.set_ylim(min(0, low), max(high, 1.2 * UNSAFE_GAP))
        axes.set_xlabel("rephrasing sampled from")
        axes.set_ylabel("nats a token")
        axes.set_title("Surrogate gap")
        legend(canvas, axes)
        caption = (
            "log π(o∣qₙ) − log π(o∣q₀) of completions sampled under qₙ, nats a token; bar: 95 % interval over "
            f"questions ({n}). Above {UNSAFE_GAP}, a ratio across prompts would be clipped at ε = 0.2."
        )
        return finished(canvas, "surrogate_gap", "Surrogate gap of each rephrasing", caption)


def _band(series: int) -> float:
    """How dense bands may be without hiding each other."""
    return 0.16 if series <= 3 else 0.08


def _line(axes: Any, style: Style, x: Sequence[float], y: Sequence[float], label: str, every: int = 1) -> None:
    axes.plot(
        x,
        y,
        color=style.color,
        linestyle=style.dash,
        marker=style.marker,
        markevery=every,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
        label=label,
    )


def _bars(axes: Any, style: Style, points: Mapping[Any, Mapping[str, float]], label: str, line: bool = True) -> None:
    x = sorted(points)
    means = [points[place]["mean"] for place in x]
    # A bootstrap interval of skewed values need not hold their mean.
    below = [max(0.0, points[place]["mean"] - _side(points[place], "low")) for place in x]
    above = [max(0.0, _side(points[place], "high") - points[place]["mean"]) for place in x]
    axes.errorbar(
        x,
        means,
        yerr=[below, above],
        color=style.color,
        linestyle=style.dash if line else "none",
        marker=style.marker,
        capsize=2.5,
        label=label,
    )


def _side(point: Mapping[str, float], side: str) -> float:
    value = point.get(side)
    return point["mean"] if value is None else value
