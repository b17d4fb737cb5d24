"""TA-GRPO: post-train language models on rephrased questions, and measure whether it helped."""

__version__ = "0.1.0.dev0"
