"""Bricks in the report and in TensorBoard: suites' runs, constructed models, and what is missing of either."""

import re
from pathlib import Path

import pytest
from support import brick_records as made
from support.brick_records import Models
from support.event_files import read
from support.pages import HOSTILE, Page
from support.records import write_record

from charact.bricks.views.tables import signed_share
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.export.tables import export
from charact.views.figures.bars import short_names
from charact.views.html.report import fragment, report, sections
from charact.views.tensorboard.scalars import write_scalars

SUITE = "bricks-zoo-g2-infer-fp32-cpu"


def html_of(run: Run) -> dict[str, str]:
    return {part.id: part.html for part in sections(run)}


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_suite_is_told_as_a_whole_and_by_its_slowest_bricks(tmp_path: Path) -> None:
    failed = made.brick_row("99ff", ["gather"], status="oom", reason="out of memory: asked for 40.0 GB")
    html = html_of(made.suite_run(tmp_path, failed=[failed]))
    assert list(html) == ["summary", "bricks", "machine", "method"]
    overview, told = words(html["summary"]), words(html["bricks"])
    assert "10.0 ms every brick once in context: all bricks take turns 1 of 5 bricks have no time" in overview
    assert "00aa conv2d + batch_norm 4.00 ms 40.0 % 3.92 ms 4.08 ms 25.0 GFLOP/s 2" in told
    assert "The same in every row: Inputs 1×64×56×56, 64×64×3×3; FLOP 100 MFLOP; " in told
    assert "conv2d + batch_norm 2 7.00 ms 70.0 % 28.6 GFLOP/s" in told
    assert "99ff: oom: out of memory: asked for 40.0 GB" in told
    assert told.index("00aa conv2d") < told.index("33dd conv2d") < told.index("11bb linear") < told.index("22cc relu")


def test_constructed_models_stand_beside_what_was_measured(tmp_path: Path) -> None:
    html = html_of(made.three_models(tmp_path))
    assert list(html) == ["summary", "constructed", "reuse", "machine", "method"]
    overview, told = words(html["summary"]), words(html["constructed"])
    assert "6.5 % mean |error|" in overview
    assert "longest path infer 2 2" in told
    assert "time saved × 1.50" in overview
    assert "resnet18 ok 11.6 ms corrected sum 11.0 ms 11.0 ms +5.0 % 2" in overview
    # sqrt(1.05 × 1.15 / 1.25) and sqrt(1 / 1.25)
    assert "corrected sum infer 2 2 0.983 6.5 % −8.0 % vgg11" in told
    assert "plain sum infer 2 2 0.894 10.0 % −20.0 % vgg11" in told
    assert "Constructed against measured latency</title>" in html["constructed"]
    assert "2 15.0 ms 10.0 ms × 1.50 × 0.22" in told  # 7 × 15 ms against 7 × 10 ms and 0.4 s
    assert "resnet18 conv2d + batch_norm 2 8.00 ms 72.7 %" in told
    assert "hopeless n/a (the run lacks 1 of 2 segments (brick 99ff))" in told


def test_the_machine_s_cores_are_counted_in_words(tmp_path: Path) -> None:
    run = made.suite_run(tmp_path)
    assert "AMD EPYC, 2 cores ·" in words(report([run]))
    run.manifest["machine"] = {**run.manifest["machine"], "cpu": {"model": "AMD EPYC", "num_usable_cores": 1}}
    assert "AMD EPYC, 1 core ·" in words(report([run]))


def test_the_unique_share_and_repeats_are_told(tmp_path: Path) -> None:
    told = words(html_of(made.three_models(tmp_path))["reuse"])
    assert "all models together 11 8 5 62.5 % resnet18 6 4 3 75.0 %" in told
    assert "conv2d + batch_norm 4 2 50.0 % 3 1" in told
    assert "relu 2 1 50.0 % 2 1" in told


def test_without_verifying_there_is_nothing_to_hold_latencies_against(tmp_path: Path) -> None:
    run = Models(tmp_path).add("resnet18", ["00aa", "11bb"]).run()
    html = html_of(run)
    told = words(html["constructed"])
    assert "charact bricks construct --verify measures them on this machine" in told
    assert "against measured latency</title>" not in html["constructed"]
    assert "n/a (not corrected)" in told
    assert "Not corrected n/a (no correction was learned on this machine)" in told
    assert "6.00 ms plain sum" in words(html["summary"])


def test_all_models_failed(tmp_path: Path) -> None:
    run = Models(tmp_path).fail("hopeless", "the run lacks 1 of 2 segments").run()
    text = words(report([run]))
    assert "the run lacks 1 of 2 segments" in text
    assert "nan" not in re.findall(r"\w+", text)


def test_a_suite_without_a_brick_that_has_a_time(tmp_path: Path) -> None:
    run = made.suite_run(tmp_path, {}, failed=[made.brick_row("99ff", ["gather"], status="error", reason="it broke")],
                         status="error", reason="no brick has a time")  # fmt: skip
    html = html_of(run)
    assert "no brick has a time" in words(html["summary"])
    assert "99ff: error: it broke" in words(html["bricks"])
    assert "nan" not in re.findall(r"\w+", words(report([run])))


