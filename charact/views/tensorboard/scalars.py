"""Native TensorBoard scalars of a run, so that runs compare in Time Series."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pandas as pd
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary import Output, Writer
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

from charact.analysis.bricks.record_tables import model_summary
from charact.analysis.bricks.run_tables import suite_times
from charact.analysis.memory.composition import memory_peaks
from charact.analysis.operations.timings import call_times
from charact.analysis.profile.case_summary import case_summary, iteration_times, phase_times
from charact.analysis.training.stages import TRAINING_STAGES, learning_curves, stage_times
from charact.core.files import whole
from charact.record.presentable import presentable
from charact.record.reader import Run

EVENTS_FILE = "events.out.tfevents.0000000000.charact"
"""Name of the file: TensorBoard looks for `tfevents`. It never changes, so writing a run again replaces its scalars."""

_NO_TIME = "1970-01-01T00:00:00+0000"
"""Stands for the time at which a run began where the record does not say."""
_BY_SIZE = {"samples_per_s": "samples_per_s", "peak_memory_bytes": "peak_bytes",
            "predicted_peak_memory_bytes": "predicted_bytes", "constructed_latency_s": "constructed_s"}  # fmt: skip
_SERIES = ["workload", "variant", "batch_size", "mode", "precision", "device"]


class Scalar(NamedTuple):
    """A point of a series: `step` is an iteration's or an epoch's number, or an input size where no case is named."""

    tag: str
    step: int
    value: float


class _EventsFile(Output):  # type: ignore[misc]  # TensorBoard has no types
    """Writes each event at once, so that a full disk is an error here; TensorBoard's own output loses it in a thread.

    *Source*: the record format is TensorBoard's, written by its `RecordWriter`.
    """

    def __init__(self, file: BinaryIO, wall_time: float) -> None:
        self._records = RecordWriter(file)
        self._records.write(event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())

    def emit_scalar(self, *, plugin_name: str, tag: str, data: Any, step: Any, wall_time: float,
                    tag_metadata: bytes | None = None, description: str | None = None) -> None:
        """Append a point."""
        metadata = summary_pb2.SummaryMetadata(
            plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin_name, content=tag_metadata),
            summary_description=description, data_class=summary_pb2.DataClass.DATA_CLASS_SCALAR,
        )  # fmt: skip
        event = event_pb2.Event(wall_time=wall_time, step=step)
        event.summary.value.add(tag=tag, tensor=tensor_util.make_tensor_proto(data), metadata=metadata)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Flush the file."""
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()


def scalars(run: Run) -> Iterator[Scalar]:
    """Points of a run, in the order of its cases; the same case has the same tags in every run.

    `<case>/iteration_s` and `<case>/phase/<phase>_s` by iteration; `<case>/<metric>/<stage>` (training or validation)
    and `<case>/epoch_s/<stage>`, the stage's wall time, by epoch; `samples_per_s/<series>`,
    `peak_memory_bytes/<series>` (measured), `predicted_peak_memory_bytes/<series>` and `constructed_latency_s/<series>`
    by input size (pixels or tokens), a series being cases that differ in input size only; `<case>/suite_s`, every brick
    of a suite once, by round; of an operation `<case>/call_s/<direction>` and `<case>/flop_per_s/<direction>`, by
    repetition.
    TensorBoard keeps values as 32-bit floats (7 digits); what a case lacks has no point.
    """
    for row in iteration_times(run).to_dict("records"):
        yield Scalar(f"{row['case']}/iteration_s", row["iteration"], row["wall_s"])
    for row in phase_times(run).to_dict("records"):
        yield Scalar(f"{row['case']}/phase/{row['phase']}_s", row["iteration"], row["time_s"])
    yield from _epochs(run)
    for row in suite_times(run).to_dict("records"):
        yield Scalar(f"{row['case']}/suite_s", row["round"], row["suite_s"])
    yield from _calls(run)
    predicted = memory_peaks(run).set_index("case")["predicted_bytes"]
    constructed = model_summary(run).set_index("case")["latency_s"]
    cases = case_summary(run).assign(predicted_bytes=lambda rows: rows["case"].map(predicted).astype("float64"),
                                     constructed_s=lambda rows: rows["case"].map(constructed).astype("float64"))
    for case in cases.sort_values("input_size", kind="stable").to_dict("records"):
        workload, variant, batch_size, *rest = (case[name] for name in _SERIES)
        series = "-".join(map(str, [workload, variant, f"b{batch_size}", *rest]))
        for name, column in _BY_SIZE.items():
            if pd.notna(case[column]) and pd.notna(case["input_size"]):  # a watched program does not tell its size
                yield Scalar(f"{name}/{series}", case["input_size"], case[column])


def _calls(run: Run) -> Iterator[Scalar]:
    """Time of a call of each operation in each direction, and its rate where FLOP are counted."""
    for row in call_times(run).to_dict("records"):
        for tag, name in (("call_s", "time_s"), ("flop_per_s", "flop_per_s")):
            if pd.notna(row[name]):
                yield Scalar(f"{row['case']}/{tag}/{row['direction']}", row["repetition"], row[name])


def _epochs(run: Run) -> Iterator[Scalar]:
    for row in learning_curves(run).dropna(subset=["value"]).to_dict("records"):
        yield Scalar(f"{row['case']}/{row['metric']}/{row['stage']}", row["epoch"], row["value"])
    for row in stage_times(run).to_dict("records"):
        if row["stage"] in TRAINING_STAGES:
            yield Scalar(f"{row['case']}/epoch_s/{row['stage']}", row["number"], row["wall_s"])


def write_scalars(run: Run, directory: Path) -> Path:
    """Write a run's scalars into an events file in `directory`, whole or not at all; returns the file.

    Raises:
        UserError: the directory is not writable, or the disk is full.
    """
    run = presentable(run)
    path = directory / EVENTS_FILE
    started = datetime.fromisoformat(run.manifest.get("started") or _NO_TIME).timestamp()
    with whole(path) as temporary, temporary.open("wb") as file:
        writer = Writer(_EventsFile(file, started))
        for point in scalars(run):
            writer.add_scalar(point.tag, point.value, point.step, wall_time=started)
        writer.close()
    return path
