"""Native TensorBoard scalars of a run, to compare runs in Time Series."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary import Output, Writer
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

from charact.analysis.memory.by_input_size import named_series
from charact.analysis.profile.case_summary import case_summary
from charact.core.files import atomic_write
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.case_kind import all_kinds
from charact.views.section import Scalar, all_sections

EVENTS_FILE = "events.out.tfevents.0000000000.charact"
"""Name of the file: TensorBoard searches for `tfevents`. It is constant, to replace scalars of the same run."""

_NO_TIME = "1970-01-01T00:00:00+0000"
"""Start time of a run if the record has none."""
_SERIES = ["workload", "variant", "batch_size", "mode", "precision", "device"]


class _EventsFile(Output):  # type: ignore[misc]  # TensorBoard has no types
    """Writes each event immediately, so that a full disk raises here; TensorBoard's own output loses such errors.

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
    """Yield the points of a run, in the order of its cases; the same case has the same tags in every run.

    `<case>/iteration_s` and `<case>/phase/<phase>_s` by iteration; `<case>/<metric>/<stage>` (training or validation)
    and `<case>/epoch_s/<stage>`, the stage's wall time, by epoch; `samples_per_s/<series>`,
    `peak_memory_bytes/<series>` (measured), `predicted_peak_memory_bytes/<series>` and `constructed_latency_s/<series>`
    by input size (pixels or tokens), where the cases of a series differ in input size only; `<case>/suite_s`, every
    brick of a suite once, by round; of an operation `<case>/call_s/<direction>` and `<case>/flop_per_s/<direction>`, by
    repetition.
    TensorBoard stores values as 32-bit floats (7 digits); missing values have no point.
    """
    for section in all_sections():
        yield from section.scalars(run)
    for kind in all_kinds():
        yield from _by_size(run, kind.by_size(run))


def _by_size(run: Run, found: Mapping[str, "pd.Series[float]"]) -> Iterator[Scalar]:
    """Yield points of cases that differ in their input size only."""
    cases = case_summary(run).sort_values("input_size", kind="stable").dropna(subset=["input_size"])
    series_of = named_series(run).set_index("case")
    for case in cases.to_dict("records"):  # cases of scripts have no input size
        workload, variant, batch_size, *rest = (case[name] for name in _SERIES)
        settings, ranks = series_of.loc[case["case"], ["settings", "ranks"]]
        others = filter(None, [settings.replace(", ", "-").replace(" ", "_"),
                               ranks.replace(" over ", "x").removesuffix(" ranks")])
        series = "-".join(map(str, [workload, variant, f"b{batch_size}", *rest, *others]))
        for name, values in found.items():
            value = values.get(case["case"])
            if value is not None and pd.notna(value):
                yield Scalar(f"{name}/{series}", case["input_size"], float(value))


def write_scalars(run: Run, directory: Path) -> Path:
    """Write a run's scalars atomically into an events file in `directory`; return the file."""
    run = presentable(run)
    path = directory / EVENTS_FILE
    started = datetime.fromisoformat(run.manifest.get("started") or _NO_TIME).timestamp()
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        writer = Writer(_EventsFile(file, started))
        for point in scalars(run):
            writer.add_scalar(point.tag, point.value, point.step, wall_time=started)
        writer.close()
    return path
