"""The card of a rephrased file, which says how it was made; and the file as a data set on the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..paper import ARXIV_ID, TITLE
from ..rundir import write_text_atomic
from .job import Outcome
from .rephrase_settings import RephraseSettings


def check_hub() -> None:
    """Refuse before anything is paid for.

    Raises:
        UserError: the package that uploads is not installed.
    """
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise UserError("--push-to-hub needs the package huggingface_hub; run: pip install huggingface_hub") from None


def push(outcome: Outcome, settings: RephraseSettings, questions: str) -> str:
    """Upload the output and its card, in one commit; returns the address of the data set.

    The token is the Hub client's own (``hf auth login`` or HF_TOKEN). A new data set is private.

    Raises:
        UserError: the Hub refuses or cannot be reached. The output is safe: ``--resume`` uploads it again.
    """
    import huggingface_hub

    name = str(settings.push_to_hub)
    card = dataset_card(outcome, settings, questions)
    operations = [
        huggingface_hub.CommitOperationAdd(outcome.output.name, str(outcome.output)),
        huggingface_hub.CommitOperationAdd("README.md", card.encode("utf-8")),
    ]
    try:
        api = huggingface_hub.HfApi()
        api.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
        api.create_commit(name, operations, commit_message="Rephrased questions", repo_type="dataset")
    except Exception as error:  # those of the HTTP library beneath come through, whichever that is
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"--push-to-hub {name}: {type(error).__name__}: {reason}; the result is in {outcome.output}; log in with: "
            "hf auth login, and add --resume to upload again"
        ) from error
    return f"https://huggingface.co/datasets/{name}"


def write_card(outcome: Outcome, settings: RephraseSettings, questions: str) -> Path:
    """Write the card beside the output, ``NAME.README.md``; returns its path."""
    path = outcome.output.with_suffix(".README.md")
    write_text_atomic(path, dataset_card(outcome, settings, questions))
    return path


def dataset_card(outcome: Outcome, settings: RephraseSettings, questions: str) -> str:
    """The card in Markdown: what the rows hold, how they were made, and the quality figures."""
    figures = outcome.report.figures()
    name = settings.push_to_hub.partition("/")[2] if settings.push_to_hub else outcome.output.stem
    made_by = "rules, without a model" if settings.rules else f"the model `{settings.model}`"
    paid = [f"- {what}: `{model}`" for what, model in _paid_checks(settings)]
    lines = [
        "---",
        f"pretty_name: {json.dumps(name)}",
        "tags: [ta-grpo, rephrasings]",
        "configs:",
        "- config_name: default",
        f"  data_files: {json.dumps(outcome.output.name)}",
        "---",
        "",
        f"# Rephrasings of {questions.rpartition('/')[2]}",
        "",
        f"{figures['questions']:,} questions with final answers and {figures['accepted'] + figures['given']:,} "
        f"rephrasings that should have the same answers, made by {made_by} with `ta-grpo rephrase`.",
        "",
        "Every rephrasing passed the checks that its row names. Checks of text cannot see everything: a fact without a "
        "number may be missing. The licence of the original questions applies.",
        *(["", "Checked by models too:", *paid] if paid else []),
        "",
        "| column | holds |",
        "|---|---|",
        "| `id`, `question`, `answer`, `source` | the original |",
        "| `rephrasings` | texts with the same answer |",
        "| `rephrasing_info` | of each: transformation, model, prompt template, attempts, checks, rejected attempts |",
        "| `rephrasing_shortfall` | what could not be made, and why |",
        "",
        "| transformation | attempts | accepted |",
        "|---|---|---|",
        *(f"| {name} | {row['attempts']} | {row['accepted']} |" for name, row in figures["transformations"].items()),
        "",
        f"Missing: {figures['missing']} rephrasings, of {figures['short_questions']} questions.",
        *_spread_lines(figures),
        "",
        *_spent_lines(outcome),
        "",
        f"The method that these are for: {TITLE}, arXiv {ARXIV_ID}. Cite the original questions as their authors ask.",
    ]
    return "\n".join(lines) + "\n"


def _paid_checks(settings: RephraseSettings) -> list[tuple[str, str]]:
    found = (("solver agreement", settings.solver_model), ("judge, both ways round", settings.judge_model))
    return [(what, model) for what, model in found if model]


def _spent_lines(outcome: Outcome) -> list[str]:
    spent = outcome.spent
    if not spent.calls:
        return ["No model was asked."]
    price = f", {spent.cost:.2f} dollars" if outcome.priced else ""
    return [f"Asked: {spent.calls:,} calls, {spent.tokens_in:,} tokens sent, {spent.tokens_out:,} received{price}."]


def _spread_lines(figures: dict[str, Any]) -> list[str]:
    named = (("similarity", "Words in common with the original"), ("length", "Length over the original's"))
    spreads = [(what, figures[name]) for name, what in named if figures[name] is not None]
    return [f"{what}: {it['mean']:.2f} on average, {it['lowest']:.2f} to {it['highest']:.2f}." for what, it in spreads]
