"""The terminal's line of counters."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import counter_records as made

from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.document import Line
from charact.views.sections.profile.counters import SECTION
from charact.views.terminal.renderer import summary


def line_of(run: Run) -> str:
    return "".join(line.text for line in SECTION.summary(run, run.entries[0].case) if isinstance(line, Line))


def run_of(tmp_path: Path, entry: dict[str, Any], *rows: dict[str, Any]) -> Run:
    writer = RunWriter(tmp_path, "r", made.described())
    writer.add_case(entry, {"counters": list(rows)})
    return load_run(writer.close("complete"))


def test_what_is_known_of_a_gpu_and_of_a_cpu(tmp_path: Path) -> None:
    of_gpu = line_of(load_run(made.write_gpu(tmp_path)))
    assert of_gpu == "12.0 % of the CPU busy, GPU 95.0 % busy, 300 W, 30.0 J an iteration"
    assert line_of(load_run(made.write_cpu(tmp_path))) == "93.0 % of the CPU busy, 25.0 W, 2.50 J an iteration"


def test_power_and_energy_are_told_of_each_device(tmp_path: Path) -> None:
    """They are not summed up: of one of them the energy is not known."""
    of_gpu = made.row("amd", "power_w", 300.0)
    of_cpu = made.row("rapl", "energy_j", 50.0) | {"device": "cpu"}
    told = line_of(run_of(tmp_path, made.gpu_entry(), of_gpu, of_cpu))
    assert told == "cuda:0 300 W, cpu 25.0 W, 2.50 J an iteration"


@pytest.mark.parametrize(("source", "told"), [
    ("gpm", "GPU 40.0 % busy"), ("amd", "GPU 40.0 % busy"), ("kineto", "GPU 40.0 % busy"), ("pm", ""),
])  # fmt: skip
def test_the_first_source_that_tells_how_busy_the_gpu_is(tmp_path: Path, source: str, told: str) -> None:
    assert line_of(run_of(tmp_path, made.gpu_entry(), made.row(source, "utilization_frac", 0.4))) == told


def test_there_is_no_line_where_nothing_was_read(tmp_path: Path) -> None:
    assert SECTION.summary(run_of(tmp_path, made.gpu_entry()), "resnet50-224-b8-train-bf16-cuda") == []


def test_the_line_stands_in_the_summary_and_fits_it(tmp_path: Path) -> None:
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(summary(load_run(made.write_gpu(tmp_path))))
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert "12.0 % of the CPU busy, GPU 95.0 % busy, 300 W, 30.0 J an iteration" in lines
