"""How the CPU time of a function grows with its input; a limit in seconds would say more of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES_LONGER = 8
# Linear time gives 8, n log n about 10, quadratic time 64; the rest is room for a machine that does other things.
AT_MOST = 32


def assert_near_linear(measured: Callable[[int], object], size: int) -> None:
    """Refuse a function whose CPU time grows like the square of its input's size, or faster.

    Args:
        measured: called with a size, first small and then `TIMES_LONGER` times that.
        size: the larger size.
    """
    measured(size // TIMES_LONGER)  # what is only done once (imports, compiled patterns) belongs to neither
    ratio = min(_seconds(measured, size) / _seconds(measured, size // TIMES_LONGER) for _ in range(2))
    assert ratio < AT_MOST, f"{TIMES_LONGER} times the input takes {ratio:.0f} times the CPU time"


def _seconds(measured: Callable[[int], object], size: int) -> float:
    began = time.process_time()
    measured(size)
    return max(time.process_time() - began, 0.005)  # below that, the clock's grain is what one would compare
