"""The run directory: what was asked, what it ran on, and everything it wrote, safe against a kill at any moment.

    runs/NAME/
      config.json      resolved settings
      manifest.json    command, versions, git commit, data hashes, hardware, each attempt, finished or not
      run.lock         held while a process works in the directory
      …                what the verb writes (metrics.jsonl, rollouts/, checkpoint-*/, eval/)

Files are replaced atomically or appended to line by line; a torn last line is cut when the file is next read.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import UserError

# Packages whose version can change a result.
_RECORDED_PACKAGES = (
    *("ta-grpo", "torch", "transformers", "trl", "verl", "ray", "accelerate", "datasets", "peft", "vllm"),
    *("numpy", "scipy", "math-verify", "latex2sympy2-extended", "sympy", "tokenizers", "safetensors"),
)


def write_json_atomic(path: Path, content: Any) -> None:
    """Replace a JSON file in one step; see ``write_text_atomic``."""
    write_text_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text_atomic(path: Path, text: str) -> None:
    """Replace a text file in one step, so that a reader or a kill finds the old content or the new, never half."""
    with _replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_parquet_atomic(path: Path, rows: list[dict[str, Any]], schema: Any = None) -> None:
    """Write rows as Parquet, in one step; ``schema`` is pyarrow's, told from the rows by default."""
    import pyarrow
    import pyarrow.parquet

    with _replacing(path) as temporary:
        table = pyarrow.Table.from_pylist(rows, schema=schema)
        pyarrow.parquet.write_table(table, temporary, write_page_checksum=True)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of another if all goes well, and else leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An error of the system's in here says which file it is about."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def read_json(path: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """The object in a JSON file of ours.

    Raises:
        UserError: it holds none, or one that lacks a name that is ``needed``.
        FileNotFoundError: there is no such file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object; restore it, or move it away")
    if absent := [name for name in needed if name not in content]:
        raise UserError(f"{path} is damaged: it has no {absent[0]}; restore it, or move it away")
    return content


