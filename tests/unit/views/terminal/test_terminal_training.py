"""The terminal's summary of trainings and inferences."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support import records
from support.terminal import shown

from charact.record.writer import RunWriter
from charact.views.document import sparkline
from charact.views.tables.format import OF_NO_TASK


def test_a_training(tmp_path: Path) -> None:
    text = shown(records.write_training(tmp_path), width=120)
    first = next(line for line in text.splitlines() if line.startswith("resnet18-32-b10"))
    assert first.split()[1:] == ["62.5", "s", "800", "accuracy", "96.0", "%", "(epoch", "4)", "49.5", "s"]
    assert "62.5 s for 5 epochs, training 50.0 s, validation 10.0 s, checkpointing 2.50 s" in text
    assert "best accuracy, epoch 4: 96.0 %; to accuracy 95.0\N{NO-BREAK SPACE}%: 49.5 s, in epoch 4" in text
    assert "T training 50.0 s 80.0 %   V validation 10.0 s 16.0 %   C checkpointing 2.50 s 4.0 %" in text
    assert "F forward 20.0 s 32.0 %" in text
    unbroken = "accuracy  58.0 % ▁▅▇██ 93.0 %  60.0 % ▁▅▇██ 95.0 %".replace(" %", "\N{NO-BREAK SPACE}%")
    assert unbroken in text


def test_a_training_that_diverged_keeps_what_it_had(tmp_path: Path) -> None:
    text = shown(records.write_training(tmp_path), width=110)
    assert "resnet18-32-b40-train-fp32-cpu  diverged: the loss was nan in iteration 17 of epoch 3" in text
    assert "25.0 s for 2 of 5 epochs" in text
    assert "n/a (not reached in 2 epochs)" in text


def test_an_inference(tmp_path: Path) -> None:
    text = shown(records.write_inference(tmp_path), width=110)
    first = next(line for line in text.splitlines() if line.startswith("resnet18-32-b1-"))
    assert first.split()[1:] == ["5.65", "s", "5.26", "s", "19.8", "50.5", "ms", "99.0", "ms"]
    assert "5.65 s with a cold load, 5.26 s with a warm one" in text
    assert "batch, p90: 90.1 ms; batch, p95: 95.1 ms; batches: 100; loss: 0.250; accuracy: 93.0 %" in text
    assert "R read 400 ms 7.1 %" in text


@pytest.mark.parametrize(("data", "told"), [("synthetic", True), ("cifar10", False)])
def test_what_is_learned_of_synthetic_data_is_told_to_be_nothing(tmp_path: Path, data: str, told: bool) -> None:
    for name, entry, tables in (("t", records.training_entry("r", 8), records.training_tables(8)),
                                ("i", records.inference_entry("r", 8), records.inference_tables(8))):
        writer = RunWriter(tmp_path / name, "r", {})
        writer.add_case({**entry, "data": data}, tables)
        assert (OF_NO_TASK in shown(writer.close("complete"), width=110)) is told


def test_a_load_that_could_not_be_cold(tmp_path: Path) -> None:
    entry, tables = records.inference_entry("r", 8), records.inference_tables(8)
    entry["passes"]["inference"] |= {"cold_reason": "the page cache cannot be dropped", "compile_s": 7.5}
    tables["stages"] = [row for row in tables["stages"] if row["stage"] != "load_cold"]
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(entry, tables)
    text = shown(writer.close("complete"))
    assert "  5.26 s with a warm load" in text
    assert "cold load n/a (the page cache cannot be dropped)" in text
    assert "compiled in 7.50 s" in text
    assert "prediction, cold" not in text


@pytest.mark.parametrize("write", [records.write_training, records.write_inference], ids=["training", "inference"])
@pytest.mark.parametrize("table", ["stages", "metrics", None])
def test_no_line_is_too_long_and_nothing_is_nan(write: Callable[[Path], Path], table: str | None,
                                                tmp_path: Path) -> None:
    path = write(tmp_path)
    if table is not None:
        records.drop_table(path, table)
    text = shown(path)
    assert max(map(len, text.splitlines())) <= 80
    assert "nan" not in text.replace("loss was nan", "")


def test_a_compiled_profile_says_what_compiling_took(tmp_path: Path) -> None:
    entry = records.case_entry("r", 32, "train")
    entry["passes"]["timing"]["compile_s"] = 12.34
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(entry, records.case_tables("train", 32))
    assert "compiled in 12.3 s" in shown(writer.close("complete"), width=120)


def test_a_sparkline_is_as_high_as_its_values_and_ends_with_the_last() -> None:
    assert sparkline([0.0, 3.5, 7.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    long = sparkline([*range(99), 0.0])
    assert len(long) == 20
    assert long[-1] == "▁"
