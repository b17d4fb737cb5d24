"""One Ray for all tests of the plug-in, with more logical cores than there are: verl's actors wait most of the time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch, ray or a worker process starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import pytest

TESTS = Path(__file__).parent
LOGICAL_CORES = 32


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray whose processes can import the test helpers."""
    import ray

    ray.init(
        num_cpus=LOGICAL_CORES,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": str(TESTS)}},
        log_to_driver=False,
    )
    yield
    ray.shutdown()
