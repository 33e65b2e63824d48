import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import FrameLocator, Page, expect
from support import records
from support.damage import change_manifest
from support.programs import free_port
from support.served import Serve, answers, complaints, open_tab

from charact.record.reader import load_run
from charact.views.html.report import sections
from charact.views.tensorboard.scalars import write_scalars

pytestmark = pytest.mark.clock

TRAIN = "resnet50-224-b8-train-fp32-cpu"
COMPARISON = ["Comparison", "What accounts for the differences", "Times of phases and operators",
              "Left out, and what else differs"]
@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: two of the same cases, the newest first in the list, and one whose name looks like HTML."""
    out = tmp_path / "runs"
    for name, day in [("resnet50", 19), ("resnet50", 20), ("<b>other</b>", 18)]:
        path = records.write_record(out, name=name)
        change_manifest(path, started=f"2026-11-{day}T10:00:00+0000")
        write_scalars(load_run(path), path)
    return out


def done(tab: FrameLocator) -> None:
    expect(tab.locator("main")).to_have_attribute("aria-busy", "false", timeout=60_000)


@pytest.mark.parametrize(
    ("flags", "path_prefix"),
    [(["--load_fast=true"], ""), pytest.param(["--load_fast=false"], "", marks=pytest.mark.slow),
     pytest.param(["--load_fast=auto"], "/foo", marks=pytest.mark.slow)],
)
def test_shows_one_run_and_two_side_by_side(
    flags: list[str], path_prefix: str, runs: Path, serve: Serve, page: Page, traffic: Any
) -> None:
    address = serve(runs, *flags, path_prefix=path_prefix)
    wrong = complaints(page)
    tab = open_tab(page, address)
    newest = max(path for path in runs.iterdir() if load_run(path).manifest["started"].startswith("2026-11-20"))
    expected = [part.title for part in sections(load_run(newest))]
    expect(tab.locator("main section > h2")).to_have_text(expected)
    expect(tab.locator("aside nav a")).to_have_text(expected)
    expect(tab.locator("main svg").first).to_be_visible()
    names = tab.locator(".tb-runs .tb-name")
    expect(names).to_have_text(["resnet50", "resnet50", "<b>other</b>"])

    tab.locator(".tb-runs input").nth(1).check()
    done(tab)
    expect(tab.locator("main section > h2")).to_have_text([*COMPARISON, *expected])
    overview = tab.locator("#summary")
    expect(overview.locator(".tb-column")).to_have_count(2)
    left, right = (overview.locator(".tb-column").nth(i).bounding_box() for i in (0, 1))
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    row = tab.locator("#comparison tbody tr", has_text="224\N{NO-BREAK SPACE}px, train").first
    expect(row).to_contain_text("1.000")
    expect(row).to_contain_text("no difference shown")
    expect(tab.locator("#parts figure svg").first).to_be_visible()

    assert {urlsplit(request).hostname for request in traffic.requests if request.startswith("http")} == {"127.0.0.1"}
    assert wrong == []


@pytest.mark.slow
def test_search_choice_and_refresh(runs: Path, serve: Serve, page: Page, traffic: Any) -> None:
    tab = open_tab(page, serve(runs))
    tab.get_by_label("Search runs").fill("other")
    expect(tab.locator(".tb-runs li")).to_have_count(1)
    tab.locator(".tb-runs input").check()
    done(tab)
    tab.get_by_label("Search runs").fill("nothing like this")
    expect(tab.locator(".tb-runs")).to_have_text("No run matches.")

    page.reload()
    tab = open_tab(page, page.url.split("#")[0])
    expect(tab.locator(".tb-runs input:checked")).to_have_count(2)
    expect(tab.locator("#comparison")).to_contain_text("no case in common")
    expect(tab.locator("#summary .tb-badge")).to_have_text(["A", "B"])

    for path in runs.iterdir():
        os.rename(path, path.with_name(f".{path.name}"))
    records.write_record(runs, name="late")
    tab.get_by_role("button", name="Refresh").click()
    expect(tab.locator(".tb-runs .tb-name")).to_have_text(["late"])
    expect(tab.locator(".tb-runs input:checked")).to_have_count(1)
    done(tab)
    assert traffic.errors == []


@pytest.mark.slow
def test_the_tab_follows_tensorboards_dark_mode(runs: Path, serve: Serve, page: Page) -> None:
    tab = open_tab(page, serve(runs))

    def background() -> str:
        return str(tab.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))

    light = background()
    for theme, is_light in (("Dark", False), ("Light", True)):
        page.get_by_label("Menu for changing light or dark theme").click()
        page.get_by_role("menuitem", name=theme).click()
        expect(tab.locator("html")).to_have_attribute("data-theme", theme.lower())
        assert (background() == light) is is_light


@pytest.mark.slow
def test_figures_of_several_runs_keep_their_own_definitions(runs: Path, serve: Serve, page: Page) -> None:
    tab = open_tab(page, serve(runs))
    tab.locator(".tb-runs input").nth(1).check()
    done(tab)
    ids = tab.locator("main .tb-fragment [id]").evaluate_all("nodes => nodes.map((node) => node.id)")
    assert ids
    assert len(ids) == len(set(ids))
    links = tab.locator("main .tb-fragment use").evaluate_all("nodes => nodes.map((node) => node.href.baseVal)")
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)


@pytest.mark.slow
def test_tables_sort_and_cases_filter_in_every_run(runs: Path, serve: Serve, page: Page) -> None:
    tab = open_tab(page, serve(runs))
    tab.locator(".tb-runs input").nth(1).check()
    done(tab)
    for i in range(2):
        tab.locator("#summary .tb-column").nth(i).locator("summary").first.click()
        table = tab.locator("#summary .tb-column").nth(i).locator("table").first
        header = table.locator("thead button", has_text=re.compile("^Iteration$"))
        header.click()
        expect(table.locator("tbody tr").first).to_contain_text("train")
        header.click()
        expect(table.locator("tbody tr").first).to_contain_text("infer")
    tab.get_by_placeholder("Filter cases").fill("224 train")
    expect(tab.locator("#summary article.ch-card:visible")).to_have_count(2)
    expect(tab.locator("#parts figure:visible")).to_have_count(1)


@pytest.mark.slow
def test_runs_that_cannot_be_read_say_why(tmp_path: Path, serve: Serve, page: Page) -> None:
    out = tmp_path / "runs"
    good, bad = records.write_record(out, name="good"), records.write_record(out, name="<b>bad</b>")
    newer, damaged = records.write_record(out, name="newer"), records.write_record(out, name="damaged")
    (bad / "run.json").write_text('{"schema_version": ')
    manifest = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    (damaged / "iterations.parquet").write_bytes(b"PAR1")
    tab = open_tab(page, serve(out))
    expect(tab.locator(".tb-runs li", has_text="upgrade charact").locator("input")).to_be_disabled()
    expect(tab.locator(".tb-runs li", has_text="is corrupt").locator("input")).to_be_disabled()
    for name, chosen in [("good", True), ("damaged", True)]:
        tab.locator(".tb-runs li", has_text=name).locator("input").set_checked(chosen)
        done(tab)
    changed = "iterations.parquet was changed since it was written"
    expect(tab.locator(".tb-column", has_text=changed).first).to_be_visible()
    expect(tab.locator("main")).to_contain_text(load_run(good).entries[0].case)
    tab.locator(".tb-runs li", has_text="good").locator("input").uncheck()
    done(tab)
    expect(tab.locator("main")).to_contain_text(changed)


@pytest.mark.slow
def test_scalars_compare_in_time_series(runs: Path, serve: Serve, page: Page) -> None:
    page.goto(f"{serve(runs)}?smoothing=0#timeseries")
    groups = page.get_by_role("button", name="Expand group")
    # Two runs of this case share the cards: the iteration, its 5 phases and other.
    expect(groups.filter(has_text=TRAIN).first).to_contain_text("7 cards", timeout=60_000)
    expect(groups.filter(has_text="peak_memory_bytes")).to_contain_text("4 cards")
    expect(page.get_by_role("spinbutton", name="Smoothing")).to_have_value("0")


@pytest.mark.slow
def test_a_run_in_progress_is_shown_and_grows_when_asked(tmp_path: Path, page: Page, traffic: Any) -> None:
    """The program goes on while the test looks; its spool is read by `charact tensorboard` only."""
    out, port = tmp_path / "runs", free_port()
    script = Path(__file__).parents[1] / "scripts" / "counts.py"
    charact = [sys.executable, "-m", "charact"]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    out.mkdir()
    program = subprocess.Popen([*charact, "run", "--skip", "0", "--passes", "timing", "--out", str(out), str(script),
                                "30", "20"],
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet)
    server = subprocess.Popen([*charact, "tensorboard", str(out), "--port", str(port)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}/"
        limit = time.monotonic() + 60
        while not answers(address) or not list(out.glob(".partial-*/slices.bin")):
            assert time.monotonic() < limit, "the program or the server does not begin"
            time.sleep(0.1)
        tab = open_tab(page, address)
        expect(tab.locator(".tb-runs li")).to_contain_text("in progress")
        while tab.locator("#phases").count() == 0:  # no iteration has finished yet
            assert time.monotonic() < limit, "no phases appear"
            tab.get_by_role("button", name="Refresh").click()
            done(tab)
        expect(tab.locator("#program")).to_contain_text("still running")
        assert program.stdin is not None
        program.stdin.write(b"\n")
        program.stdin.close()
        assert program.wait(timeout=60) == 0
        tab.get_by_role("button", name="Refresh").click()
        done(tab)
        expect(tab.locator(".tb-runs input:checked")).to_have_count(1)  # by the same name as before
        expect(tab.locator(".tb-runs li")).not_to_contain_text("in progress")
        expect(tab.locator("#program")).to_contain_text("to its end")
        expect(tab.locator("#program tbody tr td").nth(2)).to_have_text("30")
        assert traffic.errors == []
    finally:
        for process in (program, server):
            process.kill()
            process.wait(timeout=20)
