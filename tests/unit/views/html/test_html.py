"""The HTML report: its numbers, that it is whole in itself, that names are escaped, what it says of what is missing."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import records
from support.damage import change_manifest
from support.kinds_of_runs import RUNS
from support.pages import HOSTILE, Page

from charact.commands import report as report_command
from charact.core.errors import UserError
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.views.html.report import report, sections

SECTION_IDS = [
    "summary", "iterations", "phases", "operator-types", "operators", "layers", "flame-graph",
    "memory", "bottleneck", "roofline", "utilization", "counters", "machine", "method", "unavailable",
]
def record_of(tmp_path: Path, entry: dict, tables: dict) -> Path:
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(entry), tables)
    return writer.close("complete")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the known record."""
    return str(report([load_run(records.write_record(tmp_path_factory.mktemp("known")))]))


@pytest.fixture(scope="module")
def parts(page: str) -> dict[str, str]:
    """Its sections by their ids."""
    found = re.findall(r'<section class="ch-section" id="r1-([a-z-]+)">(.*?)</section>', page, re.DOTALL)
    return dict(found)


def test_sections_come_in_order_and_hold_the_numbers(parts: dict[str, str]) -> None:
    parts = {name: Page(html).words for name, html in parts.items()}
    assert list(parts) == SECTION_IDS
    assert "79.6" in parts["summary"]
    assert "100.1–100.8 ms" in parts["summary"]
    assert "30.0 %" in parts["phases"]
    assert "66.0 ms" not in parts["operators"]  # forward and backward are told apart
    assert "45.0 ms" in parts["operators"]
    assert "195 GFLOP" in parts["layers"]
    assert "47.9 MiB" in parts["memory"]
    assert "2.59 TFLOP/s" in parts["roofline"]  # 130 GFLOP in 50.225 ms
    assert "--input-sizes" not in parts["machine"]  # arguments may hold what is nobody else's business
    assert "× 1.04" in parts["method"]
    assert "kernels run on GPUs only" in parts["method"]


def test_fragments_hold_no_script_style_or_foreign_address(parts: dict[str, str]) -> None:
    for html in parts.values():
        for tag, attributes in Page(html).tags:
            assert tag not in ("script", "style", "link", "iframe", "img")
            assert not [name for name in attributes if name.startswith("on")]
            for name in ("src", "href", "xlink:href"):
                assert (attributes.get(name) or "#").startswith("#")


def test_a_report_needs_nothing_but_itself(page: str) -> None:
    for tag, attributes in Page(page).tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
        assert "url(" not in (attributes.get("style") or "")
        assert tag != "img"


@pytest.mark.without_figures
@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind not in ("bricks", "constructed models")])
def test_every_figure_has_a_name_and_a_table(kind: str, tmp_path: Path) -> None:
    text = report([load_run(RUNS[kind](tmp_path))])
    blocks = [block for block in text.split('<div class="ch-block"')[1:] if "<figure" in block]
    assert blocks
    for block in blocks:
        assert re.search(r'<figure[^>]*>\s*<div class="ch-large"><svg><title>[^<]+</title>', block)
        assert "<table" in block.split("</details>")[0]
    Page(text)


@pytest.mark.slow
def test_ids_do_not_repeat(record: Path) -> None:
    run = load_run(record)
    tags = Page(report([run, run])).tags
    ids = [attributes["id"] for tag, attributes in tags if tag != "path" and "id" in attributes]
    assert len(ids) > 2 * len(SECTION_IDS)
    assert len(ids) == len(set(ids))


