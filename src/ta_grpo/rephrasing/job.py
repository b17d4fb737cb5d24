"""One output file in the making: its questions, its files, and what of it is done.

Beside the output file ``NAME.jsonl`` there are, until the run has ended, ``NAME.partial.jsonl``, to which finished
questions are appended in the order of the input; and for good ``NAME.meta.json`` (settings, questions' hash, money
spent, quality) and ``NAME.cache.sqlite`` (the replies).
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..openai_client import Endpoint
from ..question_files import write_file
from ..questions import Question, QuestionSet, iter_questions, load_questions, question_record
from ..rundir import append_jsonl, iter_jsonl, read_json, write_json_atomic
from .cache import ReplyCache, Spending
from .chat import Chat
from .checks import CHECKS
from .model_checks import JUDGE_CHECK, SOLVER_CHECK
from .prices import Price, listed_price
from .quality import QualityReport
from .records import Rejection
from .rephrase_settings import FREE_TO_CHANGE, RephraseSettings, skipped_checks, words
from .transformations import Prompt, Prompts, deal


@dataclass(frozen=True)
class Progress:
    """How far a run is. ``accepted`` and ``rejected`` count attempts of the ``done`` questions."""

    done: int
    total: int
    accepted: int
    rejected: int
    missing: int
    spent: Spending


@dataclass(frozen=True)
class Outcome:
    """The end of a run: where its result lies, its quality, and what all its attempts have cost.

    ``retries`` and ``replies_without_usage`` are of this attempt alone; tokens of the latter are estimated.
    """

    output: Path
    report: QualityReport
    spent: Spending
    priced: bool
    retries: int = 0
    replies_without_usage: int = 0


@dataclass
class Slot:
    """One rephrasing to be made, and what has become of it so far."""

    number: int
    transformation: str
    prompt: Prompt
    rejected: list[Rejection] = field(default_factory=list)
    attempts: int = 0
    text: str = ""
    final: bool = False
    last_reply: str = ""
    last_reasons: list[Rejection] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return bool(self.text)

    def reject(self, reasons: Sequence[Rejection]) -> None:
        self.rejected += reasons
        self.last_reasons = list(reasons)

    def messages(self) -> list[dict[str, str]]:
        """The prompt, and after a rejection the reply and what is wrong with it."""
        messages = [{"role": "user", "content": self.prompt.text}]
        if self.last_reasons and self.last_reply:
            wrong = "\n".join(f"- {reason.reason}" for reason in self.last_reasons)
            again = (
                f"That is not accepted:\n{wrong}\n\nRewrite the original question again, so that this does not apply. "
                f"Write it between the lines <{self.prompt.tag}> and </{self.prompt.tag}>."
            )
            messages += [{"role": "assistant", "content": self.last_reply}, {"role": "user", "content": again}]
        return messages


class Job:
    """One output file in the making."""

    def __init__(self, questions: Any, settings: RephraseSettings) -> None:
        self.settings = settings
        self.output = settings.output
        self.partial = settings.output.with_suffix(".partial.jsonl")
        self.meta = settings.output.with_suffix(".meta.json")
        self.cache_file = settings.cache or settings.output.with_suffix(".cache.sqlite")
        self.skip = skipped_checks(words(settings.checks), words(settings.skip_checks))
        self.made_checks = [name for name in CHECKS if name not in self.skip]
        self.made_checks += [SOLVER_CHECK] * (settings.solver_model is not None)
        self.made_checks += [JUDGE_CHECK] * (settings.judge_model is not None)
        self.prompts = Prompts(settings.prompts)
        self.names = list(settings.transformations)
        if not settings.rules:
            self.names = self.names or self.prompts.transformations
            self.prompts.check(self.names)
        else:
            check_rule_names(self.names)
        self.prices = self._prices()
        self.priced = all(model in self.prices for model in settings.models())
        if settings.max_cost is not None and not self.priced:
            unknown = next(model for model in settings.models() if model not in self.prices)
            raise UserError(f"--max-cost: the price of {unknown} is not known; give --price-in and --price-out")
        self._read, self.source = _reader(questions, settings)
        self.total, self.data_hash = self._counted()
        self.record = {k: v for k, v in settings.record().items() if k not in FREE_TO_CHANGE}
        self.done = 0
        self.report = QualityReport()
        self.cache: ReplyCache | None = None
        self.chat: Chat | None = None

    def _prices(self) -> dict[str, Price]:
        settings = self.settings
        if settings.price_in is not None and settings.price_out is not None:
            return dict.fromkeys(settings.models(), Price(settings.price_in, settings.price_out))
        listed = {model: listed_price(model, settings.base_url) for model in settings.models()}
        return {model: price for model, price in listed.items() if price is not None}

    def _counted(self) -> tuple[int, str]:
        """How many questions there are to do, and a hash of all of them. Bad rows are refused here."""
        digest, count = hashlib.sha256(), 0
        for question in self._read(True):
            count += 1
            if self.settings.limit is None or count <= self.settings.limit:
                digest.update(
                    json.dumps(question_record(question), sort_keys=True, default=str).encode("utf-8", "replace")
                )
        if self.settings.limit is not None:
            count = min(count, self.settings.limit)
        return count, digest.hexdigest()

    def questions(self) -> Iterator[Question]:
        return itertools.islice(self._read(False), self.settings.limit)

    def endpoint(self) -> Endpoint:
        return Endpoint(self.settings.base_url)

    def slots(self, question: Question) -> list[Slot]:
        """The rephrasings that a question lacks."""
        wanted, have = self.settings.num_rephrasings, len(question.rephrasings)
        seed = f"{self.settings.seed}/{question.id}"
        dealt = deal(self.names, question.question, wanted, seed)
        return [
            Slot(number, name, self.prompts.rephrase(name, question.question, dealt[:number].count(name)))
            for number, name in enumerate(dealt)
            if number >= have
        ]

    # Files.

    def check(self) -> None:
        """Refuse what cannot be done, and touch nothing."""
        self._check_files()
        if self.settings.asks_a_model:
            self.endpoint()

    def _check_files(self) -> None:
        begun = self.meta.exists()
        if not self.settings.resume:
            # A kill before anything was begun leaves an empty file.
            unused = not begun and self.partial.exists() and not self.partial.stat().st_size
            for path in (self.output, self.partial):
                if path.exists() and not (unused and path == self.partial):
                    hint = "add --resume to go on with that run, or " if begun else ""
                    raise UserError(f"{path} exists and is never replaced; {hint}choose another --output")
            return
        if not begun:
            raise UserError(f"{self.meta} does not exist: there is nothing to resume; leave --resume out to start")
        before = self._meta()
        changed = [
            f"{name}: {before['settings'].get(name)!r} -> {value!r}"
            for name, value in json.loads(json.dumps(self.record)).items()
            if before["settings"].get(name) != value
        ]
        if changed:
            raise UserError(
                f"{self.output} was begun with other settings ({'; '.join(changed)}); resume with the same ones, or "
                "choose another --output"
            )
        if not self.settings.rules and before.get("templates") != self.prompts.labels():
            raise UserError(f"the prompt templates have changed since {self.output} was begun; choose another --output")
        if before.get("questions_sha256") != self.data_hash:
            raise UserError(f"the questions have changed since {self.output} was begun; choose another --output")

    def _meta(self) -> dict[str, Any]:
        content = read_json(self.meta)
        if not isinstance(content.get("settings"), dict):
            raise UserError(f"{self.meta} is damaged: it has no settings; restore it, or choose another --output")
        return content

    def is_done(self) -> bool:
        return self.settings.resume and self.output.exists() and self._meta().get("finished") is True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Two processes must not write one output."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with open(self.partial, "ab") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(
                    f"another process is writing {self.output}; wait for it, stop it, or choose another --output"
                ) from None
            try:
                yield
            finally:
                if self.cache is not None:
                    self.cache.close()

    def begin(self) -> None:
        """Take up what is there."""
        name = hashlib.sha256(f"{self.output.resolve()}\n{self.data_hash}\n{json.dumps(self.record)}".encode())
        if self.settings.asks_a_model:
            self.cache = ReplyCache(self.cache_file, name.hexdigest())
            if not self.settings.resume:
                self.cache.forget_job()
        if not self.settings.resume:
            self._write_meta(finished=False)
        if self.output.exists():  # killed after the last step but one
            self.done = self.total
            return
        ids = (question.id for question in self.questions())
        for record, _ in iter_jsonl(self.partial):
            if record.get("id") != next(ids, None):
                raise UserError(f"{self.partial} holds other questions; move it away and start anew")
            self.done += 1
            self._count(record, self.partial)

    def _count(self, record: dict[str, Any], path: Path) -> None:
        """Count a finished question that was read."""
        try:
            self.report.add(record)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
            where = f"{path}, question {record.get('id')!r:.80}"
            raise UserError(f"{where}: a field is missing or damaged; restore the file, or move it away") from None

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        """Append finished questions."""
        append_jsonl(self.partial, records)
        for record in records:
            self.done += 1
            self.report.add(record)

    def finish(self) -> Outcome:
        """Put the output in its place."""
        if not self.output.exists():
            if self.output.suffix.lower() == ".jsonl":
                os.replace(self.partial, self.output)
            else:
                write_file(self.output, [record for record, _ in iter_jsonl(self.partial)])
        self.partial.unlink(missing_ok=True)
        if not self.report.questions:
            self._read_output()
        self._write_meta(finished=True)
        return self._outcome()

    def finished(self) -> Outcome:
        """The outcome of a run that has come to its end before."""
        self._read_output()
        meta = self._meta()
        if self.report.figures() != meta.get("quality"):
            raise UserError(f"{self.output} is not what {self.meta.name} says of it; restore it, or move both away")
        if self.settings.asks_a_model:
            return Outcome(self.output, self.report, Spending(**meta["spent"]), self.priced)
        return self._outcome()

    def _read_output(self) -> None:
        self.report = QualityReport()
        is_jsonl = self.output.suffix.lower() == ".jsonl"
        rows = (record for record, _ in iter_jsonl(self.output)) if is_jsonl else None
        for record in rows or map(question_record, load_questions(self.output)):
            self._count(record, self.output)

    def spent(self) -> Spending:
        return Spending() if self.cache is None else self.cache.spent()

    def _write_meta(self, finished: bool) -> None:
        content: dict[str, Any] = {
            "finished": finished,
            "questions": self.source,
            "questions_sha256": self.data_hash,
            "settings": self.record,
            "templates": {} if self.settings.rules else self.prompts.labels(),
        }
        if finished:
            content |= {"spent": asdict(self.spent()), "quality": self.report.figures()}
        write_json_atomic(self.meta, content)

    def _outcome(self) -> Outcome:
        retries = self.chat.retries if self.chat else 0
        without = self.chat.replies_without_usage if self.chat else 0
        return Outcome(self.output, self.report, self.spent(), self.priced, retries, without)

    def progress(self) -> Progress:
        report = self.report
        spent = self.chat.spent if self.chat else Spending()
        return Progress(self.done, self.total, report.num_accepted, report.num_rejected, report.missing, spent)


def check_rule_names(names: Sequence[str]) -> None:
    """Refuse transformations that there is no rule for.

    Raises:
        UserError: with those that there are.
    """
    from .rules import rule_rephrasings

    rule_rephrasings("", 0, transformations=names or None)


def _reader(questions: Any, settings: RephraseSettings) -> tuple[Callable[[bool], Iterable[Question]], str]:
    """A function that begins to read the questions anew, and what they are called."""
    if isinstance(questions, str | os.PathLike):
        path = Path(questions)
        if path.is_file() and path.suffix.lower() == ".jsonl":
            return (lambda report: iter_questions(path, settings.columns, report)), str(path)
        loaded = load_questions(str(questions), settings.columns)
        return (lambda report: loaded), str(questions)
    name = questions.name if isinstance(questions, QuestionSet) else "questions"
    listed = list(questions)
    return (lambda report: listed), name
