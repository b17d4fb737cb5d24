"""What the fault campaigns share: the command line as a process, tiny runs of every verb, and what a fault came to."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

REFUSALS = (1, 2)
"""Exit codes of a request that is refused, and of one that failed and says why."""

TIME_LIMIT = 300.0


@dataclass(frozen=True)
class Fault:
    """One fault that was tried.

    Attributes:
        what: was done to it.
        came_to: in a few words, the same for the same outcome.
        handled: whether that is as it should be.
        told: the end of what standard error said.
        repeated: what was done again after a kill.
    """

    campaign: str
    verb: str
    what: str
    came_to: str
    handled: bool
    code: int | None = None
    told: str = ""
    repeated: int = 0


@dataclass(frozen=True)
class Done:
    """A process that has ended: exit code (negative: signal), what it wrote, and its highest resident megabytes."""

    code: int
    out: str
    err: str
    megabytes: float = 0.0

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.err

    @property
    def refused(self) -> bool:
        """Refused with a message of one paragraph or a list of problems, and nothing of Python's."""
        return self.code in REFUSALS and not self.traceback and bool(re.search(r"^ta-grpo: ", self.err, re.MULTILINE))

    @property
    def told(self) -> str:
        """What it said in the end: the refusal, or the last line."""
        refusal = re.search(r"^ta-grpo: .*", self.err, re.MULTILINE | re.DOTALL)
        lines = [line for line in (refusal[0] if refusal else self.err).splitlines() if line.strip()]
        return " ".join(lines[:2] if refusal else lines[-1:])[:300]


def environment() -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}
    return os.environ | quiet | {"OPENAI_API_KEY": "sk-of-nobody"}


def start(words: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
    """A command of ours in a process group of its own."""
    command = [sys.executable, "-m", "ta_grpo.cli", *map(str, words)]
    return subprocess.Popen(command, env=environment(), start_new_session=True, **options)


def run(words: Sequence[Any], cwd: Path | None = None, file_limit: int | None = None) -> Done:
    """Run a command to its end.

    Args:
        file_limit: bytes that no file may exceed (RLIMIT_FSIZE).
    """

    def limit() -> None:
        if file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cwd, "preexec_fn": limit}
    process = start(words, encoding="utf-8", errors="backslashreplace", **pipes)
    try:
        out, err = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        kill(process)
        return Done(-signal.SIGKILL, "", f"no end after {TIME_LIMIT:.0f} s")
    return Done(process.returncode, out, err)


def measured(words: Sequence[Any], cwd: Path) -> Done:
    """Run a command to its end, and tell the most memory that it or a worker of it held."""
    with open(cwd / "out.txt", "w+b") as out, open(cwd / "err.txt", "w+b") as err:
        process = start(words, stdout=out, stderr=err, cwd=cwd)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = [_read(file) for file in (out, err)]
    return Done(process.returncode, *texts, megabytes=usage.ru_maxrss / 1024)


def _read(file: Any) -> str:
    file.seek(0)
    return file.read(1_000_000).decode("utf-8", "backslashreplace")


def kill(process: subprocess.Popen[Any]) -> bool:
    """Kill a process and its workers; whether it still ran."""
    ran = process.poll() is None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return ran


# Tiny runs.


@dataclass(frozen=True)
class Verb:
    """A verb with a tiny job for it.

    Attributes:
        words: of the command, from the folder that the job works in.
        begun: the file that, once there, makes --resume the command that goes on.
        result: what a finished job comes to, without times.
    """

    name: str
    words: Callable[[Path], list[Any]]
    begun: str
    result: Callable[[Path], Any]
    prepare: Callable[[Path], None] = field(default=lambda folder: None)

    def command(self, folder: Path) -> list[Any]:
        return [*self.words(folder), *(["--resume"] if (folder / self.begun).exists() else [])]


