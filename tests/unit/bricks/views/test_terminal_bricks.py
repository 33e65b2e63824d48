"""Bricks in the terminal: numbers of synthetic records, and what is missing with its reason."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.brick_records import Models, brick_row, suite_run, three_models, zoo

from charact.bricks.analysis.construction import Correction
from charact.bricks.analysis.machines import latency_by_machine
from charact.bricks.views.summary import correction, machines
from charact.record.reader import Run
from charact.views.document import Item
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn


def screen(shown: Item, width: int = 200) -> str:
    Console(file=(stream := io.StringIO()), width=width).print(drawn(shown))
    return stream.getvalue()


def row_of(text: str, start: str) -> str:
    """Return the line below the answer that begins with a text, without that beginning, and with single spaces."""
    line = next(line for line in text.splitlines()[1:] if line.strip().startswith(start))
    return " ".join(line.strip().removeprefix(start).split())


def by_machine(*runs: Run) -> str:
    return screen(machines(latency_by_machine(runs)))


def test_a_suite_has_its_numbers_slowest_bricks_and_failures(tmp_path: Path) -> None:
    broken = brick_row("99ff", ["lstm"], status="oom", reason="out of memory: asked for 40.0 GB", num_rounds=0)
    text = screen(summary(suite_run(tmp_path, failed=[broken])))
    assert row_of(text, "bricks-zoo-g2-infer-fp32-cpu") == "10.0 ms 5 7 7 70.0 ms 400 ms"
    assert "1 of 5 bricks have no time" in text
    assert row_of(text, "00aa") == "conv2d + batch_norm 4.00 ms 40.0 % 25.0 GFLOP/s"
    assert text.index("00aa") < text.index("33dd") < text.index("11bb") < text.index("22cc")
    assert "99ff lstm  oom: out of memory: asked for 40.0 GB" in text
    assert "more" not in text


def test_long_suites_are_cut_short(tmp_path: Path) -> None:
    many = {f"{number:04x}": (["relu"], 0.001 * (number + 1)) for number in range(14)}
    failed = [brick_row(f"f{number:03}", ["lstm"], status="error", reason="it broke") for number in range(12)]
    text = screen(summary(suite_run(tmp_path, many, failed=failed)))
    assert "4 more: see the report or charact export 2 more failed: see the report" in text
    assert text.count("error: it broke") == 10


def test_constructed_latencies_are_next_to_measured_ones(tmp_path: Path) -> None:
    text = screen(summary(three_models(tmp_path)))
    # 4 + 1 + 4 + 2 ms; the longest path of the record is nine tenths, the correction 5 %
    assert row_of(text, "resnet18-224-b1-infer-fp32-cpu") == "11.0 ms 9.90 ms 11.6 ms 11.43–11.67 ms 11.0 ms +5.0 %"
    assert row_of(text, "vgg11-224-b1-infer-fp32-cpu").endswith("5.00 ms −8.0 %")
    # (1 · 0.8)^½ of the plain sums, whose mean |error| is a tenth
    assert row_of(text, "plain sum      infer") == "2 0.894 10.0 % −20.0 %"
    assert "hopeless-224-b1-infer-fp32-cpu  not constructed: the run lacks 1 of 2 segments (brick 99ff)" in text
    # 11 and 4 ms of models; 4 + 1 + 2 + 3 ms of bricks; 7 rounds and 0.4 s of set-up
    assert "bricks take 10.0 ms once, the 2 models 15.0 ms: × 1.50, with the whole suite's set-up × 0.22" in text


def test_what_all_models_lack_is_a_line(tmp_path: Path) -> None:
    text = screen(summary(Models(tmp_path).add("resnet18", ["00aa"]).run()))
    assert "corrected sum: n/a (no correction was learned on this machine)" in text
    assert "Measured, Error: n/a (not measured)" in text
    assert text.splitlines()[2].split() == ["Case", "plain", "sum", "longest", "path", "95", "%", "interval"]
    assert "once, the model 4.00 ms" in text


def test_many_models_fit(tmp_path: Path) -> None:
    text = screen(summary(zoo(tmp_path, 20)))
    assert "14 more models: see the report" in text
    assert "OfLongName" in text


@pytest.mark.parametrize(("width", "name"), [
    (60, "bricks-zoo-g2-infer-fp32-cpu"), (90, "resnet18-224-b1-infer-fp32-cpu"),
])
def test_names_are_whole_on_a_narrow_screen(tmp_path: Path, width: int, name: str) -> None:
    run = suite_run(tmp_path) if name.startswith("bricks") else three_models(tmp_path)
    assert name in screen(summary(run), width).splitlines()


def test_machines_are_columns(tmp_path: Path) -> None:
    first = Models(tmp_path, "one").add("resnet18", ["00aa"], measured=1.5).fail("vgg11", "the run lacks it").run()
    other = Models(tmp_path, "other").add("resnet18", ["00aa"], slowness=2.0).run()
    # Records of one machine share its column.
    assert row_of(by_machine(first, other), "resnet18 224 b1 infer fp32") == "4.00 ms (measured 6.00 ms), 8.00 ms"
    other.manifest["machine"] = {**other.manifest["machine"], "cpu": {"model": "Snail"}}
    text = by_machine(first, other)
    assert row_of(text, "resnet18 224 b1 infer fp32") == "4.00 ms (measured 6.00 ms) 8.00 ms"
    assert "the run lacks it" in text
    assert "n/a (not constructed there)" in text


def test_variants_of_a_model_are_told_apart_by_machine(tmp_path: Path) -> None:
    record = Models(tmp_path).add("make", ["00aa"], variant="aaa111", case="one").add("vgg11", ["00aa"])
    text = by_machine(record.add("make", ["11bb"], variant="bbb222", case="two").run())
    assert row_of(text, "make.aaa111 224 b1 infer fp32") == "4.00 ms"
    assert row_of(text, "make.bbb222 224 b1 infer fp32") == "2.00 ms"
    assert row_of(text, "vgg11 224 b1 infer fp32") == "4.00 ms"


def test_a_calibration_has_its_coefficients_and_reasons() -> None:
    reasons = {"piece_s": "3 models tell 1 of the coefficients", "backward_start_s": "the models have none"}
    learned = Correction(0.95, 6e-6, 0.0, 0.0, reasons, ["a", "b"], 0.08, 0.03, 0.05)
    text = screen(correction("bricks-zoo", ["a-1", "b-1"], [0.002, 0.01], [0.0025, 0.01], learned))
    assert row_of(text, "a-1") == "2.00 ms 2.50 ms 0.800"
    assert row_of(text, "factor of the plain sum") == "0.9500"
    assert row_of(text, "each call of a module") == "+6.00 µs"
    assert row_of(text, "each segment") == "±0 s (3 models tell 1 of the coefficients)"
    assert "plain sum 8.0 %, corrected 3.0 %" in text
