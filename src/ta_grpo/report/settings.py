"""Settings of the verb ``report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..settings import setting

ROLLOUTS_IN_PAGE = 5_000
"""At most so many stand in the page itself, so that it opens at once."""


@dataclass
class ReportSettings:
    """Settings of the verb ``report``."""

    output_dir: Path | None = setting(
        None, "Where report.html and figures/ go. Default: the run or experiment itself; several runs need it."
    )
    against: str | None = setting(None, "The run that the others are compared with. Default: the first.")
    rollouts: int = setting(
        100_000,
        f"Rollouts to show at most: {ROLLOUTS_IN_PAGE:,} in the page, the others in script files beside it; 0: none.",
    )

    def __post_init__(self) -> None:
        if self.rollouts < 0:
            raise UserError(f"rollouts={self.rollouts} must be 0 or more")
