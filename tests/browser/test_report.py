"""The report in a real browser: offline, sortable, filterable, and readable on a desk, a phone and paper."""

import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from support import operation_records, records
from support.counter_records import write_cpu, write_gpu
from support.memory_records import write_memory

from charact.record.reader import load_run
from charact.views.html.report import report


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a report of two runs, the second with a case out of memory."""
    folder = tmp_path_factory.mktemp("two")
    runs = [records.write_record(folder / "runs"), records.write_record(folder / "runs", oom=True)]
    path = folder / "report.html"
    path.write_text(report([load_run(run) for run in runs]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module",
                params=[records.write_training, records.write_inference,
                        pytest.param(partial(write_memory, kinds=("image",)), marks=pytest.mark.slow),
                        pytest.param(lambda out: operation_records.suite(out, 160).path, marks=pytest.mark.slow),
                        partial(write_gpu, sizes=(32, 64)),
                        pytest.param(partial(write_cpu, sizes=(32, 64)), marks=pytest.mark.slow)],
                ids=["training", "inference", "memory", "operations", "gpu", "cpu"])  # fmt: skip
def of_its_kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a report of two runs: trainings, inferences, such as look at memory alone, or with many counters."""
    folder = tmp_path_factory.mktemp("kind")
    path = folder / "kind.html"
    runs = [load_run(request.param(folder / "runs")) for _ in range(2)]
    path.write_text(report(runs), encoding="utf-8")
    return path.as_uri()


def column(page: Page, table: str, number: int) -> list[str]:
    texts = page.locator(f"{table} tbody tr:visible td:nth-child({number})").all_inner_texts()
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]


def test_it_opens_without_an_error_or_another_request(page: Page, address: str, traffic) -> None:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    assert [request for request in traffic.requests if not request.startswith("data:")] == [address]
    assert traffic.errors == []
    assert page.title() == "resnet50, resnet50 – charact"
    assert page.locator("figure svg").count() > 10


def test_a_heading_sorts_by_value_and_keeps_what_is_missing_last(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#r2-summary summary").click()
    table = "#r2-summary table"
    heading = page.locator(f"{table} th", has_text="Peak memory")
    heading.click()
    assert heading.get_attribute("aria-sort") == "descending"
    falling = column(page, table, 6)
    assert falling == ["345 MiB", "294 MiB", "151 MiB", "99.3 MiB", "n/a (oom)"]
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, table, 6) == [*falling[3::-1], "n/a (oom)"]
    name = page.locator(f"{table} th", has_text="Case")
    name.click()
    assert heading.get_attribute("aria-sort") is None
    # Numbers in names count as numbers: 32 before 224 before 4096.
    assert [text.split(" ")[0] for text in column(page, table, 1)] == ["32", "32", "224", "224", "4096"]


def test_the_filter_shows_the_cases_that_hold_every_word_of_its_run_only(page: Page, address: str) -> None:
    page.goto(address)
    for number in (1, 2):
        page.locator(f"#r{number}-summary summary").click()
    first = page.locator("#run-1")
    first.get_by_placeholder("Filter cases").fill("TRAIN 224")
    assert column(page, "#r1-summary table", 1) == ["224 px, train"]
    assert page.locator("#r1-summary .ch-card:visible").count() == 1
    assert page.locator("#r1-operator-types .ch-block:visible").count() == 1
    assert set(column(page, "#r1-layers table", 3)) == {"224 px, train"}
    assert first.locator("[data-case-filter] output").inner_text() == "1 of 4 cases"
    assert len(column(page, "#r2-summary table", 1)) == 5
    first.get_by_placeholder("Filter cases").fill("")
    assert column(page, "#r1-summary table", 1) == ["32 px, train", "32 px, infer", "224 px, train", "224 px, infer"]


def test_a_button_shows_one_case_and_all_again(page: Page, address: str) -> None:
    page.goto(address)
    button = page.locator("#run-1").get_by_role("button", name="224 px, train")
    for pressed, num_cards in (("true", 1), ("false", 4)):
        button.press("Enter")
        assert button.get_attribute("aria-pressed") == pressed
        assert page.locator("#r1-summary .ch-card:visible").count() == num_cards
    assert page.locator("#r2-summary .ch-card:visible").count() == 5


