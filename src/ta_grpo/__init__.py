"""TA-GRPO: post-train language models on rephrased questions, and measure whether it helped."""

try:
    # Made from the tag when the package is built or installed.
    from ._version import __version__  # pyright: ignore[reportMissingImports]
except ImportError:
    __version__ = "0.1.0.dev0"

__all__ = ["__version__"]
