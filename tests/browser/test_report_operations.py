"""The report of a suite of operations in a browser: it fits, it can be filtered and sorted, and nothing complains."""


import pytest
from playwright.sync_api import Page, expect
from support import operation_records as made
from support.served import Traffic

from charact.views.html.report import report


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("operations")
    path = folder / "report.html"
    path.write_text(report([made.suite(folder, 160)]), encoding="utf-8")
    return path.as_uri()


@pytest.mark.slow
def test_cases_are_filtered_and_suites_stay(page: Page, traffic: Traffic, address: str) -> None:
    page.goto(address)
    page.get_by_placeholder("Filter cases").fill("convolution-9 fp32")
    expect(page.locator("output").first).to_have_text("6 of 161 cases")
    expect(page.locator(".ch-card:visible")).to_have_count(2)
    page.get_by_text("Problems of convolution, as a table").click()
    rows = page.locator("tr[data-case]:visible")
    expect(rows).to_have_count(3 * 6)
    assert traffic.errors == []
    assert traffic.requests == [address]


@pytest.mark.slow
def test_problems_are_sorted_by_time(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_text("Problems of gemm, as a table").click()
    table = page.locator("table", has=page.get_by_text("Problems of gemm", exact=True))
    table.get_by_role("button", name="Time", exact=True).click()
    expect(table.locator("tbody tr").first).to_contain_text("gemm:670x128x1024")
    expect(table.locator("tbody tr").last).to_contain_text("n/a (oom)")


@pytest.mark.slow
def test_a_narrow_screen_scrolls_tables_only(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
