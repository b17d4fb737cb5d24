"""``python -m ta_grpo.cli.reference``: every verb's help as Markdown, for ``docs/help.md``."""

from __future__ import annotations

import sys

from . import app


def reference() -> str:
    """The help texts of all verbs."""
    words, sys.argv = sys.argv, ["ta-grpo"]  # usage lines name the program that runs
    try:
        return app.generate_docs(output_format="markdown").rstrip() + "\n"
    finally:
        sys.argv = words


if __name__ == "__main__":
    sys.stdout.write(reference())
