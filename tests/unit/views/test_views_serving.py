"""The section Serving steps in every view."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.pages import Page
from support.records import write_record
from support.serving_records import DECODE, server, write_server, write_trace
from support.serving_traces import LAYER, ServerTrace
from support.terminal import shown
from support.traces import training

from charact.record.reader import Run, load_run
from charact.views.answer import answer
from charact.views.export.run_summary import run_summary
from charact.views.html.report import report
from charact.views.section import all_sections
from charact.views.tensorboard.scalars import scalars

SECTION = next(section for section in all_sections() if section.id == "serving-steps")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(write_trace(tmp_path_factory.mktemp("run"), server()))


def test_the_answer_names_the_steps_with_most_time_and_what_limits_them(run: Run) -> None:
    assert answer(run).sentence == (
        "server-infer: decode steps take 82.6 % of the steps’ time, 415 µs each (median); the GPU does not limit "
        "them: it works 41.3 % of the time, gaps included, and waits 39.7 % for the host outside of steps.")


def test_a_busy_gpu_limits_the_steps(tmp_path: Path) -> None:
    made, end = ServerTrace(), 20.0
    for number in range(12):
        made.mark(DECODE, 100.0 * number, 90)
        end = made.replay(100.0 * number + 10, end, [*LAYER] * 3)
    assert answer(load_run(write_trace(tmp_path, made))).sentence.endswith(
        "decode steps take all of the steps’ time, 300 µs each (median); the GPU limits them: it works 99.4 % of the "
        "time, gaps included.")


def test_steps_without_a_device(tmp_path: Path) -> None:
    made = ServerTrace()
    for at in (0, 1000):
        made.mark(DECODE, at, 600)
        made.operator("aten::mm", at + 10, 500)
    assert answer(load_run(write_trace(tmp_path, made))).sentence.endswith("600 µs each (median), on the host.")


def test_the_report_has_the_tables_and_escapes_names(run: Run) -> None:
    html = report([run])
    assert 'id="r1-serving-steps"' in html
    assert "<script>alert(1)" not in html
    words = Page(html).words
    for text in ("Steps by kind", "Time between steps by cause", "Device time by kind of kernel",
                 "Device time by graph", "n/a (the batch has no request)", "n/a (fewer than 10 steps)",
                 "graph 1, 16 kernels"):
        assert text in words, text


def test_the_terminal_has_steps_gaps_and_kinds_of_kernels(run: Run) -> None:
    text = shown(run.path, width=200)
    for words in ("serving steps", "prefill", "decode", "Time between steps", "Device time by kind of kernel"):
        assert words in text


def test_json_has_the_same_numbers(run: Run) -> None:
    case: dict[str, Any] = json.loads(json.dumps(run_summary(run)))["cases"][0]
    assert [row["kind"] for row in case["serving_steps"]] == ["prefill", "decode", "mixed", None]
    assert case["serving_steps"][1]["num_steps"] == 12
    assert sum(row["share_frac"] for row in case["serving_kernels"]) == pytest.approx(1)
    assert {row["cause"] for row in case["serving_gaps"]} == {"launch", "queue", "copy", "host", "kernel"}


def test_tensorboard_has_a_series_for_each_kind(run: Run) -> None:
    tags = [scalar.tag for scalar in scalars(run) if "/serving/" in scalar.tag]
    assert tags.count("server-infer/serving/decode_s") == 12
    assert tags.count("server-infer/serving/unknown_s") == 1


def test_several_cases_are_named(tmp_path: Path) -> None:
    sentence = answer(load_run(write_server(tmp_path))).sentence
    assert "server-infer: decode steps" in sentence
    assert "replays-infer: decode steps" in sentence


def test_other_runs_have_no_such_section(tmp_path: Path) -> None:
    assert not SECTION.belongs_to(load_run(write_record(tmp_path / "profile")))
    trained = load_run(write_trace(tmp_path / "trained", training()))  # type: ignore[arg-type]
    assert not SECTION.belongs_to(trained)
    assert "steps’ time" not in answer(trained).sentence