def test_hostile_names_are_only_ever_text(tmp_path: Path) -> None:
    entry = records.case_entry(HOSTILE, 32, "train", reason=HOSTILE)
    entry["passes"]["kernels"]["reason"] = HOSTILE
    entry["passes"]["flop"]["uncounted"] = [HOSTILE]
    tables = records.case_tables("train", 32, layer=HOSTILE)
    tables["operators"].append({**tables["operators"][1], "operator": HOSTILE, "operator_type": HOSTILE})
    manifest = {"command_line": ["charact", HOSTILE], "machine": {"hostname": HOSTILE}, "software": {HOSTILE: HOSTILE}}
    writer = RunWriter(tmp_path, HOSTILE, manifest)
    writer.add_case(typed_entry(entry), tables)
    writer.add_case(typed_entry(records.case_entry(HOSTILE, 64, "train")), records.case_tables("train", 64))
    writer.add_case(typed_entry(records.case_entry(HOSTILE, 99, "train", status="error", reason=HOSTILE)), {})
    run = load_run(writer.close("complete"))
    text = report([run, run])
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.words.count(HOSTILE) > 20
    assert any("&lt;script&gt;alert" in figure for figure in re.findall(r"<figure .*?</figure>", text, re.DOTALL))
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or "alert" in name]


@pytest.mark.slow
def test_figures_are_the_same_bytes_every_time_and_from_threads(record: Path) -> None:
    run = load_run(record)
    first = [part.html for part in sections(run)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: [part.html for part in sections(load_run(record))], range(2))) == [first, first]


def test_an_empty_run(tmp_path: Path) -> None:
    run = load_run(RunWriter(tmp_path, "r", {}).close("complete"))
    assert "This run has no cases" in Page(report([run])).words
    assert Page(report([run, run])).words.count("This run has no cases") == 2


def test_all_cases_failed(tmp_path: Path) -> None:
    path = record_of(tmp_path, records.case_entry("r", 32, "train", status="error", reason="model broke"), {})
    parts = {part.id: Page(part.html).words for part in sections(load_run(path))}
    for title in ("Time by phase", "Operator types", "Operators", "Layers", "Memory", "Work and roofline"):
        assert re.search(rf"{title}\s*n/a \(model broke\)", parts["unavailable"])
    assert "model broke" in parts["summary"]


@pytest.mark.slow_variants
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_one_case(tmp_path: Path, mode: str) -> None:
    path = records.write_record(tmp_path, sizes=(64,), modes=(mode,))
    words = Page(report([load_run(path)])).words
    assert "n/a (one input size only: give --input-sizes two)" in words
    assert ("n/a (inference)" in words) == (mode == "infer")


def test_a_failed_pass_says_why_where_its_numbers_would_be(tmp_path: Path) -> None:
    entry, tables = records.case_entry("r", 32, "train"), records.case_tables("train", 32)
    entry["passes"]["operators"] = {"status": "failed", "reason": "profiler busy"}
    del tables["operators"]
    parts = {part.id: Page(part.html).words for part in sections(load_run(record_of(tmp_path, entry, tables)))}
    for name in ("layers", "method"):
        assert "profiler busy" in parts[name]
    for title in ("Operator types", "Operators"):
        assert re.search(rf"{title}\s*n/a \(profiler busy\)", parts["unavailable"])
    assert "195 GFLOP" in parts["layers"]


@pytest.mark.slow
def test_several_runs_begin_with_a_table_across_them(tmp_path: Path) -> None:
    runs = [load_run(records.write_record(tmp_path, sizes=(32,), modes=("train",))) for _ in range(2)]
    text = report(runs)
    overview = text[text.index('id="overview"') : text.index("</article>")]
    assert [overview.count(f">{run.run_id}</td>") for run in runs] == [1, 1]
    assert text.index('id="overview"') < text.index('id="run-1"') < text.index('id="run-2"')


@pytest.mark.slow
def test_ten_cases_of_a_deep_network_stay_below_2_megabytes(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "deep", {})
    for number in range(10):
        tables = records.case_tables("train", 32 + number)
        template = list(tables["operators"])
        for layer in range(160):
            name = f"encoder.stage{layer % 4}.block{layer}.convolution"
            tables["layers"].append({"layer": name, "layer_type": "Convolution2d", "num_parameters": 589_824})
            tables["operators"] += [
                {**row, "layer": name, "operator": f"{row['operator']}_{layer}", "operator_type": f"type{layer % 18}"}
                for row in template
            ]
        writer.add_case(typed_entry(records.case_entry("deep", 32 + number, "train")), tables)
    text = report([load_run(writer.close("complete"))])
    assert text.count("deep-41-b8-train-fp32-cpu") > 50
    assert len(text.encode()) <= 2_000_000
    assert "<code>charact export</code> writes all" in text


