"""The report in headless Chromium: no console messages, every figure drawn, nothing asked of the network."""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import HOSTILE, write_run

from prefixsim.report.html import write_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"),
]

SWITCHES = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(switch)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("browser") / "run", n=200, replicas=2))


def show(browser: Any, report: Path, *, width: int = 1366, height: int = 768, dark: bool = False) -> int:
    """Opens the report and waits until it says that its figures are drawn; returns how many."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(report.as_uri())
    return drawn(browser)


def drawn(browser: Any) -> int:
    for _ in range(300):
        count = browser.execute_script("return document.documentElement.getAttribute('data-drawn')")
        if count is not None:
            return int(count)
        time.sleep(0.05)
    raise AssertionError(f"the figures were not drawn: {browser.get_log('browser')}")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1366, 390])
def test_every_figure_is_drawn_without_a_console_message(browser: Any, report: Path, width: int, dark: bool) -> None:
    browser.get_log("browser")
    count = show(browser, report, width=width, dark=dark)
    assert count >= 13
    plots = browser.execute_script(
        "return Array.from(document.querySelectorAll('.plot'), p => [p.id, p.querySelectorAll('.trace, .hm, .point, path.js-line').length, "
        "p.getBoundingClientRect().height])"
    )
    assert len(plots) == count
    for name, marks, height in plots:
        assert marks > 0, name
        assert height >= 150, name
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") != dark


FAULTS = """
const box = (e) => e.getBoundingClientRect(), out = [];
for (const plot of document.querySelectorAll('.plot')) {
  const texts = [...plot.querySelectorAll('.xtick text, .ytick text, .legendtext, .xtitle, .ytitle')]
    .filter((t) => box(t).width > 0 && !/rotate\\((?!0)/.test(t.getAttribute('transform') || ''));
  for (const t of texts) {
    const b = box(t), p = box(plot);
    if (b.left < p.left - 2 || b.right > p.right + 2 || b.top < p.top - 2 || b.bottom > p.bottom + 2)
      out.push(plot.id + ': cut: ' + t.textContent);
    for (const u of texts) {
      const c = box(u), wide = Math.min(b.right, c.right) - Math.max(b.left, c.left);
      if (t !== u && wide > 2 && Math.min(b.bottom, c.bottom) - Math.max(b.top, c.top) > 3)
        out.push(plot.id + ': ' + t.textContent + ' over ' + u.textContent);
    }
  }
  if (/-distribution|curves/.test(plot.id) && plot.querySelectorAll('.xtick text').length < 2) out.push(plot.id + ': no scale');
}
for (const t of document.querySelectorAll('table'))
  if (!t.caption && !t.getAttribute('aria-labelledby')) out.push('no caption: ' + t.id);
for (const h of document.querySelectorAll('th')) if (!h.scope || !h.textContent.trim()) out.push('empty or no scope: ' + h.outerHTML);
return out;
"""
"""What a person would call untidy: words over words, words cut off, an axis without a scale, tables without a name."""


@pytest.fixture(scope="module")
def odd_reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One request; one value of every latency; long names."""
    out = {}
    for name in ("one", "same", "long"):
        folder = write_run(tmp_path_factory.mktemp("odd") / "run", n=1 if name == "one" else 60)
        rows = (folder / "requests.csv").read_text()
        if name == "same":
            table = list(csv.DictReader(rows.splitlines()))
            for row in table:
                row |= {
                    "first_token_s": str(float(row["released_s"]) + 0.5),
                    "finish_s": str(float(row["released_s"]) + 2),
                }
            lines = [",".join(row.values()) for row in table]
            (folder / "requests.csv").write_text("\n".join([rows.splitlines()[0], *lines]) + "\n")
        if name == "long":
            (folder / "requests.csv").write_text(rows.replace("support", "support and everything that goes with it"))
            for file in ("requests.csv", "timeline.csv", "gaps.csv", "summary.json"):
                text = (folder / file).read_text()
                named = text.replace("\nvllm,", f"\n{LONG},").replace('"vllm": {', f'"{LONG}": {{')
                (folder / file).write_text(named)
        out[name] = write_report(folder)
    return out


LONG = "vllm-with-blocks-of-sixteen-tokens"


@pytest.mark.parametrize("width", [1366, 390])
@pytest.mark.parametrize("name", ["usual", "one", "same", "long"])
def test_nothing_lies_over_anything(
    browser: Any, report: Path, odd_reports: dict[str, Path], name: str, width: int
) -> None:
    browser.get_log("browser")
    show(browser, odd_reports.get(name, report), width=width)
    assert browser.execute_script(FAULTS) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
    if name == "long":
        assert LONG in browser.execute_script("return document.querySelector('.compare thead').textContent")
        shown = (
            "const c = document.querySelector('.compare tr.key td:last-child').getBoundingClientRect(); return c.right"
        )
        assert browser.execute_script(shown) <= width  # the first screen's table needs no scrolling for two engines


def test_nothing_is_asked_of_the_network(browser: Any, report: Path) -> None:
    browser.get_log("performance")
    show(browser, report)
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert report.as_uri() in asked


def test_hostile_names_are_shown_as_text(browser: Any, report: Path) -> None:
    show(browser, report)
    ticks = browser.execute_script(
        "return Array.from(document.querySelectorAll('#plot-hit-rate-by-group .ytick text'), t => t.textContent)"
    )
    assert HOSTILE in ticks
    assert (
        browser.execute_script("return Array.from(document.scripts).some(s => s.textContent === 'alert(1)')") is False
    )


def test_the_csv_of_every_figure_and_table(browser: Any, report: Path) -> None:
    show(browser, report)
    tables = browser.execute_script(
        "return Array.from(document.querySelectorAll('button[data-csv]'), "
        "b => [b.dataset.csv, window.prefixsimReport.csv(b.dataset.csv)])"
    )
    assert len(tables) > 15
    for name, rows in tables:
        assert len(rows) > 1, name
        assert len({len(row) for row in rows}) == 1, name
    by_name = dict(tables)
    summary = json.loads((report.parent / "summary.json").read_text())
    groups = by_name["hit-rate-by-group"]
    assert groups[0] == ["engine", "hit_rate", "group", "requests", "prompt_tokens", "cached_tokens"]
    mine = [row for row in groups[1:] if row[0] == "vllm"]
    assert {row[2] for row in mine} == {"support", "search", HOSTILE}
    assert sum(row[5] for row in mine) == summary["engines"]["vllm"]["cached_tokens"]
    comparison = {row[0]: row[1:] for row in by_name["t-comparison"]}
    assert [float(v) for v in comparison["hit_rate"]] == [e["hit_rate"] for e in summary["engines"].values()]


def test_keyboard_theme_and_data_table(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, report)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the result"
    toggle = browser.find_element(By.ID, "theme")
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    toggle.send_keys(Keys.ENTER)
    drawn(browser)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    toggle.send_keys(Keys.ENTER)
    drawn(browser)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == before
    browser.execute_script("localStorage.clear()")
    details = browser.find_element(By.CSS_SELECTOR, "details[data-table=hit-rate-by-turn]")
    details.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    time.sleep(0.2)
    assert len(details.find_elements(By.CSS_SELECTOR, "tbody tr")) == 8  # 4 turns, 2 engines
    assert browser.get_log("browser") == []