@pytest.mark.slow
def test_hostile_names_are_only_ever_text(tmp_path: Path) -> None:
    suite = made.suite_run(tmp_path, {HOSTILE: ([HOSTILE, "conv2d"], 0.01)}, suite=HOSTILE, failed=[
        made.brick_row(f"{HOSTILE}2", [HOSTILE], status="error", reason=HOSTILE)])  # fmt: skip
    record = Models(tmp_path).add(HOSTILE, ["00aa", "22cc"], measured=1.5, corrected=1.4)
    models = record.add("vgg11", ["33dd"], measured=1.1).fail(f"x{HOSTILE}", HOSTILE).run()
    text = report([suite, models])
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.words.count(HOSTILE) > 10


@pytest.mark.slow
def test_other_records_have_no_bricks(tmp_path: Path) -> None:
    for run in (load_run(write_record(tmp_path)), load_run(RunWriter(tmp_path, "e", {}).close("complete"))):
        assert not {"bricks", "constructed", "reuse"} & set(html_of(run))


@pytest.mark.slow
def test_records_of_several_g_stand_beside_each_other(tmp_path: Path) -> None:
    runs = [Models(tmp_path).add("resnet18", ["00aa", "11bb"], measured=measured, g=g).run()
            for g, measured in ((1, 1.1), (4, 1.25))]  # fmt: skip
    text = report(runs)
    overview = text[text.index('id="overview"') : text.index("</article>")].replace("\N{NO-BREAK SPACE}", " ")
    for word in ("G = 1", "G = 4", "Constructed over measured latency of each model</title>", "−9.1 %", "−20.0 %"):
        assert word in overview
    alike = report([runs[0], runs[0]])
    assert "G = 1" not in alike[alike.index('id="overview"') : alike.index("</article>")]


@pytest.mark.slow
def test_a_hundred_models_stay_readable_and_below_2_megabytes(tmp_path: Path) -> None:
    html = html_of(made.zoo(tmp_path))
    assert sum(map(len, html.values())) < 2_000_000
    assert html["summary"].count('<article class="ch-card') == 12
    assert "100 measured models" in html["summary"]
    assert max(float(height) for height in re.findall(r'viewBox="0 0 \d+ (\d+)"', html["constructed"])) < 2000


@pytest.mark.slow
def test_many_bricks_are_cut_short_with_a_note(tmp_path: Path) -> None:
    bricks = {f"{number:016x}": (["conv2d"], 0.001 + 1e-6 * number) for number in range(2000)}
    html = html_of(made.suite_run(tmp_path, bricks))["bricks"]
    assert "The figure shows the 20 slowest of 2000." in words(html)
    assert "The figure shows the 1500 slowest bricks." in words(html)
    assert "The 300 slowest of each case, of up to 2000" in words(html)
    assert len(html) < 2_000_000


@pytest.mark.parametrize(("names", "short"), [
    (["resnet18-224-b1-infer-fp32-cpu", "vgg-11-224-b1-infer-fp32-cpu"], ["resnet18", "vgg-11"]),
    (["a-32-b1-cpu", "a-64-b1-cpu"], ["a-32", "a-64"]), (["a-b", "a-b"], ["a-b", "a-b"]), (["one"], ["one"]),
    (["x" * 12 + "y" * 50], ["x" * 12 + "…" + "y" * 33]), (["a-1", "b-a-1"], ["a", "b-a"]), ([], []),
])  # fmt: skip
def test_names_are_shortened_to_what_tells_them_apart(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short


@pytest.mark.parametrize(("value", "shown"), [
    (0.0512, "+5.1 %"), (-0.2, "−20.0 %"), (0.0, "+0.0 %"), (None, "n/a (why)"),
])  # fmt: skip
def test_errors_have_their_sign(value: float | None, shown: str) -> None:
    assert signed_share(value, "why") == shown


def test_rounds_and_latencies_are_scalars(tmp_path: Path) -> None:
    suite, models = made.suite_run(tmp_path), made.three_models(tmp_path)
    write_scalars(suite, suite.path)
    write_scalars(models, models.path)
    found = read(suite.path)[f"{SUITE}/suite_s"]
    assert found == [(number, pytest.approx(0.01 * factor, rel=1e-6)) for number, factor in enumerate(made.ROUNDS)]
    tag = "constructed_latency_s/resnet18--b1-infer-fp32-cpu"
    assert read(models.path)[tag] == [(224, pytest.approx(1.05 * 0.011, rel=1e-6))]


def test_exports_hold_the_tables(tmp_path: Path) -> None:
    names = export(made.three_models(tmp_path / "runs"), "csv", tmp_path / "out")
    assert {"pieces.csv", "constructions.csv", "summary.csv"} <= set(names)
    lines = (tmp_path / "out" / "constructions.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 3


def test_a_notebook_shows_either_record(tmp_path: Path) -> None:
    assert "10.0 ms" in fragment(made.suite_run(tmp_path))
    assert "11.6 ms" in fragment(made.three_models(tmp_path))
