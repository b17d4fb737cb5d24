"""kill -9 at random moments of rephrase, train, eval and compare, each followed by the command that goes on.

Moments are drawn over the CPU time of an unbroken run, and so do not depend on how busy the machine is (Linux only).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_setup import (
    SAMPLES_A_BATCH,
    Context,
    Fault,
    Verb,
    compare_verb,
    eval_verb,
    fresh,
    kill,
    lines_of,
    rephrase_verb,
    run,
    start,
    train_verb,
)

CAMPAIGN = "kills"
KILLS = {"rephrase": 16, "train": 16, "eval": 16, "compare": 12}
_KILLS_OF_A_RUN = 4
_SAME = "went on, the result of an unbroken run"


@dataclass(frozen=True)
class Unbroken:
    """CPU-seconds until a run has begun to write and until its end, its result, and the calls that it paid for."""

    begins: float
    ends: float
    result: Any
    calls: int


def faults(context: Context) -> Iterator[Fault]:
    for verb in (rephrase_verb(context.url), train_verb(), eval_verb(), compare_verb()):
        yield from _kills(context, verb, context.times(KILLS[verb.name]))


def _kills(context: Context, verb: Verb, wanted: int) -> Iterator[Fault]:
    whole = _unbroken(context, verb)
    killed = 0
    while killed < wanted:
        folder = fresh(context.place / verb.name)
        verb.prepare(folder)
        before = context.answered()
        kills: list[tuple[str, int]] = []
        while len(kills) < min(_KILLS_OF_A_RUN, wanted - killed):
            told = _kill_once(context, verb, folder, whole)
            if told is None:  # it came to its end first
                break
            kills.append(told)
        end = run(verb.command(folder))
        same = end.code == 0 and verb.result(folder) == whole.result
        again = context.answered() - before - whole.calls
        for number, (what, repeated) in enumerate(kills):
            if verb.name == "rephrase":  # told by the endpoint, over all kills of a run
                repeated = again if number == len(kills) - 1 else 0
            came_to = _SAME if same else "ANOTHER RESULT" if end.code == 0 else "LOST"
            yield Fault(CAMPAIGN, verb.name, what, came_to, same, end.code, end.told if not same else "", repeated)
        killed += len(kills)


def _unbroken(context: Context, verb: Verb) -> Unbroken:
    folder = fresh(context.place / f"{verb.name}-unbroken")
    verb.prepare(folder)
    before, used = context.answered(), 0.0
    process = start(verb.command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (folder / verb.begun).exists():
        time.sleep(0.005)
    begins = _cpu_seconds(process)
    while process.poll() is None:
        used = max(used, _cpu_seconds(process))
        time.sleep(0.005)
    assert process.returncode == 0, f"{verb.name} fails without any fault"
    return Unbroken(begins, used, verb.result(folder), context.answered() - before)


def _kill_once(context: Context, verb: Verb, folder: Path, whole: Unbroken) -> tuple[str, int] | None:
    """When the kill came, and what of the work on disk has to be done again; None: the run ended before it.

    One kill of four comes at any moment of a run, the others from when it has begun to write.
    """
    earliest = 0.0 if context.rng.random() < 0.25 else 0.95 * whole.begins
    wait = context.rng.uniform(earliest, whole.ends)
    process = start(verb.command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _cpu_seconds(process) < wait:
        time.sleep(0.005)
    if not kill(process):
        return None
    time.sleep(0.1)  # what was on its way to the endpoint arrives
    return f"kill -9 after {wait:.2f} CPU-seconds of {whole.ends:.1f}", _to_repeat(verb, folder)


def _cpu_seconds(process: subprocess.Popen[Any]) -> float:
    """What a process has used so far, without its workers; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _to_repeat(verb: Verb, folder: Path) -> int:
    """Steps on disk that no complete checkpoint holds; completions on disk of a batch that is not whole."""
    if verb.name == "eval":
        return len(lines_of(folder / "eval/tiny_test/samples.jsonl")) % SAMPLES_A_BATCH
    places = [folder / "run"] if verb.name == "train" else sorted(folder.glob("exp/runs/*/*"))
    repeated = 0
    for place in places:
        steps = [line["step"] for line in lines_of(place / "metrics.jsonl")]
        saved = [int(mark.parent.name.rpartition("-")[2]) for mark in place.glob("checkpoint-*/checkpoint_complete")]
        repeated += max(max(steps, default=0) - max(saved, default=0), 0)
    return repeated
