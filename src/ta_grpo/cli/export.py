"""``ta-grpo export``: questions as the Parquet files that verl reads."""

from __future__ import annotations

from dataclasses import asdict

from ..verl.export import ExportSettings
from ..verl.export import export as run
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs


def export(
    flags: flags_of(ExportSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Write questions to Parquet for verl: training rows with their rephrasings, and validation rows.

    `train --backend verl` does this by itself; the files are for verl's own command line.
    """
    files = run(resolve(ExportSettings, flags, config))
    if json:
        print_json([asdict(file) for file in files])
        return
    for file in files:
        print_pairs(
            f"Written: {file.path}",
            [("questions", file.questions), ("rephrasings", file.rephrasings), ("left out", len(file.left_out))],
        )
