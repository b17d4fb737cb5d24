"""One named set: how it is published, and how it becomes questions, from the Hub or from a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..question_files import Row, Table, read_file, read_rows
from ..questions import DEFAULT_PROMPT_TEMPLATE, QuestionSet, parse_table
from . import shapes

logger = logging.getLogger(__name__)

TEST = "test"


class Split(NamedTuple):
    """What a split of ours is called on the Hub, and how many rows it has there."""

    hub_split: str
    rows: int


@dataclass(frozen=True)
class Benchmark:
    r"""A set of questions as others publish it.

    Attributes:
        name: what users call it.
        hub_id: the data set on the Hugging Face Hub.
        splits: our split -> the Hub's; a set that is only for evaluation has the one split ``test``.
        columns: our field -> the published column that holds it (before ``convert``). ``id`` may be absent.
        licence: what the set may be used for.
        config: the data set's configuration; None if it has but one.
        revision: commit, branch or tag on the Hub; None: the newest. Pin it by ``NAME@REVISION``.
        needed: further published columns without which a row is not of the published shape.
        convert: from a renamed published row to one of ours; raises ``ShapeError``.
        clean: brings an answer as the set writes it to a plain form; applied to rows in either shape.
        marker: where the published columns are named as ours: what the published ``answer`` holds and ours never does.
        prompt_template: how its questions are asked.
    """

    name: str
    hub_id: str
    splits: Mapping[str, Split]
    columns: Mapping[str, str]
    licence: str
    config: str | None = None
    revision: str | None = None
    needed: tuple[str, ...] = ()
    convert: Callable[[dict[str, Any]], dict[str, Any]] = shapes.as_published
    clean: Callable[[str], str] = shapes.plain_answer
    marker: str = ""
    prompt_template: str = field(default=DEFAULT_PROMPT_TEMPLATE, repr=False)

    def questions(self, split: str = "train", revision: str | None = None) -> QuestionSet:
        """The questions of ``SPLIT`` or ``SPLIT@REVISION`` from the Hub, or of ``SPLIT=FILE`` from a file.

        The default split is ``train``, as ``load_questions`` asks for it; a set without one refuses.

        Raises:
            UserError: no such split, two different revisions, a revision of a file; see ``from_hub``, ``from_file``.
        """
        name, is_file, path = split.partition("=")
        name, pins, pinned = name.partition("@")
        if name not in self.splits:
            known = ", ".join(f"{self.name}/{known}" for known in self.splits)
            raise UserError(f"{self.name} has no split {name!r}; there is: {known}")
        if pins and not pinned:
            raise UserError(f"{self.name}@: name the revision after the @: a commit, branch or tag on the Hub")
        if pinned and revision and pinned != revision:
            raise UserError(f"{self.name}: two revisions are asked for, {pinned!r} and {revision!r}; name one")
        revision = pinned or revision
        if not is_file:
            return self.from_hub(name, revision)
        if not path:
            raise UserError(f"{self.name}=: name the file after the equals sign, such as {self.name}=FILE.jsonl")
        if revision:
            raise UserError(f"{self.name}={path}: a file has no revision; leave out {revision!r}")
        return self.from_file(path, name)

    def from_hub(self, split: str = TEST, revision: str | None = None) -> QuestionSet:
        """The set as the Hub, or the local cache of ``datasets``, has it. No code of the data set is run.

        Each question's ``source`` names the data set, and the revision if one was asked for.

        Raises:
            UserError: ``datasets`` is not installed; the set cannot be loaded (no network, gated, not found); it has
                another number of rows than it should; or its rows are not as published.
        """
        expected = self.splits[split].rows
        revision = revision or self.revision
        table = read_rows(self._download(split, revision))
        source = f"{self.hub_id}@{revision}" if revision else self.hub_id
        if len(table.rows) != expected:
            raise UserError(
                f"{self._set_name(split)}: {source} has {len(table.rows)} rows, and should have {expected}; pin a "
                f"revision that does ({self.name}/{split}@REVISION), or {self._file_instead(split)}"
            )
        table = self._own_table(table, self._set_name(split), published=True)
        sourced = [row._replace(values={"source": source} | row.values) for row in table.rows]
        return self._question_set(table._replace(rows=sourced), split, source, None)

    def from_file(self, path: str | Path, split: str = TEST) -> QuestionSet:
        """The set from a file, in its published shape or as our own question records; which, the columns tell.

        A number of rows other than the published one is logged, not refused.

        Raises:
            UserError: no such file; one that cannot be read or is in neither shape; or bad rows, all in one message
                with their lines.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{self.name}: there is no file {path}")
        table = read_file(path)
        if not table.rows:
            raise UserError(f"{path}: holds no questions")
        found, expected = len(table.rows), self.splits[split].rows
        log = logger.info if found == expected else logger.warning
        log("%s: %d rows in %s; the published set has %d", self._set_name(split), found, path, expected)
        table = self._own_table(table, self._set_name(split), published=self._is_published(table, path))
        return self._question_set(table, split, str(path), path)

    def _question_set(self, table: Table, split: str, origin: str, path: Path | None) -> QuestionSet:
        name = self._set_name(split)
        questions, dropped = parse_table(table, origin, name)
        return QuestionSet(questions, name, path, dropped, self.prompt_template)

    def _set_name(self, split: str) -> str:
        return self.name if len(self.splits) == 1 else f"{self.name}/{split}"

    # The Hub.

    def _download(self, split: str, revision: str | None) -> Any:
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise UserError(
                f"{self.name} comes from the Hugging Face Hub, which needs the package {error.name}; run: pip install "
                f"datasets; or {self._file_instead(split)}"
            ) from None
        try:
            return datasets.load_dataset(
                self.hub_id, self.config, split=self.splits[split].hub_split, revision=revision
            )
        except Exception as error:  # those of the HTTP library beneath come through, whichever that is
            raise UserError(
                f"{self.name}: the data set {self.hub_id} cannot be loaded: {self._reason(error)}; or "
                f"{self._file_instead(split)}"
            ) from error

    def _reason(self, error: Exception) -> str:
        told = str(error).strip()
        page = f"https://huggingface.co/datasets/{self.hub_id}"
        if "OfflineModeIsEnabled" in told:
            return "offline mode is on, and the set is not in the cache; unset HF_HUB_OFFLINE and HF_DATASETS_OFFLINE"
        if isinstance(error, ConnectionError):
            return f"the Hub cannot be reached ({told}); check the network"
        if "gated" in told:
            return f"it is gated; ask for access on {page}, then log in: hf auth login"
        return f"{type(error).__name__}: {told.splitlines()[0] if told else 'no reason is given'}; see {page}"

    def _file_instead(self, split: str = TEST) -> str:
        name = self.name if split == TEST else f"{self.name}/{split}"
        return f"use a file of the set: {name}=FILE.jsonl"

    # Rows.

    def _is_published(self, table: Table, path: Path) -> bool:
        """Whether a file's rows are in the published shape; False: as our own records.

        Raises:
            UserError: neither.
        """
        readable = [row for row in table.rows if not row.problem]
        there = set(table.columns)
        published = {column for ours, column in self.columns.items() if ours != "id"} | set(self.needed)
        if {"question", "answer"} <= there:
            return bool(self.marker) and any(self.marker in str(row.values.get("answer")) for row in readable)
        if published <= there or not readable:
            return True
        raise UserError(
            f"{path}: neither rows of {self.name} as published (columns {', '.join(sorted(published))}) nor questions "
            f"(columns question, answer); the columns are: {', '.join(map(str, table.columns))}"
        )

    def _own_table(self, table: Table, set_name: str, published: bool) -> Table:
        rows = [self._own_row(row, f"{set_name}/{n}", set_name, published) for n, row in enumerate(table.rows, 1)]
        return Table(list(dict.fromkeys(column for row in rows for column in row.values)), rows)

    def _own_row(self, row: Row, default_id: str, set_name: str, published: bool) -> Row:
        """The row as one of our records; what is wrong with it becomes its ``problem``."""
        if row.problem:
            return row
        values = row.values
        if published:
            values = shapes.rename(values, self.columns)
            published_id = values.get("id")
            values["id"] = default_id if published_id is None else f"{set_name}/{published_id}"
            if "answer" in values:
                try:
                    values = self.convert(values)
                except shapes.ShapeError as error:
                    return row._replace(problem=str(error))
        if isinstance(values.get("answer"), str):
            values = values | {"answer": self.clean(values["answer"])}
        return row._replace(values=values)
