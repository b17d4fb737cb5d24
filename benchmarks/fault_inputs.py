"""Strange input: other encodings, a question file of 1 GB, hostile YAML, hostile Parquet.

A question file must be refused with its name and place, or read as what it says; a setting must be refused or taken;
and neither may run code, fill the memory or end in a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from fault_setup import Context, Done, Fault, fresh, measured, run, train_words, write_jsonl

ROWS = [
    {"id": f"café/{n}", "question": f"Ana has {n + 2} cafés — how many are 3 more?", "answer": str(n + 5)}
    for n in range(6)
]
_GIGABYTE = 1_000_000_000
_MOST_MEGABYTES = {"check": 700, "rephrase": 300, "train": 1500}


def _readers(path: Path, folder: Path) -> dict[str, list[Any]]:
    """The verbs that read a question file."""
    return {
        "check": ["check", path, "--limit", "50"],
        "rephrase": ["rephrase", path, "-o", folder / "out.jsonl", "--rules", "-n", "1", "--limit", "20"],
        "train": [*train_words(folder, questions=path, limit=50), "--dry-run"],
        "export": ["export", "--questions", path, "--output-dir", folder / "export"],
        "eval": ["eval", "tiny", "--benchmarks", path, "--output-dir", folder / "eval", "--limit", "2", "--dry-run"],
    }


def _judged(campaign: str, verb: str, what: str, done: Done, may_be_read: bool, most: float | None = None) -> Fault:
    if most is not None and done.megabytes > most:
        came_to, handled = f"MORE THAN {most:.0f} MB", False
    elif done.traceback or done.code < 0:
        came_to, handled = "TRACEBACK" if done.traceback else f"DIED OF SIGNAL {-done.code}", False
    elif done.refused:
        came_to, handled = "refused, with the reason", True
    elif done.code in (0, 1) and may_be_read:  # check exits 1 where it finds something
        came_to, handled = "read as it is", True
    else:
        came_to, handled = "TAKEN", False
    memory = f", {done.megabytes:.0f} MB resident at most" if done.megabytes else ""
    return Fault(campaign, verb, what + memory, came_to, handled, done.code, done.told)


def encodings(context: Context) -> Iterator[Fault]:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    table = "id,question,answer\n" + "".join(f'{row["id"]},"{row["question"]}",{row["answer"]}\n' for row in ROWS)
    kinds = {
        "latin-1": (text.replace("—", "-").encode("latin-1"), False),
        "UTF-16": (text.encode("utf-16"), False),
        "UTF-16 without a mark": (text.encode("utf-16-le"), False),
        "UTF-8 with a mark": (text.encode("utf-8-sig"), True),
        "NUL bytes": (text.replace("Ana", "A\0na", 2).encode(), False),
        "one byte of latin-1 in the last line": (text.encode() + b'{"question": "caf\xe9?", "answer": "1"}\n', False),
        "half a character, as an escape": (text.encode() + b'{"question": "\\ud83d?", "answer": "1"}\n', False),
        "random bytes": (context.rng.randbytes(5000), False),
        "nothing": (b"", False),
        "a hundred thousand brackets": (b"[" * 100_000, False),
        "a number of a million digits": (b'{"question": "What?", "answer": ' + b"9" * 1_000_000 + b"}\n", False),
        "NaN as the answer": (b'{"question": "What?", "answer": NaN}\n', False),
    }
    for what, (content, may_be_read) in kinds.items():
        folder = fresh(context.place / "encodings")
        path = folder / "questions.jsonl"
        path.write_bytes(content)
        for verb, words in _readers(path, folder).items():
            yield _judged("encodings", verb, f"JSONL in {what}", run(words), may_be_read)
    for what in ("latin-1", "utf-16"):
        folder = fresh(context.place / "encodings")
        (folder / "questions.csv").write_bytes(table.replace("—", "-").encode(what))
        for verb, words in _readers(folder / "questions.csv", folder).items():
            yield _judged("encodings", verb, f"CSV in {what}", run(words), False)


def parquet(context: Context) -> Iterator[Fault]:
    good = pyarrow.Table.from_pylist(ROWS)
    for what, number in (
        *((name, 0) for name in ("no such columns", "a column of structures", "JSON that is none")),
        *(("cut", number) for number in range(context.times(4))),
        *(("a byte changed", number) for number in range(context.times(8))),
        *(
            (name, 0)
            for name in ("a huge claim of its footer", "text that is not UTF-8", "no rows", "a thousand columns")
        ),
    ):
        folder = fresh(context.place / "parquets")
        path = folder / "questions.parquet"
        _write_parquet(context, path, what, good)
        for verb, words in _readers(path, folder).items():
            may_be_read = what in ("a byte changed", "a thousand columns")
            yield _judged(
                "parquet", verb, f"Parquet with {what}" + (f" ({number})" if number else ""), run(words), may_be_read
            )


def _write_parquet(context: Context, path: Path, what: str, good: Any) -> None:
    texts = [row["question"] for row in ROWS]
    tables = {
        "no such columns": pyarrow.table({"x": [1, 2]}),
        "a column of structures": pyarrow.table({"question": [{"a": 1}], "answer": [[1, 2]]}),
        "no rows": good.slice(0, 0),
        "a thousand columns": pyarrow.table(
            {"question": texts, "answer": texts} | {f"c{n}": texts for n in range(1000)}
        ),
        "JSON that is none": good.append_column(
            pyarrow.field("extra", pyarrow.string(), metadata={"ta_grpo": "json"}), [["{"] * len(ROWS)]
        ),
    }
    pyarrow.parquet.write_table(tables.get(what, good), path)
    content = bytearray(path.read_bytes())
    if what == "cut":
        content = content[: context.rng.randrange(len(content))]
    elif what == "a byte changed":
        content[context.rng.randrange(len(content))] ^= context.rng.randrange(1, 256)
    elif what == "a huge claim of its footer":
        content[-8:-4] = (2**31 - 1).to_bytes(4, "little")
    elif what == "text that is not UTF-8":
        content = content.replace("é".encode(), b"\xe9\xe9")
    path.write_bytes(content)


YAMLS = {
    "an object of Python": "model: !!python/object/apply:os.system ['touch HERE/executed']\n",
    "a module of Python": "model: !!python/module:os\n",
    "a call of Python": "trl: !!python/object/new:os.system ['touch HERE/executed']\n",
    "an anchor bomb": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    + "model: *a11\n",
    "an anchor bomb in trl": "trl:\n  b0: &b0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"  b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "an anchor bomb as a known setting": "x: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"y{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)).replace("y11", "model"),
    "an anchor that holds itself": "trl: &a {model_init_kwargs: *a}\n",
    "a number of 5,000 digits": f"seed: {'9' * 5000}\n",
    "a number of 400 digits": f"learning_rate: {'9' * 400}\n",
    "a huge count": f"max_steps: {10**30}\nnum_generations: {10**30}\n",
    "a huge negative count": f"max_steps: {-(10**30)}\n",
    "infinity": "learning_rate: .inf\n",
    "not a number": "learning_rate: .nan\n",
    "a date that is none": "seed: 2026-99-99\n",
    "a setting twice": "seed: 1\nseed: 2\n",
    "a key that is a list": "? [a, b]\n: 1\n",
    "two documents": "seed: 1\n---\nseed: 2\n",
    "a tab": "trl:\n\tseed: 1\n",
    "latin-1": b"model: caf\xe9\n",
    "NUL": b"model: a\0b\n",
    "UTF-16": "seed: 1\n".encode("utf-16"),
    "ten thousand brackets": "seed: " + "[" * 10_000 + "\n",
    "a list": "- a\n- b\n",
    "a merge of nothing": "<<: 3\nseed: 1\n",
    "a number as a name": "1: 2\n",
}
_WHOLE_NUMBERS = ("a huge count", "a huge negative count")  # which a dry run of train counts with


def yaml(context: Context) -> Iterator[Fault]:
    for what, content in YAMLS.items():
        folder = fresh(context.place / "yamls")
        path = folder / "settings.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.replace("HERE", str(folder)).encode())
        questions = write_jsonl(folder / "questions.jsonl", ROWS)
        own = ["--model", "tiny", "--questions", "tiny/train", "--output-dir", folder / "run"]
        commands = {
            "train": ["train", "--config", path, *own, "--dry-run"],
            "eval": [
                "eval",
                "tiny",
                "--config",
                path,
                "--benchmarks",
                "tiny/test",
                "--output-dir",
                folder,
                "--dry-run",
            ],
            "rephrase": ["rephrase", questions, "--config", path, "-o", folder / "out.jsonl", "--dry-run"],
            "compare": ["compare", path, "--output-dir", folder / "exp", "--dry-run"],
        }
        for verb, words in commands.items():
            done = run(words)
            fault = _judged("yaml", verb, f"YAML with {what}", done, what in _WHOLE_NUMBERS)
            if (folder / "executed").exists():
                fault = Fault("yaml", verb, fault.what, "EXECUTED", False, done.code)
            yield fault


def large(context: Context) -> Iterator[Fault]:
    """A question file of 1 GB, or a share of it."""
    folder = fresh(context.place / "large")
    path, size = folder / "questions.jsonl", int(_GIGABYTE * min(context.share * 2, 1.0))
    with open(path, "w", encoding="utf-8") as file:
        number = 0
        while file.tell() < size:
            story = " ".join(f"On day {day} it sells {number % 97 + day} loaves." for day in range(25))
            rows = (
                {"id": f"q{n}", "question": f"{n}. {story} How many?", "answer": str(n)}
                for n in range(number, number + 1000)
            )
            file.writelines(json.dumps(row) + "\n" for row in rows)
            number += 1000
    for verb, most in _MOST_MEGABYTES.items():
        done = measured(_readers(path, folder)[verb], folder)
        yield _judged("large", verb, f"a question file of {size / 1e9:.2f} GB, {number:,} questions", done, True, most)
    path.unlink()
