"""Settings that every test runs under."""

import os

# Before torch is imported: one thread is fastest for tiny models, and keeps sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from hypothesis import settings

# The first call of a test imports torch, which takes longer than any example.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
