"""The model card of the embedded policy, from its measurement alone."""

from __future__ import annotations

from typing import Any

# What the policy should be like on the split test: right often enough to learn from, not certain, not hopeless, and
# more able in some phrasings than in others. Shares.
AIMS = {"pass@1": (0.30, 0.60), "pass@32": (0.80, 0.92), "median spread": (0.15, 0.40)}


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def aims_met(card: dict[str, Any]) -> dict[str, bool]:
    """Whether the measured figures lie within AIMS; none is left out for missing them."""
    test = card["splits"]["test"]
    figures = {
        "pass@1": test["pass@1"],
        "pass@32": test.get("pass@32", float("nan")),
        "median spread": card["median spread"],
    }
    return {name: low <= figures[name] <= high for name, (low, high) in AIMS.items()}


def splits_table(card: dict[str, Any]) -> str:
    samples = card["splits"]["test"]["samples"]
    rows = [f"| split | questions | samples | pass@1 | pass@{samples} | boxed |", "|---|---|---|---|---|---|"]
    for split, figures in card["splits"].items():
        cells = [
            f"{percent(figures[name])} ± {percent(figures[f'{name} standard error'])}"
            for name in ("pass@1", f"pass@{samples}")
        ]
        rows.append(
            f"| {split} | {figures['questions']} | {samples} | {cells[0]} | {cells[1]} | {percent(figures['boxed'])} |"
        )
    return "\n".join(rows)


def families_table(card: dict[str, Any]) -> str:
    rows = ["| family | problems | samples | pass@1 | least | most | spread |", "|---|---|---|---|---|---|---|"]
    for name, family in card["families"].items():
        by_phrasing = family["pass@1 by phrasing"]
        cells = [percent(value) for value in (family["pass@1"], min(by_phrasing), max(by_phrasing), family["spread"])]
        rows.append(f"| {name} | {family['problems']} | {family['samples']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def model_card(card: dict[str, Any]) -> str:
    """The README of the policy, from its measurement alone."""
    aims = ", ".join(
        f"{name} {percent(AIMS[name][0])} to {percent(AIMS[name][1])} % ({'met' if met else 'missed'})"
        for name, met in card["aims met"].items()
    )
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: en
---
# The embedded policy of ta-grpo

A Llama of {card["parameters"]:,} parameters that solves word problems of six families, often wrongly: a base model for
trying reinforcement learning on a laptop's CPU. It knows nothing but these problems and is of no other use.

## How it was made

    {card["command"]}

{card["steps"]} steps of {card["batch size"]} questions with worked solutions, made by `ta_grpo.tiny.world`
from training numbers only; loss on the solutions, at the end {card["loss"]:.3f} nats a token.
Training took {card["training CPU minutes"]:.1f} CPU-minutes on one core ({card["hardware"]}),
the measurement {card["measurement CPU minutes"]:.1f} more.
Versions: {", ".join(f"{name} {version}" for name, version in card["versions"].items())}.

- A family's phrasings come with the frequencies rank^-{card["frequency exponent"]:g}, in an order drawn per family:
  accuracy depends on the phrasing. Two of the ten phrasings of each family are never shown.
- Small numbers are frequent: each question is the one with the smallest product among {card["number draws"]} draws.
  The splits are drawn evenly.
- {percent(card["sloppy share"])} % of the solutions are sloppy: one step is wrong, by a slip or a misread number,
  and the rest is carried on.
- Tokenizer: byte-level BPE of {card["vocabulary"]} entries, each digit a token.
  Chat template: one BOS; the tokenizer itself adds none.

The knobs were chosen for the figures below, before and without any run of reinforcement learning.
Aims on the split `test`, with 32 samples: {aims}.

## What it can do

Sampled at temperature 1; per cent, ± one standard error over the questions.

{splits_table(card)}

`test`: numbers never trained on. `test_phrasings`: such numbers in the two phrasings never shown.
`ood`: larger numbers. `boxed`: completions that end in a boxed whole number.

pass@1 by family, and of its least and most accurate phrasing in use, all phrasings on the same `test` problems:

{families_table(card)}

## Limits

The world is small and its solutions have one form: what helps here may not help a language model. System messages are
accepted by the template, but the policy has never seen one. Standard errors cover the choice of questions, not the
seed of the pretraining.
"""


def library_versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}
