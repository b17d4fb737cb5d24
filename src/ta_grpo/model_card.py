"""The card of a checkpoint, fit for the Hugging Face Hub: base, recipe, data, budget, results with intervals.

It says what the run directory says and nothing else; it is written when a checkpoint is, and again when one has been
evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from .paper import ARXIV_ID, BIBTEX, TITLE
from .rundir import CHECKPOINT_PREFIX, METRICS_FILE, read_jsonl, write_text_atomic

CARD_FILE = "README.md"
_CITATION = f"""\
The method: {TITLE}, arXiv {ARXIV_ID}. The software: ta-grpo, see its CITATION.cff.

{indent(BIBTEX, "    ")}
"""
# Told elsewhere on the card, or of no use to a reader.
_NOT_SETTINGS = ("model", "questions", "save_steps", "trl", "columns", "verl_overrides")


def write_model_card(checkpoint: Path) -> None:
    """Write ``README.md`` into a checkpoint of a run directory; in place of the empty one that adapters bring."""
    write_text_atomic(checkpoint / CARD_FILE, model_card(checkpoint))


def model_card(checkpoint: Path) -> str:
    """The card in Markdown, with the Hub's front matter, from the run directory that the checkpoint lies in."""
    run = checkpoint.parent
    config, manifest = (_read(run / name) for name in ("config.json", "manifest.json"))
    step = int(checkpoint.name.removeprefix(CHECKPOINT_PREFIX))
    base = str(config.get("model", ""))
    adapters = (checkpoint / "adapter_config.json").exists()
    lines = [
        "---",
        f"library_name: {'peft' if adapters else 'transformers'}",
        "pipeline_tag: text-generation",
        *([f"base_model: {json.dumps(base)}"] if _on_the_hub(base) else []),
        "tags: [ta-grpo, grpo, reinforcement-learning]",
        "---",
        f"# {_name(base)} after {step} updates of {_method(config)}",
        "",
        f"{'LoRA adapters of' if adapters else 'Trained from'} `{_name(base)}` with "
        f"ta-grpo {_versions(manifest).get('ta-grpo', '')}. The licence of the base model applies.",
        "",
        "## Data",
        "",
        *_data(config, manifest),
        "",
        "## Recipe",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| `{name}` | {_cell(value)} |" for name, value in _settings(config)),
        "",
        "What is not named has the default of the trainer.",
        "",
        "## Budget",
        "",
        *_budget(run, step),
        "",
        "## Results",
        "",
        *_results(run, checkpoint),
        "",
        "## Versions",
        "",
        ", ".join(f"{name} {version}" for name, version in _versions(manifest).items()) or "not recorded",
        "",
        "## Citation",
        "",
        _CITATION,
    ]
    return "\n".join(lines)


def _method(config: Mapping[str, Any]) -> str:
    rephrasings = config.get("num_rephrasings", 0)
    if not rephrasings:
        return "GRPO"
    return f"TA-GRPO ({rephrasings} rephrasings, ratio anchor {config.get('ratio_anchor')})"


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in {**config, **(config.get("trl") or {})}.items():
        if name not in _NOT_SETTINGS and value not in (None, {}, []):
            yield name, value


def _data(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[str]:
    digest = (manifest.get("data") or {}).get("questions")
    lines = [f"Questions: `{_name(str(config.get('questions', '')))}`" + (f", SHA-256 `{digest}`." if digest else ".")]
    if config.get("num_rephrasings"):
        lines.append("Each was also asked in rephrasings of it, which should have the same answer.")
    return lines


def _budget(run: Path, step: int) -> list[str]:
    metrics = [line for line in read_jsonl(run / METRICS_FILE) if line.get("step", 0) <= step]
    seconds = sum(line.get("step_time") or 0 for line in metrics)
    lines = [f"{step:,} updates, {seconds:,.0f} seconds of steps."]
    if metrics and (tokens := metrics[-1].get("num_tokens")) is not None:
        lines.append(f"{tokens:,.0f} tokens of prompts and completions.")
    return lines


def _results(run: Path, checkpoint: Path) -> list[str]:
    """pass@k of this checkpoint; the folder ``eval`` itself holds those of a finished run's last one."""
    own = run / "eval" / checkpoint.name
    found = {path.parent.name: _read(path) for path in sorted(own.glob("*/summary.json"))}
    newest = max(run.glob(f"{CHECKPOINT_PREFIX}*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if newest == checkpoint:
        found |= {path.parent.name: _read(path) for path in sorted((run / "eval").glob("*/summary.json"))}
    if not found:
        return [f"Not evaluated yet: `ta-grpo eval {run.name} --benchmarks …` puts the results here."]
    lines = ["| set | questions | samples | k | pass@k, % | 95 % interval |", "|---|---|---|---|---|---|"]
    for summary in found.values():
        for k, value in summary.get("pass_at_k", {}).items():
            if value.get("mean") is not None:
                cells = (f"{100 * value['mean']:.1f}", f"{100 * value['low']:.1f} to {100 * value['high']:.1f}")
                lines.append(
                    f"| {_cell(summary['name'])} | {len(summary['correct'])} | {summary['num_samples']} | {k} | "
                    f"{cells[0]} | {cells[1]} |"
                )
    return [*lines, "", "Intervals are over questions; they do not cover the luck of a training run."]


def _versions(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    attempts = manifest.get("attempts") or [{}]
    return attempts[-1].get("versions", {})


def _on_the_hub(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()


def _name(model: str) -> str:
    """A path without the folders of somebody's machine."""
    return model if _on_the_hub(model) else model.rstrip("/").rpartition("/")[2]


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _name(text) if text.startswith(("/", "~")) else text
    return text.replace("|", "\\|").replace("\n", " ")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
