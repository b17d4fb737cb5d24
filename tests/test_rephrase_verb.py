"""The verb rephrase through the real command line: reports, limits, refusals, the Hub, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from rephrase_runs import KEY, run, write
from rephrasing_endpoint import questions
from ta_grpo.cli import main
from ta_grpo.errors import UserError
from ta_grpo.questions import Question
from ta_grpo.rephrasing import rephrase
from ta_grpo.rephrasing.rephrase_settings import RephraseSettings


def verb(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["rephrase", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_verb_reports_quality_and_money(tmp_path, endpoint, capsys):
    source = write(tmp_path / "questions.jsonl", questions(5))
    (tmp_path / "r.yaml").write_text("model: m\nnum_rephrasings: 2\nprice_in: 1000\nprice_out: 10000\n")
    words = [str(source), "-o", str(tmp_path / "out.jsonl"), "--config", str(tmp_path / "r.yaml")]
    words += ["--base-url", endpoint.url, "-n", "3", "--limit", "4"]
    code, out, _ = verb(capsys, *words, "--dry-run", "--json")
    planned = json.loads(out)["forecast"]
    assert (code, planned["questions"], planned["calls"], planned["calls_at_most"]) == (0, 4, 12, 36)
    assert 0 < planned["cost"] < planned["cost_at_most"]
    assert not (tmp_path / "out.jsonl").exists()
    assert not endpoint.asked
    assert verb(capsys, *words, "--dry-run")[0] == 0
    code, out, err = verb(capsys, *words, "--json")
    result = json.loads(out)
    assert (code, result["quality"]["accepted"], result["spent"]["calls"]) == (0, 12, 12)
    assert result["spent"]["cost"] == pytest.approx(12 * 0.2)
    assert 0 < result["quality"]["similarity"]["mean"] < 1
    assert "4/4 questions" in err
    assert KEY not in out + err
    code, out, _ = verb(capsys, *words, "--resume")
    assert code == 0
    assert "rephrasings accepted" in out
    assert "By transformation" in out


def test_the_cost_limit_ends_the_verb_with_1(tmp_path, endpoint, capsys):
    source = write(tmp_path / "questions.jsonl", questions(4))
    words = [str(source), "-o", str(tmp_path / "out.jsonl"), "--model", "m", "--base-url", endpoint.url]
    words += ["--price-in", "1000", "--price-out", "10000", "--max-tokens", "20", "--concurrency", "2"]
    code, out, err = verb(capsys, *words, "--max-cost", "2")
    assert (code, out) == (1, "")
    assert "raise --max-cost" in err
    assert verb(capsys, *words, "--max-cost", "50", "--resume")[0] == 0
    assert len(endpoint.answered) == 28


BAD = {
    "no output": (["q.jsonl"], "--output is missing"),
    "no such file": (["nowhere.jsonl", "-o", "new.jsonl"], "nowhere.jsonl"),
    "bad rows": (["bad.jsonl", "-o", "new.jsonl"], "line 3"),
    "bad suffix": (["q.jsonl", "-o", "new.txt"], ".jsonl"),
    "output exists": (["q.jsonl", "-o", "q.jsonl"], "never replaced"),
    "no key": (["q.jsonl", "-o", "new.jsonl"], "OPENAI_API_KEY"),
    "nothing to resume": (["q.jsonl", "-o", "new.jsonl", "--rules", "--resume"], "nothing to resume"),
    "no rephrasings": (["q.jsonl", "-o", "new.jsonl", "-n", "0"], "--num-rephrasings=0"),
    "half a rephrasing": (["q.jsonl", "-o", "new.jsonl", "-n", "1.5"], "whole number"),
    "unknown transformation": (["q.jsonl", "-o", "new.jsonl", "--transformations", "wordin"], "did you mean wording"),
    "unknown check": (["q.jsonl", "-o", "new.jsonl", "--skip-checks", "number"], "did you mean numbers"),
    "unknown flag": (["q.jsonl", "-o", "new.jsonl", "--modle", "x"], "--modle"),
    "unknown setting": (["q.jsonl", "-o", "new.jsonl", "--config", "typo.yaml"], "did you mean 'model'"),
    "one price": (["q.jsonl", "-o", "new.jsonl", "--price-in", "1"], "go together"),
    "unknown price": (
        ["q.jsonl", "-o", "new.jsonl", "--base-url", "http://127.0.0.1:9/v1", "--max-cost", "1"],
        "--price-in and --price-out",
    ),
    "no concurrency": (["q.jsonl", "-o", "new.jsonl", "--concurrency", "0"], "--concurrency=0"),
    "address with a key": (["q.jsonl", "-o", "new.jsonl", "--base-url", "http://me:pw@h/v1"], "without credentials"),
    "no prompts": (["q.jsonl", "-o", "new.jsonl", "--prompts", "nowhere"], "no folder nowhere"),
    "empty prompts": (["q.jsonl", "-o", "new.jsonl", "--prompts", "empty"], "no .txt file"),
    "prompt without version": (["q.jsonl", "-o", "new.jsonl", "--prompts", "noversion"], "version: 2"),
    "frame without question": (["q.jsonl", "-o", "new.jsonl", "--prompts", "noplace"], "{question} 0 times"),
    "rules and prompts": (["q.jsonl", "-o", "new.jsonl", "--rules", "--prompts", "empty"], "--rules asks no model"),
    "no such rule": (["q.jsonl", "-o", "new.jsonl", "--rules", "--transformations", "poem"], "transformation by rule"),
    "bad repository": (["q.jsonl", "-o", "new.jsonl", "--push-to-hub", "name"], "OWNER/NAME"),
    "missing column": (["q.jsonl", "-o", "new.jsonl", "--columns.question", "problem"], "no column 'problem'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_request_is_told_with_its_fix_and_exit_code_2(tmp_path, monkeypatch, capsys, case):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "q.jsonl", questions(2))
    (tmp_path / "bad.jsonl").write_text(
        '{"question": "x", "answer": "1"}\n{"question": "", "answer": "2"}\n{"question"\n'
    )
    (tmp_path / "typo.yaml").write_text("modle: x\n")
    for folder, name, text in (
        ("noversion", "wording.txt", "Change it.\n"),
        ("noplace", "frame.txt", "version: 1\n{task} {begin} {end}\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "empty").mkdir()
    before = {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.iterdir()}
    words, told = BAD[case]
    code, out, err = verb(capsys, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    assert {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.iterdir()} == before


def test_all_bad_rows_are_told_at_once_and_rows_without_an_answer_left_out(tmp_path, endpoint, caplog):
    rows = [*questions(2), {"question": "Prove it.", "answer": "proof"}]
    assert run(tmp_path, endpoint, rows, num_rephrasings=1).report.questions == 2
    assert len([record for record in caplog.records if "no final answer" in record.message]) == 1
    bad = [{"question": "", "answer": "1"}, *questions(1), {"question": "a\x0cb", "answer": "2"}, *questions(1)]
    with pytest.raises(UserError) as caught:
        run(tmp_path, endpoint, bad, output=tmp_path / "new.jsonl")
    for told in ("line 1, question", "line 3, question", "line 4, id"):
        assert told in str(caught.value)


def test_questions_may_come_from_a_library_caller(tmp_path, endpoint):
    settings = RephraseSettings(output=tmp_path / "out.jsonl", model="m", base_url=endpoint.url, num_rephrasings=1)
    outcome = rephrase([Question(row["id"], row["question"], row["answer"]) for row in questions(2)], settings)
    assert outcome.report.num_accepted == 2


def test_the_hub_gets_the_file_and_a_card(tmp_path, endpoint, capsys, monkeypatch):
    import huggingface_hub

    calls = []
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda self, *a, **k: calls.append(("repo", a, k)))
    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", lambda self, *a, **k: calls.append(("commit", a, k)))
    source = write(tmp_path / "questions.jsonl", questions(2))
    words = [str(source), "-o", str(tmp_path / "out.jsonl"), "--model", "m", "--base-url", endpoint.url, "-n", "2"]
    code, out, _ = verb(capsys, *words, "--push-to-hub", "me/apples", "--json")
    assert code == 0
    assert json.loads(out)["hub"] == "https://huggingface.co/datasets/me/apples"
    (_, name, how), (_, (commit_name, operations), _) = calls
    assert (name, commit_name) == (("me/apples",), "me/apples")
    assert (how["repo_type"], how["private"]) == ("dataset", True)
    files = {operation.path_in_repo: operation for operation in operations}
    assert files.keys() == {"out.jsonl", "README.md"}
    assert files["out.jsonl"].path_or_fileobj == str(tmp_path / "out.jsonl")
    card = files["README.md"].path_or_fileobj.decode()
    huggingface_hub.DatasetCard(card)  # its front matter can be read
    assert "4 rephrasings" in card
    assert str(tmp_path) not in card

    def refuse(self, *args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", refuse)
    code, _, err = verb(capsys, *words, "--push-to-hub", "me/apples", "--resume")
    assert code == 2
    assert "no network" in err
    assert "--resume" in err


def test_an_interrupted_verb_ends_with_130_and_goes_on(tmp_path, endpoint):
    endpoint.delay = 0.05
    source = write(tmp_path / "questions.jsonl", questions(30))
    command = [sys.executable, "-m", "ta_grpo.cli", "rephrase", str(source), "-o", str(tmp_path / "out.jsonl")]
    command += ["--model", "m", "--base-url", endpoint.url, "--concurrency", "4"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell runs in the background ignores SIGINT, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while len(endpoint.answered) < 40:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "never retrieved" not in err
    endpoint.delay = 0.0
    assert subprocess.run([*command, "--resume"], capture_output=True, check=False).returncode == 0
    assert len(endpoint.answered) <= 210 + 4
