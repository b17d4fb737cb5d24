"""Files of a run cut at a random place, or with a random byte changed, in the way of every verb that reads them.

A verb must then refuse, naming the file, or come to the result of an undamaged run. A byte that turns a text or a
number into another of the same form cannot be seen where a format holds no check sums; such results are counted apart.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_setup import (
    TRAIN_STEPS,
    Context,
    Done,
    Fault,
    Verb,
    compare_verb,
    copied,
    eval_verb,
    eval_words,
    fresh,
    rephrase_verb,
    run,
    train_verb,
    trained,
    without_times,
)

CAMPAIGN = "files"
UNSEEN = "other content of the same form, not seen"


@dataclass(frozen=True)
class Reader:
    """A verb that reads the files of a folder.

    Attributes:
        source: folder, copied for each fault.
        files: patterns of what is damaged, in the folder.
        words: the command, from the folder.
        result: what it comes to.
    """

    verb: str
    source: Path
    files: tuple[str, ...]
    words: Callable[[Path], list[Any]]
    result: Callable[[Path, Done], Any]


def faults(context: Context) -> Iterator[Fault]:
    for reader in _readers(context):
        whole = _read(context, reader, None)[1]
        for path in sorted({path for pattern in reader.files for path in reader.source.glob(pattern)}):
            if path.is_file() and path.stat().st_size:
                for damage in [_cut] * context.times(2) + [_change] * context.times(2):
                    yield _fault(context, reader, path.relative_to(reader.source), damage, whole)


def _read(context: Context, reader: Reader, damage: Callable[[Path], str] | None) -> tuple[Done, Any, str]:
    folder = copied(reader.source, context.place / "damaged")
    what = damage(folder) if damage else ""
    done = run(reader.words(folder), cwd=folder)
    try:
        result = reader.result(folder, done) if done.code == 0 else None
    except (OSError, ValueError) as error:
        result = f"cannot be read: {error}"
    assert damage or done.code == 0, f"{reader.verb} fails without any fault: {done.err}"
    return done, result, what


def _fault(context: Context, reader: Reader, name: Path, damage: Callable[..., str], whole: Any) -> Fault:
    done, result, what = _read(context, reader, lambda folder: damage(folder / name, context.rng))
    if done.refused:
        named = name.name in done.err or name.parent.name in done.err
        came_to = "refused, naming the file" if named else "refused, naming what does not fit"
        handled = True
    elif done.code == 0 and result == whole:
        came_to, handled = "the right result", True
    elif done.code == 0 and damage is _change and not done.traceback:
        came_to, handled = UNSEEN, True
    else:
        came_to = "TRACEBACK" if done.traceback else "ANOTHER RESULT" if done.code == 0 else "NO MESSAGE"
        handled = False
    return Fault(CAMPAIGN, reader.verb, f"{name}: {what}", came_to, handled, done.code, done.told)


def _cut(path: Path, rng: random.Random) -> str:
    size = path.stat().st_size
    at = rng.randrange(size)
    with open(path, "r+b") as file:
        file.truncate(at)
    return f"cut at byte {at} of {size}"


def _change(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    at, bits = rng.randrange(len(content)), rng.randrange(1, 256)
    content[at] ^= bits
    path.write_bytes(content)
    return f"byte {at} of {len(content)} changed by {bits:#04x}"


def _readers(context: Context) -> Iterator[Reader]:
    def done_by(verb: Verb, name: str) -> Path:
        folder = fresh(context.place / name)
        verb.prepare(folder)
        done = run(verb.command(folder))
        assert done.code == 0, done.err
        return folder

    rephrase = rephrase_verb(context.url, 6)
    finished = done_by(rephrase, "rephrased")
    yield Reader("rephrase", finished, ("*.jsonl",), rephrase.command, lambda folder, done: rephrase.result(folder))
    yield Reader(
        "rephrase --resume",
        _half_rephrased(finished, context),
        ("*",),
        rephrase.command,
        lambda f, _: rephrase.result(f),
    )
    training = train_verb()
    run_folder = done_by(training, "trained")
    yield Reader(
        "train --resume",
        _half_trained(run_folder, context),
        ("run/*.json*", "run/rollouts/step_00001.parquet", "run/checkpoint-4/*[!d]"),
        lambda folder: [*training.words(Path()), "--resume"],
        lambda folder, done: trained(folder / "run"),
    )
    shutil.rmtree(run_folder / "run/checkpoint-2")
    evaluated = run(["eval", "run", *eval_words(Path())[2:-2]], cwd=run_folder)
    assert evaluated.code == 0, evaluated.err
    yield Reader(
        "eval RUN",
        run_folder,
        ("run/config.json", "run/manifest.json", "run/checkpoint-8/*.json", "run/checkpoint-8/*.safetensors"),
        lambda folder: [*eval_words(folder, "run")],
        lambda folder, done: json.loads((folder / "eval/tiny_test/summary.json").read_text())["correct"],
    )
    evaluation = done_by(eval_verb(), "evaluated")
    yield Reader("eval, finished", evaluation, ("eval/*/*.json",), _resumed_eval, lambda folder, done: done.out)
    yield Reader(
        "eval --rescore",
        evaluation,
        ("eval/*/samples.jsonl", "eval/*/samples.meta.json", "eval/*/config.json"),
        lambda folder: ["eval", "tiny", "--benchmarks", "tiny/test", "--output-dir", "eval", "--rescore", "--json"],
        lambda folder, done: done.out,
    )
    yield Reader(
        "eval --resume",
        _half_evaluated(evaluation, context),
        ("eval/*/*.json*",),
        _resumed_eval,
        lambda _, done: done.out,
    )
    yield Reader(
        "report",
        run_folder,
        ("run/*.json*", "run/eval/*/summary.json", "run/rollouts/*1.parquet"),
        lambda folder: ["report", "run"],
        lambda folder, done: (folder / "run/report.html").read_text(),
    )
    diagnosis = ["--num-questions", "2", "--embedder", "none", "--max-new-tokens", "20"]
    diagnosed = run(["diagnose", "run", *diagnosis], cwd=run_folder)
    assert diagnosed.code == 0, diagnosed.err
    yield Reader(
        "diagnose",
        run_folder,
        ("run/diagnostics/checkpoint-8/*.json*", "run/diagnostics.json"),
        lambda folder: ["diagnose", "run", *diagnosis, "--json"],
        lambda folder, done: done.out,
    )
    compare = compare_verb()
    experiment = done_by(compare, "compared")
    for path in experiment.glob("exp/runs/*/*/checkpoint-*/*.pt"):
        path.unlink()
    yield Reader(
        "compare --resume",
        experiment,
        ("exp/*.json", "exp/results/*.json"),
        lambda folder: ["compare", "experiment.yaml", "--output-dir", "exp", "--resume", "--json"],
        lambda folder, done: without_times(json.loads(done.out)),
    )
    lost = copied(experiment, context.place / "uncollected")
    shutil.rmtree(lost / "exp/results")
    of_arm = "exp/runs/ta-grpo/seed_0"
    yield Reader(
        "compare --resume",
        lost,
        (f"{of_arm}/*.json*", f"{of_arm}/eval/*/*.json", f"{of_arm}/rollouts/*.parquet"),
        lambda folder: ["compare", "experiment.yaml", "--output-dir", "exp", "--resume", "--json"],
        lambda folder, done: without_times(json.loads(done.out)),
    )
    yield Reader(
        "report",
        experiment,
        ("exp/*.json", "exp/results/*.json"),
        lambda folder: ["report", "exp"],
        lambda folder, done: (folder / "exp/report.html").read_text(),
    )


def _resumed_eval(folder: Path) -> list[Any]:
    return [*eval_words(Path()), "--resume", "--json"]


def _half_rephrased(finished: Path, context: Context) -> Path:
    """A run whose last questions are still to do, and whose replies are all in the cache."""
    folder = copied(finished, context.place / "half-rephrased")
    lines = (folder / "out.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "out.partial.jsonl").write_bytes(b"".join(lines[:3]))
    (folder / "out.jsonl").unlink()
    _unfinished(folder / "out.meta.json")
    return folder


def _half_trained(finished: Path, context: Context) -> Path:
    """A run that was killed with checkpoints 2 and 4, in its step 6."""
    folder = copied(finished, context.place / "half-trained")
    for step in range(6, TRAIN_STEPS + 1):
        shutil.rmtree(folder / f"run/checkpoint-{step}", ignore_errors=True)
        (folder / f"run/rollouts/step_{step:05d}.parquet").unlink()
    lines = (folder / "run/metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "run/metrics.jsonl").write_bytes(b"".join(lines[:5]))
    _unfinished(folder / "run/manifest.json")
    return folder


def _half_evaluated(finished: Path, context: Context) -> Path:
    """An evaluation that was killed in the middle of verifying."""
    folder = copied(finished, context.place / "half-evaluated")
    place = next(folder.glob("eval/*"))
    lines = (place / "verdicts.jsonl").read_bytes().splitlines(keepends=True)
    (place / "verdicts.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    (place / "summary.json").unlink()
    _unfinished(place / "manifest.json")
    return folder


def _unfinished(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"finished": False}))
