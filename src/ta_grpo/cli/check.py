"""``ta-grpo check``: what is wrong with a rephrased question file, ours or someone else's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from ..errors import UserError
from ..settings import setting
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_table, print_text

if TYPE_CHECKING:
    from ..rephrasing.audit import Audit


@dataclass
class CheckSettings:
    """Settings of the verb ``check``."""

    layout: str | None = setting(
        None, "questions, math-a9-u (index, sub_index) or metamath (query, original_question). Default: by the columns."
    )
    columns: dict[str, str] | None = setting(
        None, "Where the file has other column names: --columns.question problem --columns.answer solution."
    )
    against: str | list[str] = setting(
        "", "Benchmarks that nothing may overlap, with commas: aime24, math500=FILE or a question file."
    )
    ngram: int = setting(8, "Words of a run that counts as shared.")
    overlap: float = setting(0.5, "Share of the shorter text's runs from which on two texts overlap.")
    checks: str | list[str] = setting("", "Checks of rephrasings to make, with commas. Default: all.")
    skip_checks: str | list[str] = setting("", "Checks of rephrasings to leave out, with commas.")
    limit: int | None = setting(None, "The first questions only.")
    show: int = setting(10, "Findings of each kind to print.")

    def __post_init__(self) -> None:
        for name in ("ngram", "limit"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)} must be 1 or more")
        if not 0 < self.overlap <= 1:
            raise UserError(f"--overlap={self.overlap} must be above 0 and at most 1")
        if self.show < 0:
            raise UserError(f"--show={self.show} must be 0 or more")


def check(
    file: Annotated[str, Parameter(help="Question file (.jsonl, .json, .parquet, .csv) or a named set.")],
    /,
    flags: flags_of(CheckSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    json: AsJson = False,
) -> int:
    """Validate a question file: its rephrasings, answers, duplicates, and overlap with benchmarks.

    Exits 1 if anything is wrong. Checks of text cannot see everything; see rephrase --solver-model and --judge-model.
    """
    settings = resolve(CheckSettings, flags, config)
    from ..rephrasing.audit import audit
    from ..rephrasing.importers import load_rephrased
    from ..rephrasing.rephrase_settings import skipped_checks, words

    skip = skipped_checks(words(settings.checks), words(settings.skip_checks))
    against = _benchmarks(words(settings.against))
    imported = load_rephrased(file, settings.layout, settings.columns, settings.limit)
    found = audit(imported.questions, skip, against, settings.ngram, settings.overlap)
    found.problems, found.left_out = imported.problems, dict(imported.left_out)
    if json:
        figures = {"layout": imported.layout, "failed": found.failed, "rephrasings_rejected": found.num_rejected}
        print_json({"file": file} | figures | {"by_check": found.by_check()} | asdict(found))
    else:
        _show(file, imported.layout, found, settings)
    return 1 if found.failed else 0


def _benchmarks(specs: list[str]) -> dict[str, Any]:
    from ..benchmarks import load_benchmark

    sets: dict[str, Any] = {}
    for spec in specs:
        questions = load_benchmark(spec)
        sets[spec if questions.name in sets else questions.name] = questions
    return sets


def _show(file: str, layout: str, found: Audit, settings: CheckSettings) -> None:
    table = Table(title=f"{file} ({layout})", title_justify="left")
    for name in ("what", "looked at", "wrong"):
        table.add_column(name, justify="left" if name == "what" else "right")
    texts = found.questions + found.rephrasings
    table.add_row("rephrasings", str(found.rephrasings), str(found.num_rejected))
    for name, count in found.by_check().most_common():
        table.add_row(f"  {name}", "", str(count))
    table.add_row("answers that can be verified", str(found.questions), str(len(found.answers)))
    table.add_row("texts of two questions", str(texts), str(len(found.duplicates)))
    for name, size in found.benchmarks.items():
        overlaps = sum(finding["benchmark"] == name for finding in found.overlaps)
        table.add_row(f"overlap with {name} ({size})", str(texts), str(overlaps))
    table.add_row("rows", "", str(len(found.problems)))
    print_table(table)
    for title, lines in _findings(found):
        if lines and settings.show:
            more = f"\n  and {len(lines) - settings.show} more" if len(lines) > settings.show else ""
            print_text(f"\n{title}\n" + "\n".join(lines[: settings.show]) + more)
    if found.left_out:
        print_text("\nLeft out: " + ", ".join(f"{reason}: {count}" for reason, count in found.left_out.items()))
    print_text("\nSomething is wrong." if found.failed else "\nNothing is wrong that can be seen.")


def _findings(found: Audit) -> Iterator[tuple[str, list[str]]]:
    """Each kind of finding, with a line or two for each."""
    yield "Rows", [f"  {problem}" for problem in found.problems]
    yield (
        "Rephrasings",
        [f"  {f['id']}, rephrasing {f['rephrasing']}: {f['check']}: {f['reason']}" for f in found.rejected],
    )
    yield "Answers", [f"  {f['id']}: {f['answer']!r:.80} does not equal itself: {f['outcome']}" for f in found.answers]
    yield (
        "Texts of two questions",
        [
            f"  {_place(f['id'], f['rephrasing'])} and {_place(f['other_id'], f['other_rephrasing'])}\n"
            f"    {_line(f['text'])}"
            for f in found.duplicates
        ],
    )
    yield (
        "Overlap with benchmarks",
        [
            f"  {_place(f['id'], f['rephrasing'])} and {f['benchmark']} {f['benchmark_id']} share {f['share']:.0%}\n"
            f"    {_line(f['text'])}\n    {_line(f['benchmark_text'])}"
            for f in found.overlaps
        ],
    )


def _place(name: str, number: int) -> str:
    return f"{name}, rephrasing {number}" if number else name


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 150 else text[:149] + "…"
