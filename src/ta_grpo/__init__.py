"""TA-GRPO: post-train language models on rephrased questions, and measure whether it helped."""

try:
    from ._version import __version__  # made when the package is built or installed, from the tag
except ImportError:
    __version__ = "0.1.0.dev0"

__all__ = ["__version__"]