@pytest.mark.slow
def test_the_command_writes_refuses_and_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    record = records.write_record(tmp_path / "runs", sizes=(32,), modes=("infer",))
    report_command.command([record])
    assert capsys.readouterr().out == f"Wrote {record / 'report.html'}\n"
    assert "<title>resnet50 – charact</title>" in (record / "report.html").read_text()
    (record / "report.html").write_text("mine")
    with pytest.raises(UserError, match="--force overwrites it"):
        report_command.command([record])
    assert (record / "report.html").read_text() == "mine"
    report_command.command([record], force=True)
    assert (record / "report.html").read_text() != "mine"
    report_command.command([record], to=tmp_path / "other.html")
    assert (tmp_path / "other.html").exists()


@pytest.mark.slow
def test_several_runs_are_written_to_the_current_directory(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report_command.command([record, record])
    assert (tmp_path / "report.html").exists()


def test_a_killed_run_is_read_with_partial(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(records.case_entry("r", 32, "train")), records.case_tables("train", 32))
    with pytest.raises(UserError, match="--partial"):
        report_command.command([writer.directory], to=tmp_path / "a.html")
    report_command.command([writer.directory], to=tmp_path / "a.html", partial=True)
    assert "unfinished" in (tmp_path / "a.html").read_text()


def test_bad_input_is_one_line_and_writes_nothing(record: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    manifest = json.loads((record / "run.json").read_text())
    target = tmp_path / "a.html"
    for text, words in [("{", "is corrupt"), (json.dumps(manifest | {"schema_version": 99}), "upgrade charact")]:
        (bad / "run.json").write_text(text)
        with pytest.raises(UserError, match=words) as refusal:
            report_command.command([record, bad], to=target)
        assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="holds no run"):
        report_command.command([tmp_path / "nowhere"], to=target)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no finished run"):
        report_command.command([tmp_path / "empty"], to=target)
    with pytest.raises(UserError, match="is a directory"):
        report_command.command([record], to=bad, force=True)
    with pytest.raises(UserError, match="cannot write"):
        report_command.command([record], to=record / "run.json" / "a.html")
    assert not target.exists()


class TestDamage:
    def test_sections_that_need_a_damaged_table_name_it_and_the_others_are_shown(self, record: Path) -> None:
        (record / "memory.parquet").write_bytes(b"PAR1")
        html = {part.id: part.html for part in sections(load_run(record))}
        named = {name for name, text in html.items() if "memory.parquet was changed since it was written" in text}
        assert named == {"summary", "method", "unavailable"}
        assert re.search(r"Memory</dt>\s*<dd>n/a \([^<]*memory.parquet was changed", html["unavailable"])

    @pytest.mark.slow
    def test_a_case_with_damaged_facts_says_what_is_damaged(self, record: Path) -> None:
        cases = json.loads((record / "run.json").read_text())["cases"]
        cases[0]["passes"]["timing"]["num_iterations"] = "many"
        change_manifest(record, cases=cases)
        overview = next(part.html for part in sections(load_run(record)) if part.id == "summary")
        assert "damaged" in overview
        assert "run.json: Expected `int | null`, got `str` - at" in overview
        assert overview.count("damaged") < overview.count("resnet50-")

    @pytest.mark.slow
    def test_a_damaged_run_leaves_the_table_across_runs_to_the_others(self, tmp_path: Path) -> None:
        runs = [records.write_record(tmp_path, sizes=(32,), modes=("train",)) for _ in range(2)]
        (runs[0] / "iterations.parquet").write_bytes(b"PAR1")
        text = report([load_run(run) for run in runs])
        overview = text[text.index('id="overview"') : text.index("</article>")]
        assert [overview.count(f">{run.name}</td>") for run in runs] == [0, 1]
        assert "iterations.parquet was changed since it was written" in text
