import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import records
from support.event_files import read
from support.operation_records import TIMES, Operations

from charact.core.errors import UserError
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.views.tensorboard.scalars import EVENTS_FILE, write_scalars

TRAIN = "resnet50-224-b8-train-fp32-cpu"
PEAK = "peak_memory_bytes/resnet50-imagenet-b8-train-fp32-cpu"


def test_iterations_and_phases_by_iteration(record: Path) -> None:
    assert write_scalars(load_run(record), record) == record / EVENTS_FILE
    found = read(record)
    wall_s = sum(records.TRAIN_PHASES.values())
    assert [step for step, _ in found[f"{TRAIN}/iteration_s"]] == list(range(10))
    assert [value for _, value in found[f"{TRAIN}/iteration_s"]] == pytest.approx(
        [wall_s * (1 + 0.001 * i) for i in range(10)], rel=1e-6
    )
    for phase, seconds in records.TRAIN_PHASES.items():
        assert found[f"{TRAIN}/phase/{phase}_s"][0] == (0, pytest.approx(seconds, rel=1e-6))


def test_peak_memory_and_throughput_by_input_size(record: Path) -> None:
    write_scalars(load_run(record), record)
    found = read(record)
    table = records.case_tables("train", 32)["memory"], records.case_tables("train", 224)["memory"]
    peaks = [sum(row["bytes"] for row in rows if row["kind"] == "peak") for rows in table]
    assert found[PEAK] == [(32, pytest.approx(peaks[0])), (224, pytest.approx(peaks[1]))]
    median_s = sum(records.TRAIN_PHASES.values()) * 1.0045
    rates = found["samples_per_s/resnet50-imagenet-b8-train-fp32-cpu"]
    assert rates == [(32, pytest.approx(8 / median_s)), (224, pytest.approx(8 / median_s))]


def test_epochs_of_a_training(tmp_path: Path) -> None:
    path = records.write_training(tmp_path, diverged=False)
    write_scalars(load_run(path), path)
    found = read(path)
    case = "resnet18-32-b20-train-fp32-cpu"
    assert found[f"{case}/accuracy/validation"] == [
        (epoch, pytest.approx(value)) for epoch, value in enumerate(records.ACCURACIES, start=1)
    ]
    assert found[f"{case}/loss/training"][4] == (5, pytest.approx(0.4))
    assert found[f"{case}/epoch_s/training"] == [(epoch, 20.0) for epoch in range(1, 6)]
    assert found[f"{case}/epoch_s/checkpointing"][0] == (1, 1.0)
    assert len(found) == 2 * (4 + 3)


def test_calls_and_rates_of_operations_by_repetition(tmp_path: Path) -> None:
    record = Operations(tmp_path).add("gemm:8x8x8", {"forward": 0.01, "backward_input": 0.02}, flop=1e9)
    run = record.add("copy:9", {"forward": 0.03}, flop=None).run()
    write_scalars(run, run.path)
    found = read(run.path)
    assert found["gemm-8x8x8-fp32-cpu/call_s/forward"] == [
        (number, pytest.approx(0.01 * factor)) for number, factor in enumerate(TIMES)]
    assert found["gemm-8x8x8-fp32-cpu/flop_per_s/backward_input"] == [
        (number, pytest.approx(5e10 / factor)) for number, factor in enumerate(TIMES)]
    assert len(found["copy-9-fp32-cpu/call_s/forward"]) == len(TIMES)
    assert len(found) == 2 * 2 + 1


def test_a_metric_without_a_value_has_no_point(tmp_path: Path) -> None:
    tables = records.training_tables(10, num_epochs=2)
    tables["metrics"].append({"stage": "validation", "number": 1, "metric": "bleu", "reason": "no sacrebleu here"})
    writer = RunWriter(tmp_path, "r", {"started": "2026-11-21T10:00:00+0000"})
    writer.add_case(typed_entry(records.training_entry("r", 10, num_epochs=2)), tables)
    run = load_run(writer.close("complete"))
    write_scalars(run, run.path)
    assert not [tag for tag in read(run.path) if "bleu" in tag]


def test_runs_of_the_same_cases_share_their_tags(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        run = records.write_record(tmp_path)
        write_scalars(load_run(run), run)
        found.append(read(run))
    assert found[0] == found[1]
    assert len(found[0]) == 4 + 2 * 6 + 2 * 3 + 4


def test_writing_again_replaces_the_file(record: Path) -> None:
    write_scalars(load_run(record), record)
    first = (record / EVENTS_FILE).read_bytes()
    write_scalars(load_run(record), record)
    assert (record / EVENTS_FILE).read_bytes() == first
    assert [path.name for path in record.iterdir() if "events" in path.name] == [EVENTS_FILE]


def test_failed_cases_have_no_points(tmp_path: Path) -> None:
    run = records.write_record(tmp_path, sizes=(), oom=True)
    write_scalars(load_run(run), run)
    assert read(run) == {}


def test_a_disk_that_fills_is_one_line_and_leaves_nothing(record: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from charact.record.reader import load_run\n"
        "from charact.views.tensorboard.scalars import write_scalars\n"
        "from charact.core.errors import UserError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "run = load_run(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n    write_scalars(run, run.path)\n"
        "except UserError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(record)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("no space left while writing")
    assert done.stderr == ""
    assert not [name for name in os.listdir(record) if "events" in name]


def test_a_directory_that_is_not_there_is_refused(record: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match="cannot write"):
        write_scalars(load_run(record), file)


@pytest.mark.slow
def test_needs_neither_torch_nor_tensorflow() -> None:
    code = ("import sys, charact.views.tensorboard.scalars;"
            "print(sorted({'torch', 'tensorflow'} & set(sys.modules)))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
