"""Rephrasing runs against the endpoint on loopback, and the files they leave."""

from __future__ import annotations

import json
from pathlib import Path

from rephrasing_endpoint import questions
from ta_grpo.rephrasing import rephrase
from ta_grpo.rephrasing.rephrase_settings import RephraseSettings

KEY = "sk-secret-of-the-test"


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def run(folder: Path, endpoint, rows=4, on_progress=None, **settings):
    source = write(folder / "questions.jsonl", questions(rows) if isinstance(rows, int) else rows)
    base_url = None if endpoint is None else endpoint.url
    settings = {"output": folder / "out.jsonl", "model": "m", "base_url": base_url} | settings
    return rephrase(source, RephraseSettings(**settings), on_progress)