def test_a_section_shows_the_slowest_case_until_another_is_chosen_or_filtered(page: Page, address: str) -> None:
    page.goto(address)
    run = page.locator("#run-1")
    shown = run.locator("#r1-flame-graph [data-tabs] > .ch-block:visible")
    for tab in run.locator("#r1-flame-graph").get_by_role("tab").all():
        tab.press("Enter")
        assert tab.get_attribute("aria-selected") == "true"
        assert shown.count() == 1
    assert shown.get_attribute("data-case") == "resnet50-224-b8-infer-fp32-cpu"
    run.get_by_placeholder("Filter cases").fill("train 32")
    assert shown.get_attribute("data-case") == "resnet50-32-b8-train-fp32-cpu"
    page.reload()
    assert shown.get_attribute("data-case") == "resnet50-32-b8-train-fp32-cpu"


@pytest.mark.slow_variants
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_text_has_enough_contrast(page: Page, address: str, scheme: Literal["dark", "light"]) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    paper = luminance(page.evaluate(style.format(".ch-section", "backgroundColor")))
    assert (paper > 0.5) == (scheme == "light")
    for selector in ("h2", ".ch-lead", ".ch-interval", ".ch-strip h4", ".ch-verdict p", ".ch-table th button"):
        ink = luminance(page.evaluate(style.format(selector, "color")))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector
    label = luminance(page.evaluate(style.format("figure svg text", "fill")))
    assert (max(label, paper) + 0.05) / (min(label, paper) + 0.05) >= 4.5


def luminance(color: str) -> float:
    """Relative luminance of 'rgb(…)'. Source: WCAG 2.2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_section_in_view_is_marked(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#run-1 .ch-nav a", has_text="Layers").click()
    page.locator("#run-1 .ch-nav a.ch-current", has_text="Layers").wait_for()


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page: Page, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert texts_outside(page) == []


@pytest.mark.slow_variants
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_every_kind_of_run_fits_the_window(page: Page, of_its_kind: str, traffic, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(of_its_kind)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert texts_outside(page) == []
    assert traffic.errors == []


def texts_outside(page: Page) -> list[str]:
    """Texts of figures that are drawn past their edges."""
    return page.evaluate("""() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text")]
            .filter((text) => {
                const own = text.getBoundingClientRect();
                return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
            }).map((text) => text.textContent);
    })""")


@pytest.mark.slow
def test_a_run_fits_on_twelve_pages(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report([load_run(records.write_record(tmp_path / "runs"))]), encoding="utf-8")
    page.goto(path.as_uri())
    printed = page.pdf(format="A4")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
    page.emulate_media(media="print")
    assert page.locator("#r1-summary .ch-card").first.is_visible()
    assert not page.locator(".ch-nav").is_visible()


def test_a_flame_graph_shows_values_and_zooms_by_click_and_keys(page: Page, address: str, traffic) -> None:
    page.goto(address)
    chart = page.locator("#r1-flame-graph .ch-chart").first
    drawing = chart.locator("svg")
    boxes = drawing.locator("[data-box]")
    num_boxes = boxes.count()
    assert num_boxes > 3
    box = boxes.filter(has_text="backward").first
    assert re.search(r"ms, [\d.]+ %", str(box.get_attribute("data-tip")))
    box.click()
    assert boxes.filter(has_text="forward").count() == 0  # it lies outside of what is shown
    assert "backward" in chart.locator("output").inner_text()
    drawing.press("Escape")
    assert boxes.count() == num_boxes
    drawing.press("ArrowDown")
    drawing.press("Enter")
    assert drawing.locator(".ch-chosen").count() == 1
    chart.get_by_role("button", name="FLOP").click()
    assert any("FLOP" in str(one.get_attribute("data-tip")) for one in boxes.all())
    assert traffic.errors == []


def test_a_search_shows_the_rows_with_every_word(page: Page, address: str) -> None:
    page.goto(address)
    search = page.get_by_label("Show only rows").locator("visible=true").first
    rows = search.locator("xpath=../following-sibling::*[1]").locator("tbody tr")
    num_rows = rows.count()
    words = rows.first.inner_text().split()
    search.fill(f"{words[0]} nothing-like-this")
    assert [row for row in rows.all() if row.is_visible()] == []
    search.fill("")
    assert len([row for row in rows.all() if row.is_visible()]) == num_rows


@pytest.mark.slow_variants
def test_bars_and_points_show_their_values_on_hover(page: Page, of_its_kind: str) -> None:
    page.goto(of_its_kind)
    texts = page.evaluate("""() => [...document.querySelectorAll(".ch-large svg g > title")].map((title, number) => {
        title.parentNode.setAttribute("data-number", number);
        return title.textContent;
    })""")
    assert len(texts) > 5
    assert all(re.search(r"\d|n/a", text) for text in texts), texts
    for number in range(0, len(texts), max(len(texts) // 7, 1)):
        part = page.locator(f"[data-number='{number}']")
        part.evaluate("""part => {
            for (let fold = part; fold; fold = fold.parentNode) {
                if (fold.localName === "details") fold.open = true;
                fold.classList?.remove("ch-off");
            }
            part.scrollIntoView({block: "center", behavior: "instant"});
            return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""")
        box = part.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.locator(".ch-tip").is_visible(), texts[number]
        assert page.locator(".ch-tip").text_content() in texts


def violations(browser: Browser, address: str, scheme: Literal["light", "dark"]) -> list[tuple[str, str]]:
    """Serious violations that axe finds in a report with all of its details open, each with its first node."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    found = [(each["id"], each["nodes"][0]["html"]) for each in Axe().run(page).response["violations"]
             if each["impact"] in ("serious", "critical")]  # fmt: skip
    context.close()
    return found


