"""``ta-grpo report``: one HTML page for runs or an experiment, and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import UserError
from ..report.settings import ReportSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_text


def report(
    *directories: Annotated[str, Parameter(help="Run directories, or one experiment's.")],
    flags: flags_of(ReportSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Write a page that shows runs or an experiment: findings, figures, budgets, every rollout.

    One file, report.html, that opens from disk and asks the network for nothing; its figures as PNG and SVG beside it.
    """
    settings = resolve(ReportSettings, flags, config)
    if not directories:
        raise UserError("name a run or an experiment: ta-grpo report runs/first")
    from ..report.page import write_report

    written = write_report([Path(directory) for directory in directories], settings)
    if json:
        print_json(vars(written) | {"findings": [vars(finding) for finding in written.findings]})
        return
    for finding in written.findings:
        print_text(f"- {finding.about}: {finding.text}")
    beside = f"; {len(written.scripts)} files of further rollouts" if written.scripts else ""
    print_text(f"\nReport: {written.page} ({len(written.figures)} files of figures{beside})")
