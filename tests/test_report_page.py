"""The report page in a real browser: opened, filtered, searched, printed, and fed with hostile text."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from report_runs import HOSTILE, completion, rows_of, write_run
from ta_grpo.cli import main


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