def append_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records, a line each, in one write that is on disk when this returns.

    A line that a kill left unfinished is cut first, so that it cannot swallow a new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with _naming(path), open(path, "ab+") as file:
        _cut_torn_line(file)
        # A lone surrogate in model text has no UTF-8 form; what is read back is the text with "?" in its place.
        file.write(lines.encode("utf-8", errors="replace"))
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path, fields: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The records of a JSONL file of ours; none if it does not exist. A torn last line is left out.

    Args:
        fields: what each record must have, with its type or types.

    Raises:
        UserError: a line in the middle is not a JSON object, or lacks a field: something else has written to the file.
    """
    return [record for record, _ in iter_jsonl(path, fields)]


def iter_jsonl(path: Path, fields: Mapping[str, Any] | None = None) -> Iterator[tuple[dict[str, Any], int]]:
    """The records of a JSONL file one by one, each with the file's length up to its end; see ``read_jsonl``."""
    if not path.exists():
        return
    end, kinds = 0, fields or {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            absent = [] if not isinstance(record, dict) else [n for n, k in kinds.items() if not _is(record, n, k)]
            if not isinstance(record, dict) or absent:
                problem = f"no {absent[0]}, or not of its type" if absent else "not a JSON object"
                raise UserError(f"{path}, line {number}: {problem}; the file is damaged: restore it or move it away")
            yield record, end


def _is(record: Mapping[str, Any], name: str, kind: Any) -> bool:
    return name in record and isinstance(record[name], kind)


def truncate_jsonl(path: Path, keep: Callable[[dict[str, Any]], bool], fields: Mapping[str, Any] | None = None) -> int:
    """Rewrite a JSONL file with only the records to keep, atomically; returns how many were cut. ``fields``: as in
    ``read_jsonl``.
    """
    records = read_jsonl(path, fields)
    kept = [record for record in records if keep(record)]
    if path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        append_jsonl(temporary, kept)
        os.replace(temporary, path)
    return len(records) - len(kept)


def _cut_torn_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    position, block = end, 4096
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            position = start + newline + 1
            break
        position = start
    if position != end:
        file.truncate(position)
    file.seek(0, os.SEEK_END)


class RunDir:
    """A run directory that this process holds.

    Use as a context manager; the lock is released, and ``manifest.json`` says how it ended, when the block is left.
    """

    def __init__(self, path: str | Path, config: Mapping[str, Any], data_files: Mapping[str, Path] | None = None):
        self.path = Path(path)
        self.config = dict(config)
        self.data_files = dict(data_files or {})
        self._lock: Any = None

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    def check(self, resume: bool = False, free_to_change: Iterable[str] = ()) -> None:
        """Refuse what ``open`` would refuse, and touch nothing.

        Args:
            resume: go on in a used directory.
            free_to_change: settings that may differ from the ones it was begun with; ``data``: the data files.

        Raises:
            UserError: the directory is used and ``resume`` is off; ``resume`` is on and there is nothing to resume,
                or the settings or data differ.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; choose another --output-dir")
        # A kill before the first record leaves the lock file alone: that is no run yet.
        used = self.path.exists() and any(not file.name.startswith((".", "run.lock")) for file in self.path.iterdir())
        if used and not resume:
            raise UserError(
                f"{self.path} is already in use and is never overwritten; add --resume to go on with that run, or "
                "choose another --output-dir"
            )
        if resume and not self.config_file.exists():
            raise UserError(f"{self.path} holds no run to resume (no config.json); leave --resume out to start one")
        if resume:
            self._check_unchanged(set(free_to_change))

    def open(self, resume: bool = False, free_to_change: Iterable[str] = ()) -> RunDir:
        """Make the directory, or with ``resume`` take up the one that is there.

        Raises:
            UserError: as ``check``; or another process works in the directory.
        """
        self.check(resume, free_to_change)
        self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            manifest = self._manifest() if resume else {"attempts": []}
            write_json_atomic(self.config_file, self.config)
            manifest |= {"finished": False, "data": {name: _sha256(file) for name, file in self.data_files.items()}}
            manifest["attempts"].append(_attempt())
            write_json_atomic(self.manifest_file, manifest)
        except BaseException:
            self._lock.close()
            raise
        return self

    def finish(self, outcome: str) -> None:
        """Record how this attempt ended (``finished``, ``failed: …``, ``interrupted``) and release the directory."""
        try:
            manifest = self._manifest()
            manifest["attempts"][-1] |= {"ended": _now(), "outcome": outcome}
            manifest["finished"] = outcome == "finished"
            write_json_atomic(self.manifest_file, manifest)
        finally:
            self._lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish("finished")
            return
        with suppress(OSError):  # a disk that is full is told by the error that is on its way
            self.finish("interrupted" if issubclass(kind, KeyboardInterrupt) else f"failed: {kind.__name__}")

    def _take_lock(self) -> None:
        self._lock = open(self.path / "run.lock", "a")  # noqa: SIM115 - held until the run ends
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UserError(
                f"another process is working in {self.path}; wait for it, stop it, or choose another --output-dir"
            ) from None

    def _manifest(self) -> dict[str, Any]:
        if not self.manifest_file.exists():  # killed between the two files
            return {"attempts": []}
        manifest = read_json(self.manifest_file)
        attempts = manifest.get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
            raise UserError(f"{self.manifest_file} is damaged: it has no list of attempts; restore it, or move it away")
        return manifest

    def _check_unchanged(self, free: set[str]) -> None:
        before = read_json(self.config_file)
        now = json.loads(json.dumps(self.config))
        changed = [
            f"{key}: {before.get(key)!r} -> {now.get(key)!r}"
            for key in sorted(before.keys() | now.keys())
            if key not in free and before.get(key) != now.get(key)
        ]
        if changed:
            raise UserError(
                f"{self.path} was begun with other settings ({'; '.join(changed)}); resume with the same ones, or "
                "choose another --output-dir"
            )
        hashes = {} if "data" in free else self._manifest().get("data") or {}
        for name, file in self.data_files.items():
            if name in hashes and hashes[name] != _sha256(file):
                raise UserError(
                    f"{file} has changed since {self.path} was begun; restore it, or choose another --output-dir"
                )


def _attempt() -> dict[str, Any]:
    return {
        "started": _now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "versions": _versions(),
        "git_commit": _git_commit(),
        "hardware": _hardware(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    versions = {}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """The commit of the package's own checkout, or None if it is installed without one."""
    here = Path(__file__).parent
    if "site-packages" in here.parts:
        return None
    try:
        found = subprocess.run(  # noqa: S603
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {"machine": platform.machine(), "system": platform.system(), "cpus": os.cpu_count()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        hardware["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return hardware


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_begun(run_dir: Path) -> bool:
    """Whether a directory holds a run, finished or not."""
    return (run_dir / "config.json").exists()


def is_finished(run_dir: Path) -> bool:
    """Whether the run in a directory has come to its end."""
    manifest = run_dir / "manifest.json"
    return manifest.exists() and read_json(manifest).get("finished") is True


# Records of training.

METRICS_FILE = "metrics.jsonl"
ROLLOUTS_DIR = "rollouts"


def rollouts_file(run_dir: Path, step: int) -> Path:
    """Where the completions that step ``step`` (counted from 1) was trained on lie."""
    return run_dir / ROLLOUTS_DIR / f"step_{step:05d}.parquet"


def rollouts_files(run_dir: Path) -> dict[int, Path]:
    """Step -> file of its completions, in the order of the steps."""
    found = {}
    for path in (run_dir / ROLLOUTS_DIR).glob("step_*.parquet"):
        step = path.stem.removeprefix("step_")
        if step.isdecimal():
            found[int(step)] = path
    return dict(sorted(found.items()))


def read_rollouts(path: Path, columns: list[str] | None = None) -> Any:
    """The pyarrow table of a rollouts file, or some of its columns.

    Raises:
        UserError: it cannot be read, or lacks a column.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path, columns=columns, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())}); restore it, or remove it") from None


def read_metrics(run_dir: Path, fields: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The metrics of a run, a record a step; ``fields`` as in ``read_jsonl``, ``step`` always among them.

    Raises:
        UserError: a damaged file; or one that was cut, of a finished run that has recorded every step.
    """
    path = run_dir / METRICS_FILE
    lines = read_jsonl(path, {"step": int} | dict(fields or {}))
    trained = max(rollouts_files(run_dir), default=0)
    last = max((line["step"] for line in lines), default=0)
    if last < trained and is_finished(run_dir):
        every = (read_json(run_dir / "config.json").get("trl") or {}).get("logging_steps") or 1
        if trained - last >= every:
            raise UserError(f"{path} ends with step {last}, but the run went on to step {trained}; restore the file")
    return lines


def append_metrics(run_dir: Path, step: int, metrics: Mapping[str, Any]) -> None:
    """Append the metrics of a step to ``metrics.jsonl``; a number that is not finite has no JSON form and is null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
    append_jsonl(run_dir / METRICS_FILE, [{"step": step, **finite}])


def cut_records(run_dir: Path, last_step: int) -> None:
    """Remove metrics and rollouts of steps after ``last_step``: a resumed run does those steps again."""
    truncate_jsonl(run_dir / METRICS_FILE, lambda record: record["step"] <= last_step, {"step": int})
    for step, path in rollouts_files(run_dir).items():
        if step > last_step:
            path.unlink()


# Checkpoints.

CHECKPOINT_PREFIX = "checkpoint-"
COMPLETE_MARK = "checkpoint_complete"
"""An empty file in a checkpoint, made when all else in it is written."""


def checkpoints(run_dir: str | Path) -> list[Path]:
    """The complete checkpoints of a run directory, oldest first."""
    return [path for path in checkpoint_dirs(run_dir) if is_complete(path)]


def last_complete_checkpoint(run_dir: str | Path) -> Path | None:
    """The newest checkpoint that was written to its end, or None."""
    complete = checkpoints(run_dir)
    return complete[-1] if complete else None


def is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (checkpoint / COMPLETE_MARK).exists()


def checkpoint_dirs(run_dir: str | Path) -> list[Path]:
    """All checkpoints of a run directory, complete or not, oldest first."""
    found = []
    for path in Path(run_dir).glob(f"{CHECKPOINT_PREFIX}*"):
        step = path.name.removeprefix(CHECKPOINT_PREFIX)
        if path.is_dir() and step.isdecimal():
            found.append((int(step), path))
    return [path for _, path in sorted(found)]
