"""The report: what it says of runs and experiments, which rollouts it shows, and the page in a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_runs import HOSTILE, completion, write_results, write_run
from ta_grpo.cli import main
from ta_grpo.report import rollouts
from ta_grpo.report.reading import read_source
from ta_grpo.report.rollouts import STATES, Group, choose, scan, script_safe_json

ARMS = ["grpo-matched", "rephrased-data", "ta-own-prompt", "ta-grpo"]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [
        row for path in sorted((run / "rollouts").iterdir()) for row in pyarrow.parquet.read_table(path).to_pylist()
    ]


def text_of(page: Path) -> str:
    """What a reader sees, without scripts, styles and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


# What it is made from.


def test_an_experiment_of_which_only_results_are_there(tmp_path, capsys):
    place = write_results(tmp_path / "experiment", ARMS, seeds=3, sets=("tiny_test", "tiny_ood"))
    (place / "results" / "ta-grpo_seed_2.json").unlink()
    assert main(["report", str(place)]) == 0
    shown, text = capsys.readouterr().out, text_of(place / "report.html")
    assert f"Report: {place / 'report.html'}" in shown
    assert "ta-grpo against grpo-matched (data + pooling + anchoring)" in text
    assert "results of ta-grpo seed 2" in text
    assert f"ta-grpo compare EXPERIMENT.yaml --output-dir {place} --resume" in text
    assert "of all 11 runs: only their results are here" in text
    names = {path.name for path in (place / "figures").iterdir()}
    for figure in ("differences_tiny_test", "differences_tiny_ood", "pass_at_k_tiny_test", "pass_at_k_tiny_ood"):
        assert {f"{figure}.png", f"{figure}.svg"} <= names
    # The numbers are those of the verb compare.
    from ta_grpo.controls.results import compare_arms

    settings = read_source([place]).experiment
    assert settings is not None
    gap = compare_arms(settings).differences["tiny_ood"]["ta-own-prompt", "rephrased-data"][4]
    assert f"ta-own-prompt − rephrased-data pooling pass@4 {100 * gap.difference:+.1f}".replace(
        "-", "−"
    ) in text.replace("-", "−")
    assert f"{gap.seeds} seeds × {gap.problems} questions" in text
    assert "12,800" in text


def test_seeds_that_were_run_elsewhere_count(tmp_path):
    write_results(tmp_path / "all", ARMS, seeds=4)
    write_results(tmp_path / "half", ARMS, seeds=2)
    for path in (tmp_path / "all" / "results").iterdir():
        shutil.copy(path, tmp_path / "half" / "results" / path.name)
    source = read_source([tmp_path / "half"])
    assert source.experiment is not None
    assert source.experiment.seeds == [0, 1, 2, 3]


def test_an_experiment_that_was_run_in_two_parts(tmp_path, capsys):
    write_results(tmp_path / "whole", ARMS[:2], seeds=2)
    for part, seed in (("a", 0), ("b", 1)):
        shutil.copytree(tmp_path / "whole", tmp_path / part)
        for path in (tmp_path / part / "results").glob(f"*_seed_{1 - seed}.json"):
            path.unlink()
    place = tmp_path / "out"
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--output-dir", str(place)]) == 0
    assert main(["report", str(tmp_path / "whole"), "--output-dir", str(tmp_path / "whole_out")]) == 0
    for figure in ("differences_tiny_test.svg", "pass_at_k_tiny_test.svg"):
        assert (place / "figures" / figure).read_bytes() == (tmp_path / "whole_out" / "figures" / figure).read_bytes()
    assert "results of" not in text_of(place / "report.html")  # of none that is missing
    capsys.readouterr()
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "whole"), "--output-dir", str(place)]) == 2
    assert "both hold a result of grpo-matched seed 0" in capsys.readouterr().err
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps(config | {"max_steps": 7}))
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--output-dir", str(place)]) == 2
    assert "different settings" in capsys.readouterr().err


