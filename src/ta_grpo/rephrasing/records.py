"""What the parts of rephrasing hand to each other: a proposed rephrasing, and a reason to refuse one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Proposal:
    """A rephrasing before it is checked; ``transformation`` names how it was made, for example ``"format"``."""

    text: str
    transformation: str


@dataclass(frozen=True)
class Rejection:
    """Why a rephrasing is not accepted: the check's name, and the reason in plain words with the figures."""

    check: str
    reason: str
