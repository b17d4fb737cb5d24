"""Questions as the Parquet rows that verl reads, with their rephrasings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..questions import Question, QuestionSet, as_train_rows, check_prompt_template, load_questions
from ..rundir import write_parquet_atomic
from ..settings import setting
from ..verifier import with_checkable_answers
from . import TRAINING_LOOP, VALIDATION_LOOP


@dataclass
class ExportSettings:
    """Settings of the verb ``export``."""

    questions: str = setting("", "Question file (.jsonl, .json, .parquet, .csv) or a named set: the training rows.")
    validation: str | None = setting(None, "Question file or named set of validation rows, asked as they are.")
    output_dir: Path = setting(Path(), "Directory to write train.parquet and validation.parquet into.")
    reward: str = setting("accuracy", "accuracy leaves out questions whose answer cannot be checked; any other, none.")
    prompt_template: str | None = setting(
        None, "How a question becomes a prompt; holds {question} once. Default: the question set's own."
    )
    columns: dict[str, str] | None = setting(
        None, "Where the question file has other column names: --columns.question problem --columns.answer solution."
    )
    limit: int | None = setting(None, "Export the first training questions only.")

    def __post_init__(self) -> None:
        if not self.questions:
            raise UserError("--questions is missing: name a question file or set")
        if self.output_dir == Path():
            raise UserError("--output-dir is missing: name the directory to write the Parquet files into")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit={self.limit} must be 1 or more")


@dataclass(frozen=True)
class Exported:
    """A Parquet file of questions. ``left_out``: ids of questions whose answer the verifier cannot check."""

    path: Path
    questions: int
    rephrasings: int
    left_out: tuple[str, ...]


def export(settings: ExportSettings) -> list[Exported]:
    """Write ``train.parquet``, and ``validation.parquet`` where validation questions are named.

    Raises:
        UserError: questions that cannot be read, none that can be checked, or a file that is there already.
    """
    questions = load_questions(settings.questions, settings.columns)
    jobs = [("train.parquet", questions[: settings.limit], True)]
    if settings.validation:
        jobs.append(("validation.parquet", load_questions(settings.validation), False))
    for name, _, _ in jobs:
        if (path := settings.output_dir / name).exists():
            raise UserError(f"{path} is there already and is never overwritten; choose another --output-dir")
    return [
        export_file(
            settings.output_dir / name,
            chosen,
            settings.prompt_template or chosen.prompt_template,
            for_training=for_training,
            check_answers=settings.reward == "accuracy",
        )
        for name, chosen, for_training in jobs
    ]


def export_file(
    path: Path, questions: QuestionSet, template: str, *, for_training: bool = True, check_answers: bool = True
) -> Exported:
    """Write questions to a Parquet file, in one step.

    Args:
        path: of the file, which is replaced.
        questions: to write.
        template: how a question becomes a prompt.
        for_training: rows for our agent loop, with rephrasings; else rows that verl's own loop asks as they are.
        check_answers: leave out questions whose answer the verifier cannot check, with a warning that names them.

    Raises:
        UserError: no question is left, or a bad template.
    """
    check_prompt_template(template)
    kept, left_out = with_checkable_answers(questions) if check_answers else (list(questions), [])
    name = questions.name or "questions"
    rows = list(verl_rows(kept, template, name, for_training))
    write_parquet_atomic(path, rows, schema=_schema())
    written = sum(len(row["extra_info"]["rephrasings"]) for row in rows)
    return Exported(path, len(rows), written, tuple(left_out))


def verl_rows(
    questions: Iterable[Question], template: str, data_source: str, for_training: bool
) -> Iterable[dict[str, Any]]:
    """One row a question, in verl's form.

    ``data_source``, ``agent_name``, ``prompt`` (messages), ``reward_model`` with the answer as ``ground_truth``, and
    ``extra_info`` with ``index``, ``id`` and ``rephrasings`` (message lists).
    """
    for index, row in enumerate(as_train_rows(questions, template, conversational=True)):
        yield {
            "data_source": data_source,
            "agent_name": TRAINING_LOOP if for_training else VALIDATION_LOOP,
            "prompt": row["prompt"],
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {
                "index": index,
                "id": row["id"],
                "rephrasings": row["rephrasings"] if for_training else [],
            },
        }


def _schema() -> Any:
    """Stated, since a column of empty lists alone has no type of its own."""
    import pyarrow as pa

    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("agent_name", pa.string()),
            ("prompt", messages),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            (
                "extra_info",
                pa.struct([("index", pa.int64()), ("id", pa.string()), ("rephrasings", pa.list_(messages))]),
            ),
        ]
    )
