"""Tables of bricks in the terminal: the numbers of made-up records, and what is missing with its reason."""

import io
from pathlib import Path

from rich.console import Console
from support.brick_records import BRICKS, Models, brick_row, suite_run, three_models, zoo

from charact.bricks.analysis.construction import Correction
from charact.bricks.analysis.machines import latency_by_machine
from charact.bricks.views.summary import correction, machines
from charact.record.reader import Run
from charact.views.document import Item
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn as drawn_item


def drawn(item: Item, width: int = 200) -> str:
    Console(file=(stream := io.StringIO()), width=width).print(drawn_item(item))
    return stream.getvalue()


def cells(text: str, start: str) -> list[str]:
    """Words of the line that begins so, without that beginning."""
    line = next(line for line in text.splitlines() if line.strip().startswith(start))
    return line.strip().removeprefix(start).split()


def screen(run: Run) -> str:
    return drawn(summary(run))


def test_a_suite_s_run_is_told_with_its_slowest_bricks(tmp_path: Path) -> None:
    told = screen(suite_run(tmp_path))
    assert cells(told, "bricks-zoo-g2-infer-fp32-cpu") == ["4", "6", "10.0", "ms", "7", "70.0", "ms", "400", "ms"]
    assert cells(told, "00aa") == ["conv2d", "+", "batch_norm", "4.00", "ms", "40.0", "%", "25.0", "GFLOP/s"]
    assert told.index("00aa") < told.index("33dd") < told.index("11bb") < told.index("22cc")


def test_failed_bricks_are_named_and_counted(tmp_path: Path) -> None:
    broken = brick_row("99ff", ["lstm"], status="oom", reason="out of memory: asked for 40.0 GB", num_rounds=0)
    told = screen(suite_run(tmp_path, failed=[broken]))
    assert "5, 1 failed" in told
    assert "99ff lstm  oom: out of memory: asked for 40.0 GB" in told


def test_long_suites_are_cut_short(tmp_path: Path) -> None:
    many = {f"{number:04x}": (["relu"], 0.001 * (number + 1)) for number in range(14)}
    assert "4 more: see the report or charact export" in screen(suite_run(tmp_path, many))
    assert "more: see the report" not in screen(suite_run(tmp_path, BRICKS))


def test_constructed_latencies_stand_beside_measured_ones(tmp_path: Path) -> None:
    told = screen(three_models(tmp_path))
    # 4 + 1 + 4 + 2 ms; the longest path of the record is nine tenths, the correction 5 %
    assert cells(told, "resnet18-224-b1-infer-fp32-cpu") == [
        "11.0", "ms", "9.90", "ms", "11.6", "ms", "11.43–11.67", "ms", "11.0", "ms", "+5.0", "%"]
    assert cells(told, "vgg11-224-b1-infer-fp32-cpu")[-4:] == ["5.00", "ms", "−8.0", "%"]
    # (1 · 0.8)^½ of the plain sums, whose mean |error| is a tenth
    assert cells(told, "plain sum, infer") == ["2", "0.894", "10.0", "%", "−20.0", "%"]
    assert "hopeless-224-b1-infer-fp32-cpu  not constructed: the run lacks 1 of 2 segments (brick 99ff)" in told


def test_what_bricks_save_is_told_with_and_without_set_up(tmp_path: Path) -> None:
    told = screen(three_models(tmp_path))
    # 11 and 4 ms of models; 4 + 1 + 2 + 3 ms of bricks; 7 rounds and 0.4 s of set-up
    assert "bricks take 10.0 ms once, the 2 models 15.0 ms: × 1.50, with the whole suite's set-up × 0.22" in told


def test_a_strategy_that_nobody_has_is_explained_and_not_measured_is_no_column(tmp_path: Path) -> None:
    told = screen(Models(tmp_path).add("resnet18", ["00aa"]).run())
    assert "corrected: n/a (no correction was learned on this machine)" in told
    header = told.splitlines()[0].split()
    assert "Measured" not in header
    assert "once, the model 4.00 ms" in told


def test_many_models_fit(tmp_path: Path) -> None:
    told = screen(zoo(tmp_path, 20))
    assert "14 more models: see the report" in told
    assert "OfLongName" in told


def test_machines_stand_side_by_side(tmp_path: Path) -> None:
    one = Models(tmp_path, "one").add("resnet18", ["00aa"], measured=1.5).fail("vgg11", "the run lacks it").run()
    other = Models(tmp_path, "other").add("resnet18", ["00aa"], slowness=2.0).run()
    other.manifest["machine"] = {**other.manifest["machine"], "cpu": {"model": "Snail"}}
    told = drawn(machines(latency_by_machine([one, other])))
    row = " ".join(cells(told, "resnet18 224 b1 infer fp32"))
    assert row == "4.00 ms (measured 6.00 ms) 8.00 ms"
    assert "the run lacks it" in told
    assert "n/a (not constructed there)" in told


def test_records_of_one_machine_all_stand_in_its_column(tmp_path: Path) -> None:
    records = [Models(tmp_path, "one").add("resnet18", ["00aa"]).run(),
               Models(tmp_path, "other").add("resnet18", ["00aa"], slowness=2.0).run()]  # fmt: skip
    told = drawn(machines(latency_by_machine(records)))
    assert " ".join(cells(told, "resnet18 224 b1 infer fp32")) == "4.00 ms, 8.00 ms"


def test_names_of_suites_and_models_are_whole_on_a_narrow_screen(tmp_path: Path) -> None:
    lines = drawn(summary(suite_run(tmp_path)), width=60).splitlines()
    at = lines.index("bricks-zoo-g2-infer-fp32-cpu")
    assert lines[at + 1].split() == ["4", "6", "10.0", "ms", "7", "70.0", "ms", "400", "ms"]
    lines = drawn(summary(three_models(tmp_path / "models")), width=80).splitlines()
    at = lines.index("resnet18-224-b1-infer-fp32-cpu")
    assert lines[at + 1].split()[:6] == ["11.0", "ms", "9.90", "ms", "11.6", "ms"]


def test_variants_of_a_model_are_told_apart_by_machine(tmp_path: Path) -> None:
    record = Models(tmp_path).add("make", ["00aa"], variant="aaa111", case="one").add("vgg11", ["00aa"])
    told = drawn(machines(latency_by_machine([record.add("make", ["11bb"], variant="bbb222", case="two").run()])))
    assert " ".join(cells(told, "make.aaa111 224 b1 infer fp32")) == "4.00 ms"
    assert " ".join(cells(told, "make.bbb222 224 b1 infer fp32")) == "2.00 ms"
    assert " ".join(cells(told, "vgg11 224 b1 infer fp32")) == "4.00 ms"


def test_what_calibration_taught_is_told_with_what_it_could_not() -> None:
    reasons = {"piece_s": "3 models tell 1 of the coefficients", "backward_start_s": "the models have none"}
    learned = Correction(0.95, 6e-6, 0.0, 0.0, reasons, ["a", "b"], 0.08, 0.03, 0.05)
    told = drawn(correction("bricks-zoo", ["a-1", "b-1"], [0.002, 0.01], [0.0025, 0.01], learned))
    assert cells(told, "a-1") == ["2.00", "ms", "2.50", "ms", "0.800"]
    assert cells(told, "factor of the plain sum") == ["0.9500"]
    assert cells(told, "each call of a module") == ["+6.00", "µs"]
    assert "±0 s (3 models tell 1 of the coefficients)" in told
    assert "plain sum 8.0 %, corrected 3.0 %" in told