TRAIN_STEPS, SAMPLES_A_BATCH = 8, 8
# Kills on a question file of this length last a few seconds.
REPHRASED_QUESTIONS = 40
_TRAIN = {
    "model": "tiny",
    "questions": "tiny/train",
    "limit": 20,
    "prompt-format": "text",
    "num-rephrasings": 1,
    "num-generations": 8,
    "questions-per-step": 2,
    "per-device-train-batch-size": 8,
    "max-completion-length": 40,
    "learning-rate": 2e-4,
    "max-steps": TRAIN_STEPS,
    "save-steps": 2,
    "trl.gradient-checkpointing": "false",
}
_EVAL = {"benchmarks": "tiny/test", "limit": 20, "num-samples": 8, "batch-size": SAMPLES_A_BATCH, "max-new-tokens": 40}
_EXPERIMENT = """\
model: tiny
questions: tiny/train
arms: [grpo-matched, ta-grpo]
seeds: [0]
num_rephrasings: 1
generations_per_phrasing: 4
questions_per_step: 2
max_steps: 3
save_steps: 1
limit: 10
benchmarks: [tiny/test]
eval_limit: 6
num_samples: 4
eval_batch_size: 8
learning_rate: 2.0e-4
max_completion_length: 40
gradient_checkpointing: false
"""
_TIMES = ("step_time", "seconds")


def flags(settings: Mapping[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def train_words(folder: Path, **changes: Any) -> list[Any]:
    return ["train", *flags(_TRAIN | changes), "--output-dir", folder / "run"]


def eval_words(folder: Path, target: Any = "tiny", **changes: Any) -> list[Any]:
    return ["eval", target, *flags(_EVAL | changes), "--output-dir", folder / "eval"]


def rephrase_verb(url: str, questions: int = REPHRASED_QUESTIONS) -> Verb:
    def prepare(folder: Path) -> None:
        from rephrasing_endpoint import questions as made

        write_jsonl(folder / "questions.jsonl", made(questions))

    def words(folder: Path) -> list[Any]:
        asked = ["--model", "m", "--base-url", url, "--concurrency", "4"]
        return ["rephrase", folder / "questions.jsonl", "-o", folder / "out.jsonl", *asked]

    return Verb("rephrase", words, "out.meta.json", lambda folder: (folder / "out.jsonl").read_bytes(), prepare)


def train_verb() -> Verb:
    return Verb("train", train_words, "run/config.json", lambda folder: trained(folder / "run"))


def eval_verb() -> Verb:
    names = ("samples.jsonl", "verdicts.jsonl", "summary.json")
    place = "eval/tiny_test"
    return Verb(
        "eval", eval_words, f"{place}/config.json", lambda folder: [(folder / place / n).read_bytes() for n in names]
    )


def compare_verb() -> Verb:
    def prepare(folder: Path) -> None:
        (folder / "experiment.yaml").write_text(_EXPERIMENT)

    def words(folder: Path) -> list[Any]:
        return ["compare", folder / "experiment.yaml", "--output-dir", folder / "exp"]

    def result(folder: Path) -> Any:
        files = [*sorted((folder / "exp/results").iterdir()), folder / "exp/comparison.json"]
        return [without_times(json.loads(path.read_text())) for path in files]

    return Verb("compare", words, "exp/config.json", result, prepare)


def trained(run_dir: Path) -> Any:
    """What a training run has come to: rollouts, metrics without times, and the last weights."""
    last = max(run_dir.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return {
        "rollouts": {
            path.name: pyarrow.parquet.read_table(path).to_pylist()
            for path in sorted(run_dir.glob("rollouts/*.parquet"))
        },
        "metrics": [without_times(json.loads(line)) for line in (run_dir / "metrics.jsonl").read_text().splitlines()],
        "weights": [last.name, hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()],
    }


def without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: without_times(value) for name, value in content.items() if name not in _TIMES}
    return [without_times(item) for item in content] if isinstance(content, list) else content


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def fresh(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def copied(source: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(source, place))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@dataclass
class Context:
    """What a campaign works with: its folder, its random numbers, an endpoint, and the share of faults to try."""

    place: Path
    rng: random.Random
    url: str
    answered: Callable[[], int]
    share: float = 1.0

    def times(self, whole: int) -> int:
        """How many of ``whole`` faults of a kind to try."""
        return max(1, round(whole * self.share))
