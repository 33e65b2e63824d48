"""Reports of bricks in a browser, and their TensorBoard tab: names fit, tables sort, nothing complains."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support import brick_records as made
from support.compared import side
from support.served import Traffic

from charact.views.html.report import comparison_report, report


@pytest.fixture
def address(tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    path.write_text(report([made.zoo(tmp_path)]), encoding="utf-8")
    return path.as_uri()


@pytest.mark.slow
def test_a_hundred_models_are_shown_sorted_and_filtered(page: Page, traffic: Traffic, address: str) -> None:
    page.goto(address)
    figures = page.locator("section[id$=constructed] figure svg")
    expect(figures.first).to_be_visible()
    names = [figure.locator("title").first.text_content() for figure in figures.all()]
    assert list(dict.fromkeys(names)) == [  # each is drawn for two widths
        "Constructed against measured latency", "Constructed over measured latency of each model",
        "Share of each layer type in constructed latencies"]
    table = page.locator("table", has=page.get_by_text("Constructed latency of each model", exact=True))
    table.get_by_role("button", name="Latency", exact=True).click()
    expect(table.locator("tbody tr").first).to_contain_text("net96")
    page.get_by_placeholder("Filter cases").fill("net96-224")
    expect(table.locator("tbody tr:visible")).to_have_count(1)
    assert traffic.errors == []
    assert traffic.requests == [address]


@pytest.mark.slow
def test_the_line_of_the_baseline_is_named_and_runs_through_no_name(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "comparison.html"
    sides = [side("old", made.three_models(tmp_path)), side("new", made.three_models(tmp_path, slowness=2.0))]
    path.write_text(comparison_report(sides), encoding="utf-8")
    page.goto(path.as_uri())
    figure = page.locator("figure svg", has=page.get_by_text("Ratios of times to the baseline")).first
    label = figure.get_by_text("baseline", exact=True).bounding_box()
    name = figure.get_by_text("resnet18").first.bounding_box()
    assert label is not None
    assert name is not None
    assert label["y"] + label["height"] <= name["y"] + 1
