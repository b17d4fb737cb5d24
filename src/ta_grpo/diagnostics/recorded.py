"""What training itself recorded about the steps that led to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..rundir import read_metrics

_NAMES = (
    *(f"{name}/{side}_prompt" for name in ("clip_ratio", "kl", "entropy") for side in ("on", "off")),
    # TRL's own, over all completions: all that a run without rephrasings has.
    *("clip_ratio/region_mean", "kl", "entropy", "completions/mean_length"),
)


def recorded(run_dir: Path, since: int, step: int) -> dict[str, Any]:
    """Means over the lines of ``metrics.jsonl`` of the steps after ``since`` up to ``step``.

    The clip share comes from here, and not from the probe: it depends on how far the policy has moved since the
    completions were sampled, which only training does. With one update on a generation batch and
    ``ratio_anchor="original"`` or ``"sampled"``, the ratio is 1 and the share 0 by construction. Entropy, KL and clip
    share are those of the rows that were trained (see docs/metrics.md), not of all that were sampled.

    Returns:
        ``steps``, first and last that has a line (empty: none has); ``lines``, how many; ``figures``, name -> mean of
        those that have it.
    """
    lines = [line for line in read_metrics(run_dir) if since < line["step"] <= step]
    figures = {}
    for name in _NAMES:
        values = [line[name] for line in lines if line.get(name) is not None]
        if values:
            figures[name] = sum(values) / len(values)
    steps = [line["step"] for line in lines]
    return {"steps": [steps[0], steps[-1]] if steps else [], "lines": len(lines), "figures": figures}