@pytest.mark.slow_variants
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(browser: Browser, address: str, scheme: Literal["light", "dark"]) -> None:
    assert violations(browser, address, scheme) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation_in_any_kind_of_run(browser: Browser, of_its_kind: str,
                                                           scheme: Literal["light", "dark"]) -> None:
    assert violations(browser, of_its_kind, scheme) == []


@pytest.mark.slow
def test_a_timeline_zooms_by_buttons_and_wheel(page: Page, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "charact", "profile", "mlp", "--mode", "train", "--out", "."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (path,) = tmp_path.glob("*/report.html")
    page.goto(path.as_uri())
    chart = page.locator("#r1-timeline .ch-chart").first
    drawing = chart.locator("svg")
    number = drawing.evaluate("""svg => [...svg.querySelectorAll("[data-box]")].find(box => {
        const {x, width} = box.querySelector("rect").getBBox(), whole = svg.clientWidth;
        return width > 2 && x > 0.3 * whole && x + width < 0.7 * whole;
    }).dataset.box""")  # a box that remains in view, and is not drawn wider than it is
    box = drawing.locator(f"[data-box='{number}']")

    def width() -> float:
        return float(str(box.locator("rect").get_attribute("width")))

    whole = width()
    chart.get_by_role("button", name="Zoom in").click()
    assert width() == pytest.approx(2 * whole, rel=0.1, abs=1)  # narrow boxes are drawn with a minimum
    chart.get_by_role("button", name="Zoom out").click()
    assert width() == pytest.approx(whole)
    box.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -150)
    page.keyboard.up("Control")
    assert width() == pytest.approx(math.exp(0.5) * whole, rel=0.1)
    chart.get_by_role("button", name="Show all").click()
    assert width() == pytest.approx(whole)


def test_the_report_is_used_by_keys_alone(page: Page, address: str) -> None:
    """Tab reaches navigation, cases and the filter in this order; Enter follows a link and chooses a case."""
    page.goto(address)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate("""() => {
            const focused = document.activeElement, style = getComputedStyle(focused);
            return [focused.localName, focused.textContent.trim().slice(0, 40), style.outlineStyle];
        }""")
        reached.append(focused)
        if focused[0] == "input":
            break
    kinds = [name for name, _, _ in reached]
    assert kinds == sorted(kinds, key=["a", "button", "input"].index)
    assert all(outline != "none" for _, _, outline in reached)
    page.keyboard.type("224 train")
    assert page.locator("#run-1 .ch-card:visible").count() >= 1


