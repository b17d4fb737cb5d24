"""TA-GRPO on TRL: change two names in a GRPO script and add a ``rephrasings`` column.

``TAGRPOConfig`` replaces ``GRPOConfig``, ``TAGRPOTrainer`` replaces ``GRPOTrainer``. Both are imported when first
asked for, since TRL and torch take seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import TAGRPOConfig
    from .trainer import TAGRPOTrainer

__all__ = ["TAGRPOConfig", "TAGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name == "TAGRPOConfig":
        from .config import TAGRPOConfig

        return TAGRPOConfig
    if name == "TAGRPOTrainer":
        from .trainer import TAGRPOTrainer

        return TAGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
