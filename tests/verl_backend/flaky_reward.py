"""For tests alone: the accuracy reward, which fails on some completions where FLAKY_REWARD is set."""

from __future__ import annotations

import os
import zlib
from typing import Any

from ta_grpo.verl.reward import NoRewardError
from ta_grpo.verl.reward import compute_score as accuracy


def compute_score(solution_str: str, **kwargs: Any) -> dict[str, Any]:
    if "FLAKY_REWARD" in os.environ and zlib.crc32(solution_str.encode()) % 4 == 0:
        raise NoRewardError("no reward for this completion")
    return accuracy(solution_str=solution_str, **kwargs)
