"""What the documentation says is what the code does."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ta_grpo.cli import main
from ta_grpo.cli.env import installed_packages
from ta_grpo.cli.reference import reference
from ta_grpo.trl import TAGRPOTrainer

ROOT = Path(__file__).parent.parent
_DEFINED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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


# The page of the method names functions, and the site links them.


def test_every_function_that_the_method_names_is_there():
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(ta_grpo(?:\.\w+)+)`", page))
    assert len(names) > 20
    missing = []
    for name in names:
        module, _, member = name.rpartition(".")
        path = ROOT / "src" / (module.replace(".", "/") + ".py")
        path = path if path.is_file() else path.with_suffix("") / "__init__.py"
        # Read, not imported: verl's are not installed here.
        defined = {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, _DEFINED)}
        if member not in defined:
            missing.append(name)
    assert missing == []
    for method in re.findall(r"\(its\s+`(\w+)`\)", page):
        assert hasattr(TAGRPOTrainer, method), method


# The quick start: each command as it stands, with the files that it makes.

_SMALLER = {"--num-samples 8": "--num-samples 2", "--limit 40": "--limit 4", "--num-questions 8": "--num-questions 2"}


def quick_start() -> tuple[dict[str, str], list[str]]:
    """The files that the page makes, and its commands."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    files: dict[str, str] = {}
    commands = []
    for note, block in re.findall(r"(<!-- [^\n]* -->\n)?((?:^    [^\n]*\n)+)", page, re.MULTILINE):
        text = textwrap.dedent(block)
        if made := re.match(r"<!-- file: (\S+) -->", note):
            files[made[1]] = text
        elif not note:
            commands += text.splitlines()
    return files, commands


@pytest.mark.slow
def test_the_commands_of_the_quick_start_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files, commands = quick_start()
    for name, content in files.items():
        Path(name).write_text(content, encoding="utf-8")
    assert [command.split()[1] for command in commands] == [
        *("env", "rephrase", "check", "train", "train", "train", "eval", "eval", "diagnose", "report")
    ]
    for command in commands:
        for large, small in _SMALLER.items():
            command = command.replace(large, small)
        words = shlex.split(command)
        assert words[0] == "ta-grpo"
        if words[1] == "train" and "--dry-run" not in words:
            words += ["--per-device-train-batch-size", "64"]
        assert main(words[1:]) == 0, f"{command}: {capsys.readouterr().err}"
    assert (tmp_path / "runs" / "report" / "report.html").is_file()
    assert "pass@k" in (tmp_path / "runs" / "ta-grpo" / "checkpoint-2" / "README.md").read_text(encoding="utf-8")


def test_the_version_table_is_what_env_holds_installations_against():
    page = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
    table = [row.split("|")[1:4] for row in page.splitlines() if row.startswith("| `")]
    told = {cells[0].strip(" `"): (cells[1].strip(), cells[2].strip(" `")) for cells in table}
    if sys.version_info >= (3, 13):
        del told["verl"]  # which has no part in this Python
    assert told == {package.name: (package.needed_for, package.tested) for package in installed_packages()}


def test_links_of_the_pages_lead_to_files():
    """What the site makes text of, since it lies outside docs/, is there all the same."""
    gone = []
    for page in (ROOT / "docs").rglob("*.md"):
        links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        gone += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert gone == []
