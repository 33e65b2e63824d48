import json
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from support import records
from support.damage import change_manifest, reseal
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from charact.record.in_progress import write_manifest
from charact.record.reader import PARTIAL_PREFIX
from charact.views.tensorboard.plugin import CharactPlugin

pytestmark = pytest.mark.without_figures


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def get(logdir: Path | str, route: str, *run_ids: str) -> TestResponse:
    apps = CharactPlugin(base_plugin.TBContext(logdir=str(logdir))).get_plugin_apps()
    return Client(apps[route]).get(route, query_string={"run": list(run_ids)})


def listing(logdir: Path | str) -> list[dict[str, Any]]:
    return list(get(logdir, "/runs").get_json())


def set_manifest(run: Path, **changes: Any) -> None:
    change_manifest(run, **changes)


def tags_of(html: str) -> set[str]:
    parser = HTMLParser()
    seen: set[str] = set()
    parser.handle_starttag = lambda tag, attrs: seen.add(tag)  # type: ignore[method-assign]
    parser.feed(html)
    return seen


def test_lists_what_the_manifest_says(runs: Path) -> None:
    run = records.write_record(runs / "deep" / "er", name="resnet50")
    assert listing(runs) == [{
        "id": f"deep/er/{run.name}", "path": f"deep/er/{run.name}", "name": "resnet50",
        "started": "2026-11-21T10:00:00+0000", "started_s": 1795255200.0, "machine": "bench-1 · AMD EPYC",
        "status": "complete", "num_cases": 4, "error": None,
    }]  # fmt: skip


def test_lists_the_newest_run_first(runs: Path) -> None:
    for name, time in [("old", "20T10:00:00+0000"), ("newest", "21T01:00:00-0800"), ("new", "21T08:00:00+0000")]:
        set_manifest(records.write_record(runs, name=name), started=f"2026-11-{time}")
    assert [entry["name"] for entry in listing(runs)] == ["newest", "new", "old"]


@pytest.mark.slow
def test_a_log_directory_may_itself_be_a_run(record: Path) -> None:
    entry, = listing(record)
    assert (entry["id"], entry["name"]) == (".", "resnet50")
    assert get(record, "/sections", ".").status_code == 200


def test_a_log_directory_may_be_relative_to_home(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(record.parent.parent))
    assert len(listing("~/runs")) == 1


def test_hidden_and_foreign_directories_are_not_listed(runs: Path) -> None:
    run = records.write_record(runs)
    shutil.copytree(run, runs / f"{PARTIAL_PREFIX}{run.name}")
    shutil.copytree(run, runs / ".trash" / run.name)
    (runs / "other").mkdir()
    (runs / "other" / "run.json").write_text('{"model": "not one of ours"}')
    assert [entry["id"] for entry in listing(runs)] == [run.name]


def test_a_run_whose_cases_all_failed_is_listed(runs: Path) -> None:
    run = records.write_record(runs, sizes=(), oom=True)
    assert not list(run.glob("*.parquet"))
    assert [(entry["id"], entry["num_cases"]) for entry in listing(runs)] == [(run.name, 1)]


@pytest.mark.parametrize("logdir", ["", "absent"])
def test_without_runs_there_is_an_empty_list(logdir: str, tmp_path: Path) -> None:
    where = str(tmp_path / logdir) if logdir else ""
    assert listing(where) == []
    assert not CharactPlugin(base_plugin.TBContext(logdir=where)).is_active()


def test_is_active_where_there_is_a_run(record: Path) -> None:
    assert CharactPlugin(base_plugin.TBContext(logdir=str(record.parent))).is_active()


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda run: (run / "run.json").write_text("{"), "is corrupt"),
        (lambda run: set_manifest(run, schema_version=99), "upgrade charact"),
        *(pytest.param(break_it, reason, marks=pytest.mark.slow) for break_it, reason in [
            (lambda run: set_manifest(run, status="running"), "was not finished"),
            (lambda run: set_manifest(run, machine=[]), "is corrupt"),
            (lambda run: set_manifest(run, started="yesterday"), "is corrupt"),
        ]),
    ],
)
def test_a_run_that_cannot_be_read_is_listed_with_its_reason(runs: Path, break_it: Any, reason: str) -> None:
    good = records.write_record(runs)
    bad = records.write_record(runs)
    break_it(bad)
    errors = {entry["id"]: entry["error"] for entry in listing(runs)}
    assert errors[good.name] is None
    assert reason in errors[bad.name]
    assert get(runs, "/sections", good.name).status_code == 200


def test_sections_are_those_of_the_report(record: Path) -> None:
    from charact.record.reader import load_run
    from charact.views.html.report import sections, unbroken

    answer = get(record.parent, "/sections", record.name).get_json()
    assert answer == [{"id": part.id, "title": part.title, "html": unbroken(part.html)}
                      for part in sections(load_run(record))]
    assert len(answer) > 3


