"""The page: one HTML file that needs no other, figures beside it, and script files with further rollouts.

Model and question text reaches the page in two ways only: through the template, which escapes it, and as JSON that a
script puts into text nodes. A content security policy lets nothing else run, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import UserError
from .drawing import Figure, Style, styles
from .figures import checkpoint_figure, difference_figure, gap_figure, pass_figure, training_figure
from .findings import MIXED, Finding, findings_of
from .outcomes import Outcomes, outcomes_of
from .reading import Arm, Run, Source, read_source
from .rollouts import Chosen, Group, choose, contents_of, index_of, scan, script_safe_json
from .settings import ReportSettings
from .tables import (
    Table,
    budget_table,
    commands_table,
    difference_table,
    pass_table,
    settings_tables,
    versions_table,
)
from .training import Curve, curve, metric, window_of

PAGE_FILE = "report.html"
FIGURES_DIR = "figures"
ROLLOUTS_DIR = "report_rollouts"

_INSTALL = "pip install 'ta-grpo[report]'"
_DISTANCE = "equal_budget/diversity/all/cosine_distance"
_MOST_SERIES = 8  # of one figure of diagnostics


@dataclass
class Section:
    """A part of the page. ``absent``: what is not here, and the command that makes it."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)
    folded: bool = False  # tables, behind a line that opens them

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Written:
    """What ``write_report`` has made."""

    page: Path
    figures: Sequence[Path]
    scripts: Sequence[Path]
    findings: Sequence[Finding]


def write_report(paths: Sequence[Path], settings: ReportSettings) -> Written:
    """Write report.html, figures/ and the script files of further rollouts; what an earlier report left is replaced.

    Args:
        paths: one experiment, or one or several runs.
        settings: see there.

    Raises:
        UserError: nothing to report, several runs without an output directory, a damaged file, a missing package.
    """
    check_packages()
    source = read_source(paths)
    if source.experiment is not None and settings.output_dir is not None:
        source = replace(source, name=settings.output_dir.resolve().name)
    place = settings.output_dir or (paths[0] if len(paths) == 1 else None)
    if place is None:
        raise UserError("--output-dir is missing: say where the report of several runs goes")
    if place.exists() and not place.is_dir():
        raise UserError(f"{place} is a file; choose another --output-dir")
    groups = [group for number, run in enumerate(source.runs) for group in scan(number, run, _sample(source))]
    outcomes = outcomes_of(source, settings.against)
    chosen = choose(groups, settings.rollouts)
    findings = findings_of(source, outcomes)
    sections = _sections(source, outcomes, groups)
    place.mkdir(parents=True, exist_ok=True)
    scripts = _write_scripts(place, source, chosen)
    figures = _write_figures(place, [figure for section in sections for figure in section.figures])
    page = place / PAGE_FILE
    _replace(page, _render(source, findings, sections, chosen, scripts).encode())
    return Written(page, figures, scripts, findings)


def check_packages() -> None:
    """Raises:
    UserError: jinja2 or matplotlib is not installed; with the command that installs them.
    """
    for package in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"a report needs the package {package}; run: {_INSTALL}")


# Sections.


def _sections(source: Source, outcomes: Outcomes, groups: Sequence[Group]) -> list[Section]:
    style_of = styles(_series(source))
    differences, pass_at_k = _differences(source, outcomes), _pass_at_k(source, outcomes, style_of)
    if source.experiment is None:  # side by side
        pass_at_k.figures += differences.figures
        pass_at_k.tables += differences.tables
        pass_at_k.notes += differences.notes
        differences = Section("")
    return [
        section
        for section in (
            differences,
            pass_at_k,
            _training(source, groups, style_of),
            _diagnosed(source),
            _budgets(source, outcomes),
        )
        if section.figures or section.tables or section.absent or section.notes
    ]


def _series(source: Source) -> list[str]:
    return [arm.name for arm in source.arms]