def test_runs_side_by_side(tmp_path, capsys):
    for name, phrasings, each in (("plain", 1, 8), ("expanded", 4, 2)):
        write_run(tmp_path / name, phrasings=phrasings, each=each, steps=30)
        (tmp_path / name / "checkpoint-30").mkdir()
    words = ["report", str(tmp_path / "plain"), str(tmp_path / "expanded"), "--output-dir", str(tmp_path / "out")]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["page"]) == tmp_path / "out" / "report.html"
    text = text_of(tmp_path / "out" / "report.html")
    assert f"ta-grpo eval {tmp_path / 'plain'} --benchmarks SET" in text
    assert f"ta-grpo diagnose {tmp_path / 'plain'}" in text
    assert "6 questions a step, mean of 3 steps at a time; one seed" in text
    assert {path.stem for path in (tmp_path / "out" / "figures").iterdir()} == {
        "mixed_share",
        "diversity",
        "reward",
        "reward_original",
    }
    # As many responses: matched. And the same again is the same file.
    assert "1,440 28,800 28,800 30 30 yes" in text.replace("180 1,440", "1,440")
    page = (tmp_path / "out" / "report.html").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "out" / "report.html").read_bytes() == page
    svg = (tmp_path / "out" / "figures" / "reward.svg").read_text()
    assert "training step</text>" in svg  # text is text


def test_diagnostics_are_shown(tmp_path):
    run = write_run(tmp_path / "run")
    figures = {
        f"phrasing_{n}/gap": {"mean": 0.1 * n, "low": 0.08 * n, "high": 0.13 * n, "confidence": 0.95, "n": 16}
        for n in (1, 2, 3)
    } | {"equal_budget/diversity/all/cosine_distance": {"mean": 0.2, "low": None, "high": None, "n": 1}}
    checkpoint = {"checkpoint": "checkpoint-4", "step": 4, "num_questions": 16, "figures": figures}
    finding = {"name": "gap", "checkpoint": "checkpoint-4", "text": "far <b>away</b>", "figures": {}}
    (run / "diagnostics.json").write_text(json.dumps({"checkpoints": [checkpoint], "findings": [finding]}))
    assert main(["report", str(run), "--rollouts", "0"]) == 0
    assert {"surrogate_gap", "distance_on_probe"} <= {path.stem for path in (run / "figures").iterdir()}
    page = (run / "report.html").read_text("utf-8")
    assert "far &lt;b&gt;away&lt;/b&gt;" in page
    assert "They were left out with <code>--rollouts 0</code>" in page
    assert "<script" not in page