@pytest.mark.slow
def test_sections_follow_a_run_that_is_written_again(record: Path) -> None:
    client = Client(CharactPlugin(base_plugin.TBContext(logdir=str(record.parent))).get_plugin_apps()["/sections"])
    before = client.get("/", query_string={"run": record.name}).get_json()
    assert client.get("/", query_string={"run": record.name}).get_json() == before
    manifest = json.loads((record / "run.json").read_text())
    manifest["machine"]["cpu"]["model"] = "Another CPU"
    write_manifest(record, manifest)
    after = client.get("/", query_string={"run": record.name}).get_json()
    assert "Another CPU" in json.dumps(after)
    assert "Another CPU" not in json.dumps(before)


@pytest.mark.parametrize("run_id", ["", "..", "../secret", "runs/../../secret", "absent", "%2e%2e/secret"])
def test_only_runs_below_the_log_directory_are_read(runs: Path, tmp_path: Path, run_id: str) -> None:
    records.write_record(runs)
    secret = records.write_record(tmp_path / "elsewhere")
    os.rename(secret, tmp_path / "secret")
    for route in ("/sections", "/comparison"):
        answer = get(runs, route, run_id)
        assert answer.status_code == 404
        assert "no run" in answer.get_json()["error"]
    assert get(runs, "/sections", str(tmp_path / "secret")).status_code == 404


def test_a_corrupt_table_is_one_line(record: Path) -> None:
    (record / "iterations.parquet").write_bytes(b"PAR1 is not enough")
    reseal(record)
    said = {part["id"]: part["html"] for part in get(record.parent, "/sections", record.name).get_json()}
    assert "iterations.parquet is corrupt" in said["unavailable"]
    assert "iterations.parquet" not in said["machine"]
    shutil.copytree(record, record.with_name("other"))
    answer = get(record.parent, "/comparison", record.name, "other")
    assert answer.status_code == 422
    assert "iterations.parquet is corrupt" in answer.get_json()["error"]
    assert listing(record.parent)[0]["error"] is None


def test_names_are_text_not_html(runs: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    ids = []
    for _ in range(2):
        run = records.write_record(runs, name="r", layer=evil)
        manifest = json.loads((run / "run.json").read_text())
        set_manifest(run, name=evil, cases=[case | {"reason": evil} for case in manifest["cases"]])
        ids.append(run.name)
    html = "".join(part["html"] for part in get(runs, "/sections", ids[0]).get_json())
    html += "".join(part["html"] for part in get(runs, "/comparison", *ids).get_json())
    assert "&lt;script&gt;" in html
    assert not tags_of(html) & {"script", "img", "style", "iframe"}
    assert listing(runs)[0]["name"] == evil  # JSON; the front end sets it as text


def test_answers_carry_their_type_and_no_stale_copy(record: Path) -> None:
    types = {"/index.js": "text/javascript", "/style.css": "text/css", "/report.js": "text/javascript",
             "/report.css": "text/css", "/runs": "application/json"}  # fmt: skip
    for route, content_type in types.items():
        answer = get(record.parent, route)
        assert (answer.status_code, answer.mimetype) == (200, content_type)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "no-cache" in answer.headers["Cache-Control"]


def test_the_plugin_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'pandas', 'pyarrow', 'matplotlib', 'jinja2'}"
    code = f"import sys, charact.views.tensorboard.plugin; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensorboard_finds_the_plugin() -> None:
    point, = entry_points(group="tensorboard_plugins", name="charact")
    assert point.load() is CharactPlugin


def test_a_comparison_of_no_run_is_one_line(record: Path) -> None:
    answer = get(record.parent, "/comparison")
    assert answer.status_code == 422
    assert answer.get_json()["error"] == "no runs to compare: choose some in the list"


@pytest.mark.parametrize("route", ["/runs", "/sections", "/comparison"])
def test_a_page_that_fails_is_one_line_and_is_logged(record: Path, route: str, monkeypatch: pytest.MonkeyPatch,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("of\nno\nrun")

    monkeypatch.setattr("charact.views.tensorboard.records._load", fail)
    answer = get(record.parent, route, record.name)
    assert answer.status_code == 422
    assert answer.get_json()["error"] == ("this page cannot be shown (ZeroDivisionError: of no run); see TensorBoard's "
                                          "log")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.slow
def test_a_run_that_is_renamed_while_it_is_read_is_found_again(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = record.rename(record.with_name(f"{PARTIAL_PREFIX}{record.name}"))
    stat = Path.stat

    def ends_meanwhile(path: Path, **named: Any) -> os.stat_result:
        if path.name == "run.json" and path.parent == hidden and hidden.exists():
            hidden.rename(record)
        return stat(path, **named)

    monkeypatch.setattr(Path, "stat", ends_meanwhile)
    answer = get(record.parent, "/sections", record.name)
    assert answer.status_code == 200, answer.get_json()
    assert len(answer.get_json()) > 3


def test_a_record_of_few_facts_is_listed(runs: Path) -> None:
    run = records.write_record(runs)
    manifest = json.loads((run / "run.json").read_text())
    write_manifest(run, {key: manifest[key] for key in ("schema_version", "run_id", "name", "status", "cases")})
    assert listing(runs)[0] == {
        "id": run.name, "path": run.name, "name": "resnet50", "started": None, "started_s": None,
        "machine": "n/a (not recorded, or not yet)", "status": "complete", "num_cases": 4, "error": None}
