"""How soon the page of ``ta-grpo report`` answers when a run has 100,000 rollouts.

    python benchmarks/report_page.py [--rollouts 100000] [--repeats 5]

Aim: it opens within 3 s in Chromium, and a filter answers within 200 ms. Opening ends when a group of rollouts is on
the screen; a filter's answer ends with the frame that shows it, and so do a search's and a key's. Wall time, since that
is what one waits for. Chromium: apt-get install chromium.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from report_runs import completion, write_run

SHOWN = "#group .response"
# Resolves with milliseconds from the click to the frame after the one that was drawn.
TIMED_CLICK = """(selector) => new Promise((done) => {
    const start = performance.now();
    document.querySelector(selector).click();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""


def words(rng: random.Random, right: bool) -> str:
    """A response of some 600 characters, with maths."""
    return "\n\n".join(completion(rng, right) for _ in range(10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium here; run: apt-get install chromium")
    with tempfile.TemporaryDirectory() as place:
        shape = {"steps": -(-asked.rollouts // 256), "questions": 8, "phrasings": 4, "each": 8}
        run = write_run(Path(place) / "run", **shape, text=words)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ta_grpo.cli", "report", str(run)], check=True, stdout=subprocess.DEVNULL)
        print(f"writing the report: {time.perf_counter() - begun:.0f} s")
        beside = sum(path.stat().st_size for path in (run / "report_rollouts").iterdir())
        print(f"page {(run / 'report.html').stat().st_size / 1e6:.1f} MB, files beside it {beside / 1e6:.1f} MB")
        measure(chromium, (run / "report.html").as_uri(), asked.repeats)


def measure(chromium: str, url: str, repeats: int) -> None:
    from playwright.sync_api import sync_playwright

    opening: list[float] = []
    answers: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(repeats):
            page = browser.new_page()
            begun = time.perf_counter()
            page.goto(url)
            page.wait_for_selector(SHOWN)
            opening.append(time.perf_counter() - begun)
            for name in ("mixed", "uniform", "timed_out", "truncated", "all"):
                answers.setdefault("a filter", []).append(page.evaluate(TIMED_CLICK, f"#filters button[value={name}]"))
            for _ in range(5):
                answers.setdefault("the next group", []).append(page.evaluate(TIMED_CLICK, "#next"))
            page.fill("#search", "left")
            page.wait_for_timeout(400)
            begun = time.perf_counter()
            page.click("#load")
            page.wait_for_selector("#load", state="hidden", timeout=120_000)
            answers.setdefault("loading all files", []).append(1000 * (time.perf_counter() - begun))
            for name in ("mixed", "uniform", "all"):
                took = page.evaluate(TIMED_CLICK, f"#filters button[value={name}]")
                answers.setdefault("a filter, all files loaded, within a search", []).append(took)
            page.close()
        browser.close()
    print(f"opening: median {statistics.median(opening):.2f} s, most {max(opening):.2f} s")
    for name, times in answers.items():
        print(f"{name}: median {statistics.median(times):.0f} ms, most {max(times):.0f} ms")


if __name__ == "__main__":
    main()