def test_the_address_keeps_case_and_section(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#run-1").get_by_role("button", name="224 px, train").click()
    page.locator("#run-1 .ch-nav").get_by_role("link", name="Memory").click()
    shared = page.url
    assert shared.startswith(f"{address}#case=resnet50-224-b8-train-fp32-cpu&section=r1-memory")
    page.goto("about:blank")
    page.goto(shared)
    assert page.locator("#r1-summary .ch-card:visible").count() == 1
    top = page.locator("#r1-memory").bounding_box()
    assert top is not None
    assert abs(top["y"]) < 100
    page.locator("#run-1").get_by_role("button", name="224 px, train").click()
    assert "case=" not in page.url


def test_the_theme_is_switched_and_kept(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address)
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.locator("#run-1 .ch-nav .ch-theme")
    assert button.inner_text() == "Theme: system"
    button.click()
    assert (button.inner_text(), page.evaluate(background)) == ("Theme: light", light)
    button.click()
    assert button.inner_text() == "Theme: dark"
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark


def test_figures_and_tables_can_be_saved(page: Page, address: str) -> None:
    page.goto(address)
    phases = page.locator("#r1-phases")
    phases.locator(".ch-figure").first.hover()
    with page.expect_download() as figure:
        phases.get_by_role("button", name="as SVG").first.click()
    assert figure.value.suggested_filename == "Time-of-an-iteration-by-phase.svg"
    drawn = Path(figure.value.path()).read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in drawn
    phases.locator("summary").click()
    table = phases.locator("table")
    table.hover()
    with page.expect_download() as download:
        phases.get_by_role("button", name="as CSV").click()
    saved = pd.read_csv(download.value.path())
    assert len(saved) == table.locator("tbody tr").count()
    first = saved[(saved["Case"] == "32 px, train") & (saved["Phase"] == "forward")].iloc[0]
    assert first["Share"] == pytest.approx(0.3, abs=0.01)
    assert first["Time"] == pytest.approx(0.03, rel=0.02)  # seconds


def test_a_flame_graph_has_a_ruler_and_a_search(page: Page, address: str) -> None:
    page.goto(address)
    chart = page.locator("#r1-flame-graph .ch-chart:visible").first
    ticks = chart.locator("text.ch-tick").all_text_contents()
    assert ticks[0] == "0"
    assert len(ticks) >= 3
    assert all(re.fullmatch(r"0|[0-9.]+ [nµm]?s", tick) for tick in ticks)
    chart.get_by_role("searchbox").fill("forward")
    assert re.fullmatch(r"1 found, [0-9.]+ [µm]?s", chart.locator("output").inner_text())
    dimmed = chart.locator("g.ch-dimmed").count()
    assert dimmed == chart.locator("[data-box]").count() - 1
    chart.get_by_role("searchbox").fill("")
    assert chart.locator("g.ch-dimmed").count() == 0


def test_a_phone_has_sections_cases_and_theme_in_a_bar_that_stays(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(address)
    bar = page.locator("#run-1 .ch-top")
    bar.get_by_label("Case").select_option(label="224 px, train")
    assert page.locator("#r1-summary .ch-card:visible").count() == 1
    bar.get_by_label("Section").select_option(label="Memory")
    at, section = bar.bounding_box(), page.locator("#r1-memory").bounding_box()
    assert at is not None
    assert section is not None
    assert at["y"] == 0
    assert at["height"] <= section["y"] < 100
    assert page.locator("#run-1 .ch-nav").is_hidden()


def test_the_first_link_skips_the_navigation(page: Page, address: str) -> None:
    page.goto(address)
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "content"


def test_a_point_shows_its_value_in_the_drawing_for_phones(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(address)
    figure = page.locator("#r1-phases .ch-figure").first
    texts = figure.evaluate("figure => [...figure.querySelectorAll('.ch-large title')].map(title => title.textContent)")
    rectangles = figure.locator(".ch-small rect[fill-opacity]")
    assert rectangles.count() == len(texts) - 1  # the first is the title of the figure
    rectangles.nth(1).scroll_into_view_if_needed()
    rectangles.nth(1).hover(force=True)
    assert page.locator(".ch-tip").text_content() == texts[2]
