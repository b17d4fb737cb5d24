"""What one rephrasing of a question file is asked to do. Nothing heavy is imported here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..question_files import SUFFIXES, suffix_problem
from ..settings import help_of, setting
from .chat import DEFAULT_MODEL, Limits

RULES = "rules"
# What may differ between a run and its resumption without changing a line of it.
FREE_TO_CHANGE = (
    *("concurrency", "requests_per_minute", "tokens_per_minute", "max_cost", "price_in", "price_out", "timeout"),
    *("resume", "push_to_hub", "output"),
)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class RephraseSettings:
    """Settings of the verb ``rephrase``."""

    output: Path = setting(
        Path(), "File to write (.jsonl, .json, .parquet, .csv). One that is there is never replaced."
    )
    num_rephrasings: int = setting(7, "N, rephrasings that each question should have; those it has are kept and count.")
    model: str = setting(DEFAULT_MODEL, "Name under which the endpoint knows the model; rules: none, as --rules.")
    rules: bool = setting(False, "Rephrase by rules: offline, deterministic, modest.")
    base_url: str | None = setting(
        None, "Address of the endpoint, such as http://localhost:8000/v1. Its key: the variable OPENAI_API_KEY."
    )
    transformations: str | list[str] = setting(
        "", "What to change, with commas: wording, format, order, setting, variables, mix. Default: all, in turn."
    )
    prompts: Path | None = setting(None, "Folder of prompt templates (NAME.txt) in place of ours or beside them.")
    checks: str | list[str] = setting("", "Checks to make, with commas. Default: all that need no model.")
    skip_checks: str | list[str] = setting("", "Checks to leave out, with commas.")
    solver_model: str | None = setting(
        None, "Paid check: this model must find the answer of the original and of each rephrasing."
    )
    solver_samples: int = setting(3, "Answers of the solver to a text; those of most of them count.")
    judge_model: str | None = setting(None, "Paid check: this model must call both the same problem, either way round.")
    max_attempts: int = setting(3, "Requests for one rephrasing; each after the first says what was wrong.")
    temperature: float = setting(1.0, "Sampling temperature.")
    max_tokens: int = setting(2048, "Longest reply, in tokens.")
    concurrency: int = setting(16, "Requests under way at a time.")
    requests_per_minute: int | None = setting(None, "Requests sent a minute, at most.")
    tokens_per_minute: int | None = setting(None, "Tokens a minute, at most: of prompts, and of the longest replies.")
    timeout: float = setting(600.0, "Seconds until a request is given up and tried again.")
    max_cost: float | None = setting(None, "Dollars to spend in all, resumed attempts included.")
    price_in: float | None = setting(
        None, "Dollars per million tokens sent, for every model. Default: the list of genai-prices."
    )
    price_out: float | None = setting(None, "Dollars per million tokens received, for every model.")
    columns: dict[str, str] | None = setting(
        None, "Where the question file has other column names: --columns.question problem --columns.answer solution."
    )
    limit: int | None = setting(None, "The first questions only.")
    seed: int = setting(0, "Decides which transformations a question gets, and what rules do.")
    cache: Path | None = setting(None, "SQLite file of replies, which several jobs may share. Default: beside OUTPUT.")
    push_to_hub: str | None = setting(None, "Upload the result, with a card, to this data set: OWNER/NAME.")
    resume: bool = setting(False, "Go on with an unfinished run.")

    def __post_init__(self) -> None:
        if self.output == Path():
            raise UserError(f"--output is missing: {help_of(RephraseSettings)['output']}")
        self.output = Path(self.output)
        if self.output.suffix.lower() not in SUFFIXES:
            raise UserError(suffix_problem(self.output))
        for name in ("num_rephrasings", "max_attempts", "solver_samples", "max_tokens", "limit", "timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name.replace('_', '-')}={value} must be above 0")
        if self.temperature < 0:
            raise UserError(f"--temperature={self.temperature} must be 0 or more")
        self.limits()
        for name in ("price_in", "price_out"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise UserError(f"--{name.replace('_', '-')} must be 0 or more")
        if (self.price_in is None) != (self.price_out is None):
            raise UserError("--price-in and --price-out go together; give both")
        if self.model == RULES:
            self.rules = True
        if self.rules:
            if self.prompts is not None or self.model not in (DEFAULT_MODEL, RULES):
                raise UserError("--rules asks no model; leave --model and --prompts out")
            self.model = RULES
        if self.push_to_hub is not None and not _REPOSITORY.fullmatch(self.push_to_hub):
            raise UserError(f"--push-to-hub {self.push_to_hub!r}: name a data set as OWNER/NAME")
        self.transformations = words(self.transformations)
        self.checks, self.skip_checks = words(self.checks), words(self.skip_checks)

    @property
    def asks_a_model(self) -> bool:
        return not self.rules or self.solver_model is not None or self.judge_model is not None

    def limits(self) -> Limits:
        """Bounds of the traffic."""
        return Limits(self.concurrency, self.requests_per_minute, self.tokens_per_minute, self.max_cost)

    def models(self) -> list[str]:
        """Every model that is paid for."""
        main = None if self.rules else self.model
        return list(dict.fromkeys(name for name in (main, self.solver_model, self.judge_model) if name))

    def record(self) -> dict[str, Any]:
        """The settings as a file holds them."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


def words(value: str | Sequence[str]) -> list[str]:
    """Words with commas between them, or a list of words."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else list(value)


def skipped_checks(only: Sequence[str], skip: Sequence[str]) -> tuple[str, ...]:
    """The checks to leave out: those in ``skip``, and where ``only`` names some, all others.

    Raises:
        UserError: a name that is no check's.
    """
    from .checks import CHECKS

    for flag, names in (("--checks", only), ("--skip-checks", skip)):
        for name in names:
            if name not in CHECKS:
                near = difflib.get_close_matches(name, list(CHECKS), n=1)
                nearest = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"{flag}: no check {name!r}; there is: {', '.join(CHECKS)}{nearest}")
    return tuple(name for name in CHECKS if (only and name not in only) or name in skip)