REFUSED = {
    "nothing": ([], "name a run"),
    "no directory": (["nowhere"], "is no directory"),
    "something else": (["other"], "neither a run nor an experiment"),
    "two runs": (["a", "b"], "--output-dir is missing"),
    "twice": (["a", "a", "--output-dir", "out"], "named twice"),
    "beside an experiment": (["experiment", "a"], "leave those out"),
    "against": (["a", "b", "--output-dir", "out", "--against", "c"], "name one of a, b"),
    "against in an experiment": (["experiment", "--against", "a"], "--against is for runs"),
    "no results": (["begun"], "holds no results yet"),
    "damaged": (["damaged"], "cannot be read"),
    "a file": (["a", "--output-dir", "file"], "is a file"),
    "count": (["a", "--rollouts", "-1"], "must be 0 or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_reported_is_told_with_its_fix(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "damaged"):
        write_run(Path(name), steps=1)
    next(Path("damaged/rollouts").iterdir()).write_text("no Parquet")
    write_results(Path("experiment"), ARMS[:2], seeds=1)
    write_results(Path("begun"), ARMS[:2], seeds=0 + 1)
    for path in Path("begun/results").iterdir():
        path.unlink()
    Path("other").mkdir()
    Path("file").touch()
    words, message = REFUSED[case]
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()


# Which rollouts are shown.


def group(number: int, states: set[str], size: int = 16, run: int = 0, characters: int = 100) -> Group:
    return Group(run, number // 8, number % 8, f"q{number}", "?", size, 1, frozenset(states), characters, 0.5)


def test_groups_know_their_state_from_the_rewards(tmp_path):
    run = write_run(tmp_path / "run", steps=6)
    groups = list(scan(0, read_source([run]).runs[0], sample=4))
    assert len(groups) == 36
    assert {state for each in groups for state in each.states} == set(STATES) - {"unscored"}
    by_hand = [
        {row["reward"] for row in rows_of(run)[start : start + 16]} == {0.0, 1.0} for start in range(0, 36 * 16, 16)
    ]
    assert ["mixed" in each.states for each in groups] == by_hand


def test_every_filter_has_examples_whatever_is_left_out():
    groups = [group(number, {"mixed"}, run=number // 2000) for number in range(4000)]
    rare = {"timed_out": 1777, "truncated": 2345, "all_wrong": 3990, "no_answer": 5}
    for state, number in rare.items():
        groups[number] = group(number, {state}, run=number // 2000)
    chosen = choose(groups, 6_000)
    assert set(rare) <= {state for each in chosen.in_page for state in each.states}
    assert sum(each.size for each in chosen.in_page) == 4_992  # whole groups of 16, not above 5,000
    assert sum(each.size for part in chosen.in_files for each in part) == 1_008
    assert (chosen.rollouts, chosen.rollouts_there, chosen.groups_there) == (6_000, 64_000, 4_000)
    runs = [each.run for each in chosen.in_page]
    assert abs(runs.count(0) - runs.count(1)) < 10
    steps = [each.step for each in chosen.in_page if each.run == 0]
    assert (min(steps), max(steps)) == (0, 249)


def test_long_responses_fill_the_page_sooner():
    chosen = choose([group(number, {"mixed"}, characters=500_000) for number in range(100)], 100_000)
    assert len(chosen.in_page) == 16
    assert sum(map(len, chosen.in_files)) == 84
    assert all(len(part) <= 8 for part in chosen.in_files)
    assert choose([], 100).groups == []
    alone = choose([group(0, {"mixed"}, size=9_000, characters=90_000_000)], 10_000)
    assert [len(part) for part in alone.in_files] == [1]


@given(st.recursive(st.text() | st.none() | st.integers(), st.lists, max_leaves=5))
def test_any_text_can_stand_in_a_script(content):
    safe = script_safe_json(content)
    assert not re.search("[<>&\u2028\u2029]", safe)
    assert json.loads(safe) == content


def test_questions_without_ids_and_rewards_of_several_functions(tmp_path):
    run = write_run(tmp_path / "run", steps=1)
    path = run / "rollouts" / "step_00001.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    rows = [row | {"id": None, "reward/format": 0.5, "reward": float("inf") if not i else row["reward"]}
            for i, row in enumerate(rows)]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    source = read_source([run])
    groups = list(scan(0, source.runs[0], 4))
    assert groups[0].question_id.startswith("set/0")
    told = json.loads(script_safe_json(rollouts.contents_of(groups, source.runs)))
    assert told["groups"][0][2] == ["accuracy_reward", "format"]
    assert told["groups"][0][1][0][1] == "inf"


def test_groups_of_different_sizes_are_read_whole(tmp_path):
    """As adaptive_rephrasings leaves them; their rows add up to whole groups all the same."""
    run = write_run(tmp_path / "run", steps=1, questions=4)
    path = run / "rollouts" / "step_00001.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[:8] + rows[16:28] + rows[32:44]), path)
    assert [each.size for each in scan(0, read_source([run]).runs[0], 4)] == [8, 12, 12]


# The page, in a browser.


class Page:
    """A page in Chromium, and everything it complained of or asked for."""

    def __init__(self, browser: Any, url: str, width: int = 1280, dark: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("#group .response", state="attached")

    def text(self, selector: str) -> str:
        """Once all of a group is laid out: before, what is out of sight has no inner text."""
        self.page.wait_for_selector(".quick", state="detached")
        return self.page.inner_text(selector)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def filter(self, name: str) -> None:
        self.page.click(f"#filters button[value={name}]")

    def search(self, words: str) -> None:
        self.page.fill("#search", words)
        self.page.wait_for_timeout(250)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    where = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if where is None:
        told = "the page needs a browser to be tested: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    from playwright.sync_api import sync_playwright

    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where, args=root)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of 5,760 rollouts, more than a page takes, with one response that stands out."""
    place = write_run(tmp_path_factory.mktemp("report") / "run", steps=60)
    path = place / "rollouts" / "step_00030.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    rows[40]["completion"] += " And a NEEDLE."
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert main(["report", str(place)]) == 0
    return place


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    place = write_run(
        tmp_path_factory.mktemp("report") / "hostile",
        steps=1,
        text=lambda rng, right: "\n".join(HOSTILE) + completion(rng, right),
        name=lambda number: f"<b onclick=window.broken=1>q{number}</b>&amp;{HOSTILE[0]}",
    )
    assert main(["report", str(place)]) == 0
    return place


@pytest.fixture
def open_page(chromium) -> Iterator[Any]:
    opened = []

    def open_one(place: Path | str, fragment: str = "", **options: Any) -> Page:
        url = place if isinstance(place, str) else (place / "report.html").as_uri()
        opened.append(Page(chromium, url + fragment, **options))
        return opened[-1]

    yield open_one
    for page in opened:
        page.context.close()
    assert [complaint for page in opened for complaint in page.complaints] == []


@pytest.fixture
def server(run) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(run))
    handler.log_message = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}/report.html"
        serving.shutdown()


def test_it_opens_from_disk_and_asks_for_nothing(run, open_page):
    shown = open_page(run)
    assert shown.requests == [(run / "report.html").as_uri()]
    assert "Training signal" in shown.text("main")
    assert shown.count("figure svg[role=img]") == 4
    assert "4,992 of them in this file" in shown.text("#rollouts")
    policy = shown.page.get_attribute("meta[http-equiv]", "content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_it_opens_over_http_and_loads_what_lies_beside_it(server, open_page):
    shown = open_page(server)
    shown.search("needle")
    shown.page.click("#load")
    shown.page.wait_for_selector("#load", state="hidden")
    assert "NEEDLE" in shown.text("#group")
    beside = [url for url in shown.requests if url != server and "favicon" not in url]
    assert beside == [server.replace("report.html", "report_rollouts/0001.js")]


def test_the_filters_show_what_the_rollouts_hold(run, open_page):
    shown = open_page(run)
    rows = rows_of(run)
    groups = [rows[start : start + 16] for start in range(0, len(rows), 16)]
    rewards = [{row["reward"] for row in group} for group in groups]
    expected = {
        "all": len(groups),
        "mixed": sum(len(each) == 2 for each in rewards),
        "uniform": sum(len(each) == 1 for each in rewards),
        "timed_out": sum(any(row["verdict"] == "timed_out" for row in group) for group in groups),
        "truncated": sum(any(row["completion_truncated"] for row in group) for group in groups),
        "no_answer": sum(any(row["verdict"] == "no_answer" for row in group) for group in groups),
    }
    marks = {"timed_out": "timed out", "truncated": "… truncated", "no_answer": "no answer", "uniform": "uniform: all"}
    for name, number in expected.items():
        assert shown.text(f"#filters button[value={name}]").endswith(f" {number}")
        shown.filter(name)
        assert shown.text("#position").endswith(f" of {number}")
        assert shown.page.get_attribute(f"#filters button[value={name}]", "aria-pressed") == "true"
        assert marks.get(name, "") in shown.text("#group")


def test_a_group_shows_its_phrasings_side_by_side(run, open_page):
    shown = open_page(run, f"#rollouts/run/1/3/{'set%2F3'}")
    (row, *_), group = rows_of(run)[48:64], rows_of(run)[48:64]
    assert "set/3" in shown.text(".summary")
    assert shown.count(".phrasing") == 4
    tops = shown.page.eval_on_selector_all(".phrasing", "all => all.map(each => each.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    assert shown.count(".response") == 16
    first = shown.text(".response")
    assert f"{row['completion_tokens']} tokens" in first
    assert f"advantage {'+' if row['advantage'] > 0 else '−'}{abs(row['advantage']):.2f}"[:14] in first
    assert f"extracted answer {row['extracted']}" in first
    right = sum(row["reward"] for row in group if row["phrasing_index"] == 2)
    assert f"{right:.0f} of 4 rewarded" in shown.text(".phrasing:nth-child(3) h3")
    for number in (1, 2, 3):
        assert f"Rephrasing {number} of set/3" in shown.text(f".phrasing:nth-child({number + 1}) .prompt")


def test_step_and_question_can_be_picked(run, open_page):
    shown = open_page(run)
    shown.page.select_option("#step", "2")
    assert "step 2" in shown.text(".summary")
    value = shown.page.locator("#question option").nth(3).get_attribute("value")
    shown.page.select_option("#question", value)
    assert "set/9" in shown.text(".summary")
    assert shown.page.evaluate("location.hash") == "#rollouts/run/2/3/set%2F9"
    # The link leads there, in a page of its own.
    again = open_page(run, shown.page.get_attribute("#link", "href"))
    assert "set/9" in again.text(".summary")
    assert not shown.page.is_visible("#run-field")  # one run: nothing to choose


def test_search_looks_into_responses_and_further_files(run, open_page):
    shown = open_page(run)
    shown.search("set/123")
    assert shown.text("#position") == "Group 1 of 1"
    assert shown.count("#group mark") > 0
    shown.search("nowhere to be found")
    assert "No group matches" in shown.text("#group")
    assert shown.text("#position") == "No group"
    shown.page.click("#load")
    shown.page.wait_for_selector("#load", state="hidden")
    shown.search("needle")
    assert shown.text("#position") == "Group 1 of 1"
    assert "step 30" in shown.text(".summary")
    shown.search("")
    assert shown.text("#position").endswith("of 360")


def test_the_keyboard(run, open_page):
    shown = open_page(run)
    start = shown.text("#position")
    place = int(start.split()[1])
    for keys, expected in (("j", 1), ("ArrowRight", 2), ("k", 1), ("ArrowLeft", 0)):
        shown.page.keyboard.press(keys)
        assert shown.text("#position") == f"Group {place + expected} of 360"
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("jkm")  # letters, while one types
    assert shown.page.input_value("#search") == "jkm"
    shown.page.fill("#search", "")
    shown.page.wait_for_timeout(250)
    shown.page.keyboard.press("Escape")
    assert shown.count("#group math") > 0
    shown.page.keyboard.press("m")
    assert shown.count("#group math") == 0
    assert "\\frac{" in shown.text("#group")
    shown.page.locator("#link").focus()
    assert shown.page.evaluate("document.activeElement.id") == "link"


def test_a_missing_file_is_told(run, open_page, tmp_path):
    shutil.copy(run / "report.html", tmp_path)
    shown = open_page(tmp_path)
    shown.search("needle")
    shown.page.click("#load")
    shown.page.wait_for_selector("#group .absent")
    assert "is not beside this page" in shown.text("#group")
    shown.complaints = [told for told in shown.complaints if "ERR_FILE_NOT_FOUND" not in told]


@pytest.mark.parametrize("fragment", ["", "#rollouts/nowhere/1/1/%3Cimg%20src=x%20onerror=window.broken=1%3E"])
def test_hostile_text_stays_text(hostile, open_page, fragment):
    shown = open_page(hostile, fragment) if not fragment else open_page(hostile)
    if fragment:
        shown.page.evaluate(f"location.hash = {fragment!r}")
        shown.page.wait_for_selector("#group .absent")
    else:
        text = shown.text(".response .text-body")
        for part in HOSTILE:
            if "label" not in part:  # that one is maths, and typeset
                assert part.replace("\u2028", "").strip()[:30] in text.replace("\u2028", "")
        assert shown.count(".response math") > 0
        assert shown.count("[id=rollout-index]") == 1
        allowed = {
            "math",
            "mrow",
            "mi",
            "mn",
            "mo",
            "mfrac",
            "mtext",
            "mtable",
            "mtr",
            "mtd",
            "mstyle",
            "mspace",
            "menclose",
        }
        made = set(shown.page.eval_on_selector_all(".text-body *", "all => all.map(each => each.localName)"))
        assert made - allowed - {"span", "mpadded"} == set()
    assert shown.page.evaluate("window.broken") is None
    assert shown.count("main script, main img, main a[href^='javascript']") == 0


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_can_be_read(run, open_page, width, dark):
    shown = open_page(run, width=width, dark=dark)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    smallest = shown.page.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg text')].map((each) => parseFloat(each.getAttribute("
        "'font-size')) * each.ownerSVGElement.getBoundingClientRect().width / "
        "each.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert smallest >= 10.5  # pixels
    # Contrast of text, and of each colour of a series, against the page (WCAG: 4.5 and 3).
    colours = shown.page.evaluate(
        "(() => { const style = getComputedStyle(document.documentElement); return Object.fromEntries(['--paper', "
        "'--ink', '--muted', '--blue', '--sky', '--orange', '--red', '--green', '--purple'].map((name) => "
        "[name.slice(2), style.getPropertyValue(name).trim()])); })()"
    )
    paper = luminance(colours.pop("paper"))
    assert (paper < 0.05) == dark
    for name, colour in colours.items():
        light, low = sorted((luminance(colour), paper), reverse=True)
        assert (light + 0.05) / (low + 0.05) >= (4.5 if name in ("ink", "muted") else 2.9), name


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_it_prints_without_its_controls(run, open_page):
    shown = open_page(run)
    shown.page.emulate_media(media="print")
    assert not shown.page.is_visible("#filters")
    assert shown.page.is_visible("#group .response >> nth=0")
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
