"""The endpoint backend against a scripted server, through the official client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripted_endpoint import choice, scripted_endpoint
from ta_grpo.errors import UserError
from ta_grpo.questions import Question
from ta_grpo.sampling import EndpointSampler, SamplingSettings, sample_to_file

QUESTIONS = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1)) for i in range(5)]
KEY = "sk-secret-of-the-test"


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with scripted_endpoint() as endpoint:
        yield endpoint


def draw(path: Path, endpoint, num_samples=4, questions=QUESTIONS, conversational=True, on_progress=None, **changes):
    options = {name: changes.pop(name) for name in ("concurrency", "chat_template_kwargs") if name in changes}
    settings = SamplingSettings(**{"num_samples": num_samples, "max_new_tokens": 9, "batch_size": 8} | changes)
    sampler = EndpointSampler("the-model", settings, endpoint.url, **options)
    sample_to_file(sampler, questions, path, "{question}", conversational, on_progress)
    return path.read_bytes()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refusal(*args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        draw(*args, **kwargs)
    assert KEY not in str(caught.value)
    return str(caught.value)


def written_anywhere(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_every_question_gets_its_samples(tmp_path, endpoint):
    progress = []
    draw(tmp_path / "samples.jsonl", endpoint, temperature=0.7, top_p=0.9, on_progress=lambda *at: progress.append(at))
    found = lines(tmp_path / "samples.jsonl")
    assert [(line["id"], line["sample"]) for line in found] == [(f"q{i}", n) for i in range(5) for n in range(4)]
    assert all(line["completion"].startswith(f"What is {line['id'][1:]} + 1?") for line in found)
    assert len({line["completion"] for line in found}) == 20
    assert all(line["finished"] and line["tokens"] == 5 for line in found)
    assert {(request["n"], request["temperature"], request["top_p"]) for request in endpoint.asked} == {(4, 0.7, 0.9)}
    assert {(request["max_tokens"], request["model"]) for request in endpoint.asked} == {(9, "the-model")}
    assert set(endpoint.paths) == {"/v1/chat/completions"}
    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    assert progress[0] == (0, 20)
    assert progress[-1] == (20, 20)
    assert progress == sorted(progress)
    assert {path.name for path in tmp_path.iterdir()} == {"samples.jsonl", "samples.meta.json"}
    assert not written_anywhere(tmp_path, KEY)


def test_text_goes_to_the_completions_endpoint(tmp_path, endpoint):
    draw(tmp_path / "samples.jsonl", endpoint, conversational=False)
    assert set(endpoint.paths) == {"/v1/completions"}
    assert lines(tmp_path / "samples.jsonl")[0]["completion"].startswith("What is 0 + 1?")


def test_no_key_is_needed_for_a_server_of_ones_own(tmp_path, endpoint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    draw(tmp_path / "samples.jsonl", endpoint)
    assert len(lines(tmp_path / "samples.jsonl")) == 20
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        EndpointSampler("the-model", SamplingSettings(1, 1))


def test_chat_template_settings_are_sent_along(tmp_path, endpoint):
    draw(tmp_path / "samples.jsonl", endpoint, chat_template_kwargs={"enable_thinking": False})
    assert endpoint.asked[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_server_that_ignores_n_is_asked_until_there_are_enough(tmp_path, endpoint):
    endpoint.honours_n = False
    draw(tmp_path / "samples.jsonl", endpoint)
    found = lines(tmp_path / "samples.jsonl")
    assert len(found) == 20
    assert len({line["completion"] for line in found}) == 20  # each request has a seed of its own
    assert len(endpoint.asked) == 20
    assert sorted(request["n"] for request in endpoint.asked) == sorted([4, 3, 2, 1] * 5)  # never more than is missing


def test_a_server_that_refuses_n_is_asked_for_one_at_a_time(tmp_path, endpoint):
    endpoint.refuses_n = True
    draw(tmp_path / "samples.jsonl", endpoint)
    assert len({line["completion"] for line in lines(tmp_path / "samples.jsonl")}) == 20
    assert sum(request["n"] == 1 for request in endpoint.asked) == 20


def test_a_server_that_gives_too_many_is_cut_to_what_was_asked(tmp_path, endpoint):
    endpoint.script = [lambda request: [choice(f"text {i}", request) for i in range(9)]]
    draw(tmp_path / "samples.jsonl", endpoint, questions=QUESTIONS[:1])
    assert [line["completion"] for line in lines(tmp_path / "samples.jsonl")] == [f"text {i}" for i in range(4)]


def test_many_samples_of_a_question_are_several_requests_at_a_time(tmp_path, endpoint):
    endpoint.delay = 0.1
    draw(tmp_path / "samples.jsonl", endpoint, questions=QUESTIONS[:1], num_samples=70, batch_size=70, concurrency=3)
    assert sorted(request["n"] for request in endpoint.asked) == [6, 16, 16, 16, 16]
    assert endpoint.most_under_way == 3
    assert len({line["completion"] for line in lines(tmp_path / "samples.jsonl")}) == 70


@pytest.mark.parametrize("trouble", [(429, "slow down"), (500, "oops"), (503, "busy"), "cut"], ids=str)
def test_passing_trouble_is_tried_again(tmp_path, endpoint, trouble):
    calm = draw(tmp_path / "calm.jsonl", endpoint)
    endpoint.script = [trouble, trouble]
    assert draw(tmp_path / "troubled.jsonl", endpoint) == calm


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ((401, f"Incorrect API key provided: {KEY}"), "check the environment variable OPENAI_API_KEY"),
        ((403, "no"), r"refuses the key \(403\)"),
        ((404, "The model the-model does not exist"), "knows no model 'the-model'"),
        ((429, f"You exceeded your current quota, {KEY}"), "the quota is used up"),
        ((400, "context is too long"), "Error code: 400 - .*context is too long"),
        ((500, "oops"), "Error code: 500 - .*oops"),
        ("cut", "cannot be reached"),
    ],
    ids=str,
)
def test_lasting_trouble_is_told_and_costs_nothing_that_has_arrived(tmp_path, endpoint, trouble, told, monkeypatch):
    monkeypatch.setattr("ta_grpo.sampling.endpoint._RETRIES", 1)
    unbroken = draw(tmp_path / "unbroken.jsonl", endpoint)
    path = tmp_path / "samples.jsonl"
    endpoint.script = [endpoint.choices, *[trouble] * 30]
    assert re.search(told, refusal(path, endpoint, concurrency=1))
    assert "--resume" in refusal(path, endpoint, concurrency=1) or trouble[0] == 404
    arrived = lines(tmp_path / "samples.arrived.jsonl")
    assert [line["text"] for line in arrived] == [line["completion"] for line in lines_of(unbroken)[:4]]
    endpoint.script, endpoint.asked = [], []
    assert draw(path, endpoint) == unbroken
    assert sum(request["n"] for request in endpoint.asked) == 16
    assert not written_anywhere(tmp_path, KEY)


def lines_of(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.splitlines()]


def test_requests_under_way_are_waited_for_when_one_fails(tmp_path, endpoint):
    endpoint.delay = 0.1
    endpoint.script = [(401, "no")]
    many = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1)) for i in range(60)]
    refusal(tmp_path / "samples.jsonl", endpoint, questions=many, batch_size=240, concurrency=3)
    # Those that ended before the failure was read have let others begin; most never do.
    assert 3 <= len(endpoint.asked) < 30
    assert len(lines(tmp_path / "samples.arrived.jsonl")) == 4 * (len(endpoint.asked) - 1)


def test_empty_cut_and_filtered_completions(tmp_path, endpoint):
    endpoint.script = [
        lambda request: [
            choice("", request),
            choice(None, request, "length"),
            choice("half", request, "length"),
            choice("", request, "content_filter"),
        ]
    ]
    draw(tmp_path / "samples.jsonl", endpoint, questions=QUESTIONS[:1])
    found = [(line["completion"], line["finished"]) for line in lines(tmp_path / "samples.jsonl")]
    assert found == [("", True), ("", False), ("half", False), ("", False)]


def test_a_server_that_does_not_count_tokens(tmp_path, endpoint):
    endpoint.tells_usage = False
    draw(tmp_path / "samples.jsonl", endpoint)
    assert {line["tokens"] for line in lines(tmp_path / "samples.jsonl")} == {None}


def test_an_address_that_is_no_endpoint_is_told(tmp_path, endpoint):
    endpoint.script = [lambda request: []]
    assert "answered without a completion" in refusal(tmp_path / "samples.jsonl", endpoint, concurrency=1)


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://me:pw@host/v1", "http://host/v1?key=1"])
def test_addresses_that_cannot_be_or_that_carry_a_key_are_refused(url):
    with pytest.raises(UserError, match="--base-url") as caught:
        EndpointSampler("m", SamplingSettings(1, 1), url)
    assert "pw" not in str(caught.value)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_killed_run_asks_only_for_what_is_missing(tmp_path, endpoint):
    unbroken = draw(tmp_path / "unbroken" / "samples.jsonl", endpoint, num_samples=12, batch_size=30)
    code = (
        "import sys; from pathlib import Path; from types import SimpleNamespace; sys.path.insert(0, sys.argv[3]); "
        "import test_endpoint; test_endpoint.draw(Path(sys.argv[1]), SimpleNamespace(url=sys.argv[2]), "
        "num_samples=12, batch_size=30, concurrency=2)"
    )
    endpoint.honours_n, endpoint.delay = False, 0.02
    path = tmp_path / "killed" / "samples.jsonl"
    arrived = path.with_name("samples.arrived.jsonl")
    words = [sys.executable, "-c", code, str(path), endpoint.url, str(Path(__file__).parent)]
    process = subprocess.Popen(words)
    while not (path.exists() and 300 < size_of(arrived) < 1500):
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.1)
    had = len(lines(path)) + len([line for line in arrived.read_bytes().splitlines(True) if line.endswith(b"\n")])
    assert 30 < had < 60
    endpoint.asked, endpoint.delay = [], 0.0
    broken = draw(path, endpoint, num_samples=12, batch_size=30)
    assert len(endpoint.asked) == 60 - had
    assert {file.name for file in path.parent.iterdir()} == {"samples.jsonl", "samples.meta.json"}
    endpoint.honours_n = False
    whole = draw(tmp_path / "whole" / "samples.jsonl", endpoint, num_samples=12, batch_size=30)
    assert broken == whole
    assert [line["id"] for line in lines_of(unbroken)] == [line["id"] for line in lines_of(broken)]


def test_what_arrived_under_a_damaged_name_is_told(tmp_path, endpoint):
    (tmp_path / "samples.arrived.jsonl").write_text('{"request": "1/0"}\n')
    assert "samples.arrived.jsonl is damaged" in refusal(tmp_path / "samples.jsonl", endpoint)