def _differences(source: Source, outcomes: Outcomes) -> Section:
    section = Section("Attribution", folded=True)
    paired_by = "seed and question" if source.experiment else "question"
    for name, pairs in outcomes.gaps.items():
        if pairs:
            section.figures.append(difference_figure(name, pairs, outcomes.over[name], paired_by))
            section.tables.append(difference_table(name, pairs))
    if source.experiment:
        section.notes.append(
            "Each step of the chain changes one thing: the rephrased data, the pooling of their rewards, the anchoring "
            "of the ratio under the original question, the negatives of rephrasings. p: sign-flip test over seeds."
        )
        section.absent += source.missing
    elif section.figures:
        section.notes.append("Paired by question. p: sign-flip test over questions.")
    return section


def _pass_at_k(source: Source, outcomes: Outcomes, style_of: Mapping[str, Style]) -> Section:
    section = Section("pass@k", folded=True)
    for name, curves in outcomes.curves.items():
        section.figures.append(pass_figure(name, curves, style_of, outcomes.over[name]))
        section.tables.append(pass_table(name, curves))
    if source.experiment is None:
        section.absent += [
            (f"pass@k of {run.name}", f"ta-grpo eval {run.path} --benchmarks SET")
            for run in source.runs
            if not run.evaluations and run.has_checkpoints
        ]
    return section


