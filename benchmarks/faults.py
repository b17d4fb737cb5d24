"""Faults put in everyone's way, and what was lost: kills, full disks, damaged files, strange input, hostile text.

    python benchmarks/faults.py                        all campaigns, about half an hour of CPU time
    python benchmarks/faults.py kills --share 0.1      one of them, a tenth of its faults
    python benchmarks/faults.py --seed 7 -o faults.jsonl

Every fault meets the real command line, in a process of its own, with the embedded policy and questions; rephrasing
asks a scripted endpoint on loopback. One line a fault goes to the output file, and a table in Markdown to standard
output. Exits 1 if any fault was not handled: by a right result, or by a message that says what is wrong and the fix.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import fault_disk
import fault_files
import fault_inputs
import fault_kills
import fault_texts
from fault_setup import Context, Fault, fresh
from rephrase_speed import answered, endpoint
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

CAMPAIGNS: dict[str, Callable[[Context], Iterator[Fault]]] = {
    "kills": fault_kills.faults,
    "disk": fault_disk.faults,
    "files": fault_files.faults,
    "encodings": fault_inputs.encodings,
    "parquet": fault_inputs.parquet,
    "yaml": fault_inputs.yaml,
    "large": fault_inputs.large,
    "texts": fault_texts.faults,
}
_LATENCY = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)}; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the faults of each kind, one at least")
    parser.add_argument("--table", type=Path, nargs="+", help="only the table of output files that are there")
    parser.add_argument("-o", "--output", type=Path, default=Path("faults.jsonl"), help="one line a fault")
    parser.add_argument("--work", type=Path, help="folder to work in, kept; default: a temporary one")
    asked = parser.parse_args()
    if asked.table:
        print(table([Fault(**json.loads(line)) for path in asked.table for line in path.read_text().splitlines()]))
        return 0
    if unknown := [name for name in asked.campaigns if name not in CAMPAIGNS]:
        parser.error(f"unknown campaign {unknown[0]}; the campaigns are {', '.join(CAMPAIGNS)}")
    tried: list[Fault] = []
    with tempfile.TemporaryDirectory() as temporary, open(asked.output, "w") as log:
        for fault in _faults(asked, asked.work or Path(temporary)):
            tried.append(fault)
            log.write(json.dumps(asdict(fault), ensure_ascii=True) + "\n")
            log.flush()
    print(table(tried))
    return 0 if all(fault.handled for fault in tried) else 1


def _faults(asked: argparse.Namespace, place: Path) -> Iterator[Fault]:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, endpoint(_LATENCY) as url:
        for name in asked.campaigns or CAMPAIGNS:
            task, tried, wrong = progress.add_task(name), 0, 0
            context = Context(
                place / name, random.Random(f"{asked.seed} {name}"), url, lambda: answered(url), asked.share
            )
            fresh(context.place)
            for fault in CAMPAIGNS[name](context):
                tried, wrong = tried + 1, wrong + (not fault.handled)
                if not fault.handled:
                    told = f"{name}, {fault.verb}, {fault.what}: {fault.came_to} (exit {fault.code}) {fault.told}"
                    progress.console.print(ascii(told)[1:-1], markup=False, highlight=False)
                yield fault
                progress.update(task, description=f"{name}: {tried} tried, {wrong} not handled; {fault.verb}")
            progress.stop_task(task)


def table(faults: Sequence[Fault]) -> str:
    """Campaign, verb and outcome, with how often."""
    counts = Counter((fault.campaign, fault.verb, fault.came_to, fault.handled) for fault in faults)
    repeated: Counter[tuple[str, str, str, bool]] = Counter()
    for fault in faults:
        repeated[fault.campaign, fault.verb, fault.came_to, fault.handled] += fault.repeated
    lines = ["| campaign | verb | came to | times | handled | done again |", "|---|---|---|---|---|---|"]
    for key, times in counts.items():
        campaign, verb, came_to, handled = key
        told = "cannot be seen" if came_to == fault_files.UNSEEN else "yes" if handled else "NO"
        lines.append(f"| {campaign} | {verb} | {came_to} | {times} | {told} | {repeated[key] or ''} |")
    wrong = sum(not fault.handled for fault in faults)
    unseen = sum(fault.came_to == fault_files.UNSEEN for fault in faults)
    return "\n".join([*lines, "", f"{len(faults)} faults, {wrong} not handled, {unseen} that cannot be seen"])


if __name__ == "__main__":
    os.environ.pop("OPENAI_API_KEY", None)
    sys.exit(main())
