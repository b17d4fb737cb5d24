"""What the documentation says is what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ta_grpo.cli.reference import reference

ROOT = Path(__file__).parent.parent


def test_the_help_page_is_the_help_text():
    current = (ROOT / "docs" / "help.md").read_text(encoding="utf-8")
    assert current == reference(), "run: python -m ta_grpo.cli.reference > docs/help.md"


def test_the_readmes_lines_of_python_train(tmp_path, monkeypatch):
    """The script of the README as it stands, but for the model and the number of steps."""
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    from ta_grpo.tiny import POLICY_DIR

    model, lines = re.subn(r'"Qwen/[^"]+"', repr(str(POLICY_DIR)), script)
    assert lines == 1
    small, lines = re.subn(r"TAGRPOConfig\(", "TAGRPOConfig(max_steps=1, bf16=False, max_completion_length=8, ", model)
    assert lines == 1
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(small, "README.md", "exec"), names)  # noqa: S102 - our own README
    assert names["trainer"].state.global_step == 1
    assert names["trainer"].args.num_rephrasings == 3