def _training(source: Source, groups: Sequence[Group], style_of: Mapping[str, Style]) -> Section:
    section = Section("Training signal")
    most = max((len(run.metrics) for run in source.runs), default=0)
    window = window_of(most)
    seeds = sorted({len(arm.runs) for arm in source.arms if arm.runs})
    band = f"; band: lowest and highest of {_span(seeds)} seeds" if seeds and seeds[-1] > 1 else "; one seed"
    questions = {run.config.get("questions_per_step") for run in source.runs} - {None}
    per_step = f"{_span(sorted(questions))} questions a step, " if questions else ""
    smoothed = f"mean of {window} steps at a time" if window > 1 else "each step by itself"
    about = f"{per_step}{smoothed}{band}."
    distinct = _distinct_by_run(source, groups)
    kinds = [
        (
            "mixed_share",
            "Mixed groups",
            "groups with a gradient, %",
            _curves(source.arms, metric(MIXED), window),
            f"Share of groups that are neither all right nor all wrong, in % of questions; {about}",
        ),
        (
            "diversity",
            "Diversity of responses",
            "distinct 4-grams, %",
            _curves(source.arms, distinct, window),
            f"Different 4-grams over all, in {_sample(source)} responses to the original question; {about}",
        ),
        (
            "reward",
            "Reward",
            "mean reward",
            _curves(source.arms, metric("reward"), window),
            f"Mean reward of all responses trained on, to the original and to rephrasings; {about}",
        ),
        (
            "reward_original",
            "Reward on the original question",
            "mean reward",
            _curves(source.arms, _original_reward, window),
            f"Mean reward of the responses to the original question alone; {about}",
        ),
    ]
    for name, title, axis, curves, caption in kinds:
        if curves:
            section.figures.append(training_figure(name, title, axis, curves, style_of, caption))
    group_sizes = {arm.name: _group_size(arm) for arm in source.arms if _group_size(arm)}
    if len(set(group_sizes.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in group_sizes.items())
        section.notes.append(f"Groups differ in size, and larger ones are mixed more often: {sizes} responses.")
    return section


def _span(numbers: Sequence[Any]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _group_size(arm: Arm) -> int | None:
    return next((run.config["num_generations"] for run in arm.runs if run.config.get("num_generations")), None)


def _curves(arms: Sequence[Arm], values: Any, window: int) -> dict[str, Curve]:
    there = {arm.name: curve([values(run) for run in arm.runs], window) for arm in arms}
    return {name: each for name, each in there.items() if each is not None}


def _original_reward(run: Run) -> dict[int, float]:
    """Where every question has its rephrasings as questions of their own, no metric tells the original's reward."""
    if run.config.get("num_rephrasings", 0) > 0:
        return metric("reward/phrasing_0")(run)
    own_questions = str(run.config.get("questions", "")).endswith("rephrased-data.jsonl")
    return {} if own_questions else metric("reward")(run)


def _sample(source: Source) -> int:
    """G of the arm that has the fewest completions of an original question."""
    sizes = [
        size // (run.config.get("num_rephrasings", 0) + 1)
        for run in source.runs
        if isinstance(size := run.config.get("num_generations"), int)
    ]
    return max(1, min(sizes, default=8))


def _distinct_by_run(source: Source, groups: Sequence[Group]) -> Any:
    by_run: dict[int, dict[int, list[float]]] = {}
    for group in groups:
        if group.distinct == group.distinct:
            by_run.setdefault(group.run, {}).setdefault(group.step, []).append(group.distinct)
    number_of = {id(run): number for number, run in enumerate(source.runs)}

    def values(run: Run) -> dict[int, float]:
        return {step: sum(v) / len(v) for step, v in by_run.get(number_of[id(run)], {}).items()}

    return values


def _diagnosed(source: Source) -> Section:
    section = Section("Diagnostics")
    diagnosed = [run for run in source.runs if _checkpoints_of(run)]
    shown = diagnosed[:_MOST_SERIES]
    if len(diagnosed) > len(shown):
        section.notes.append(f"The figures show the first {len(shown)} of {len(diagnosed)} diagnosed runs.")
    style_of = styles([run.name for run in shown])
    mixed = {run.name: _over_checkpoints(run, "joint/mixed") for run in shown}
    uniform = {run.name: _over_checkpoints(run, "equal_budget/uniform") for run in shown}
    distance = {run.name: _over_checkpoints(run, _DISTANCE) for run in shown}
    gaps = {run.name: _gaps_of(run) for run in shown}
    n = _questions_of(shown)
    for name, title, axis, points, caption in (
        (
            "uniform_on_probe",
            "Questions without gradient",
            "uniform groups, %",
            {run: _in_percent(by_step) for run, by_step in uniform.items()},
            "Questions whose responses to the original are all right or all wrong, in %",
        ),
        (
            "distance_on_probe",
            "Distance of responses",
            "mean cosine distance",
            distance,
            "Mean pairwise cosine distance of the embedded responses to one original question",
        ),
        (
            "mixed_on_probe",
            "Mixed joint groups",
            "mixed groups, %",
            {run: _in_percent(by_step) for run, by_step in mixed.items()},
            "Questions whose joint group, over all phrasings, is mixed, in %",
        ),
    ):
        points = {run: by_step for run, by_step in points.items() if by_step}
        if points:
            caption = f"{caption}; bar: 95 % interval over {n}; a fixed set of probe questions."
            section.figures.append(checkpoint_figure(name, title, axis, points, style_of, caption))
    if gaps := {run: by_phrasing for run, by_phrasing in gaps.items() if by_phrasing}:
        section.figures.append(gap_figure(gaps, style_of, n))
        last = "; ".join(f"{run.name} {_checkpoints_of(run)[-1].get('checkpoint')}" for run in shown)
        section.notes.append(f"The surrogate gap is that of each run's last diagnosed checkpoint: {last}.")
    first_runs = [arm.runs[0] for arm in source.arms if arm.runs]
    waiting = [run for run in first_runs if run.has_checkpoints]
    if waiting and not diagnosed:
        runs = shlex.join(str(run.path) for run in waiting)
        what = "the surrogate gap of each phrasing, and embedding distances over the checkpoints"
        # A run without rephrasings must be told with how many it is to be probed.
        most = max(run.config.get("num_rephrasings") or 0 for run in waiting) or 3
        extra = f" --num-rephrasings {most}" if any(not run.config.get("num_rephrasings") for run in waiting) else ""
        section.absent.append((what, f"ta-grpo diagnose {runs}{extra}"))
    return section


def _checkpoints_of(run: Run) -> list[Mapping[str, Any]]:
    checkpoints = (run.diagnostics or {}).get("checkpoints") or []
    return [each for each in checkpoints if isinstance(each, dict) and isinstance(each.get("figures"), dict)]


def _over_checkpoints(run: Run, name: str) -> dict[int, Mapping[str, float]]:
    return {each["step"]: each["figures"][name] for each in _checkpoints_of(run) if name in each["figures"]}


def _in_percent(by_step: Mapping[int, Mapping[str, float]]) -> dict[int, Mapping[str, float]]:
    return {
        step: {side: 100 * value for side, value in point.items() if value is not None and side != "n"}
        for step, point in by_step.items()
    }


def _gaps_of(run: Run) -> dict[int, Mapping[str, float]]:
    checkpoints = _checkpoints_of(run)
    figures = checkpoints[-1]["figures"] if checkpoints else {}
    found = {}
    for name, point in figures.items():
        if told := re.fullmatch(r"phrasing_(\d+)/gap", name):
            found[int(told[1])] = point
    return dict(sorted(found.items()))


def _questions_of(runs: Sequence[Run]) -> str:
    counts = sorted({each.get("num_questions") or 0 for run in runs for each in _checkpoints_of(run)})
    return f"{_span(counts)} questions" if counts else "questions"


def _budgets(source: Source, outcomes: Outcomes) -> Section:
    section = Section("Budgets")
    table = budget_table(source, outcomes)
    if table is not None:
        section.tables.append(table)
    if source.experiment is None:
        section.absent += [
            (f"what {run.name} spent on training, and its rollouts", f"ta-grpo train … --output-dir {run.path}")
            for run in source.runs
            if not run.metrics and run.config
        ]
    return section


# Files.


def _write_scripts(place: Path, source: Source, chosen: Chosen) -> list[Path]:
    folder = place / ROLLOUTS_DIR
    written = []
    for number, part in enumerate(chosen.in_files, 1):
        path = folder / f"{number:04d}.js"
        content = script_safe_json(contents_of(part, source.runs))
        _replace(path, f"taGrpoRollouts({number},{content});\n".encode())
        written.append(path)
    _remove_others(folder, "[0-9]*.js", written)
    return written


def _write_figures(place: Path, figures: Sequence[Figure]) -> list[Path]:
    folder = place / FIGURES_DIR
    written = []
    for figure in figures:
        for suffix, content in ((".png", figure.png), (".svg", figure.svg.encode())):
            path = folder / f"{figure.name}{suffix}"
            _replace(path, content)
            written.append(path)
    return written


def _remove_others(folder: Path, pattern: str, keep: Sequence[Path]) -> None:
    """What an earlier report has left there."""
    for path in folder.glob(pattern):
        if path not in keep:
            path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _replace(path: Path, content: bytes) -> None:
    """In one step: a reader finds the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


# HTML.


def _render(
    source: Source,
    findings: Sequence[Finding],
    sections: Sequence[Section],
    chosen: Chosen,
    scripts: Sequence[Path],
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("ta_grpo.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, browser = _asset("page.css"), _asset("browser.js")
    maths = f"/*\n{_asset('temml.LICENSE')}*/\n{_asset('temml.min.js')}"
    has_rollouts = bool(chosen.groups)
    used = [maths, browser] if has_rollouts else []
    # Script files beside the page are loaded by its own script, which 'strict-dynamic' lets it do; nothing else is.
    allowed = " ".join([*map(_hash, used), "'strict-dynamic'"]) if has_rollouts else "'none'"
    policy = f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    data = None
    if has_rollouts:
        index = index_of(chosen, source.runs) | {"files": [f"{ROLLOUTS_DIR}/{path.name}" for path in scripts]}
        data = [script_safe_json(index), script_safe_json(contents_of(chosen.in_page, source.runs))]
    return environment.get_template("page.html.jinja").render(
        version=__version__,
        source=source,
        findings=findings,
        sections=sections,
        chosen=chosen,
        in_page=sum(group.size for group in chosen.in_page),
        rollouts_there=chosen.rollouts_there,
        tables=[
            table
            for table in (*settings_tables(source), versions_table(source), commands_table(source.runs))
            if table is not None
        ],
        policy=policy,
        # Ours, or made safe where they are made.
        inline={figure.name: Markup(figure.inline) for part in sections for figure in part.figures},  # noqa: S704
        style=Markup(style),  # noqa: S704
        scripts=[Markup(script) for script in used],  # noqa: S704
        data=None if data is None else [Markup(each) for each in data],  # noqa: S704
        scripts_dir=ROLLOUTS_DIR,
        without_rollouts=[run for run in source.runs if run.config and not run.rollouts],
    )


def _asset(name: str) -> str:
    return (files("ta_grpo.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
