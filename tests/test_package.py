"""The package as a stranger gets it: built from a tag, installed into an empty environment, with all its parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
INSIDE = (
    *("ta_grpo/tiny/policy/model.safetensors", "ta_grpo/tiny/policy/tokenizer.json", "ta_grpo/py.typed"),
    *("ta_grpo/rephrasing/prompts/wording.txt", "ta_grpo/report/assets/temml.min.js"),
)
MOST_BYTES = 5_000_000
VERSION = "9.8.7"


def done(*words: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "COV"))}
    run = subprocess.run(list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Wheel and sdist of a tagged copy of the sources, which need not be a clone themselves."""
    place = tmp_path_factory.mktemp("package")
    copy = place / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "runs"))
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    done("git", "init", "--quiet", cwd=copy)
    done("git", "add", ".", cwd=copy)
    done("git", *author, "commit", "--quiet", "--message", "sources", cwd=copy)
    done("git", "tag", f"v{VERSION}", cwd=copy)
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", cwd=copy)
    return place / "dist"


@pytest.mark.slow
def test_wheel_and_sdist_hold_everything_and_are_small(dist):
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name == f"ta_grpo-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in INSIDE if name not in names] == []
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE", "temml.LICENSE"}
    assert not [name for name in names if name.startswith(("tests", "docs", "recipes"))]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in INSIDE} <= inside
    assert {"pyproject.toml", "tests/conftest.py", "recipes/tiny_controls.yaml", "CHANGELOG.md"} <= inside
    assert max(wheel.stat().st_size, sdist.stat().st_size) < MOST_BYTES


@pytest.mark.slow
def test_it_installs_into_an_empty_environment(dist, tmp_path):
    """Without its requirements, which other tests install: its files, entry points and light parts."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    done(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *dist.glob("*.whl"), cwd=tmp_path)
    script = (
        "import ta_grpo, ta_grpo.errors, ta_grpo.settings\n"
        "from importlib.metadata import entry_points, version\n"
        "from importlib.resources import files\n"
        "assert version('ta-grpo') == ta_grpo.__version__\n"
        "assert (files('ta_grpo') / 'tiny/policy/model.safetensors').is_file()\n"
        "assert len(entry_points(group='ta_grpo.question_sets')) == 10\n"
        "assert entry_points(group='verl.plugins')['ta_grpo'].value == 'ta_grpo.verl.agent_loop'\n"
        "print(ta_grpo.__version__)"
    )
    assert done(python, "-c", script, cwd=tmp_path).strip() == VERSION
    assert (tmp_path / "env" / "bin" / "ta-grpo").is_file()


def test_the_citation_names_paper_and_software():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["title"] == "ta-grpo"
    assert citation["preferred-citation"]["url"].endswith("2601.22478")
