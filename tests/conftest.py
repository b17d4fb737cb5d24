"""Settings that every test runs under."""

import os

# Before torch is imported: one thread is fastest for tiny models, and keeps sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import settings

# The first call of a test imports torch, which takes longer than any example.
settings.register_profile("default", deadline=None)
settings.load_profile("default")


@pytest.fixture
def endpoint(monkeypatch):
    """A server on loopback that rephrases."""
    from rephrase_runs import KEY
    from rephrasing_endpoint import rephrasing_endpoint

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("ta_grpo.rephrasing.chat._FIRST_WAIT", 0.01)
    with rephrasing_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def hub(monkeypatch):
    """What ``datasets.load_dataset`` is replaced by."""
    import datasets

    from published_rows import FakeHub

    fake = FakeHub()
    monkeypatch.setattr(datasets, "load_dataset", fake)
    return fake


@pytest.fixture(scope="module")
def ended_workers():
    """Ends the verifier's workers with a module."""
    from ta_grpo.verifier import close_workers

    yield
    close_workers()
