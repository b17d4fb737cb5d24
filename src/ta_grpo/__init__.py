"""TA-GRPO: post-train language models on rephrased questions, and measure whether it helped."""

from importlib.metadata import version

__version__ = version("ta-grpo")
