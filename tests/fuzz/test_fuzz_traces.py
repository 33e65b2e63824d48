"""Traces from anywhere: each is imported and shown, or refused in one line, whatever it holds."""

import io
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support.fuzzing import fuzz
from support.hostile_traces import MOST_BYTES, bases, hostile_trace

from charact.analysis.profile.breakdown import phase_breakdown
from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.traces.cases import trace_case
from charact.traces.counters import described
from charact.traces.reader import read_trace
from charact.views.export.tables import export
from charact.views.html.report import report
from charact.views.summary import summary
from charact.views.tensorboard.records import Records
from charact.views.tensorboard.scalars import write_scalars
from charact.views.terminal.renderer import drawn

FEW, MANY = 4, 40
"""Traces of an input: one record of many cases is read in a fraction of the time of as many records."""
DRAWN_EVERY = 20


def traces(rng: random.Random, directory: Path) -> Path:
    return _made(rng, directory / ("drawn" if rng.randrange(DRAWN_EVERY) == 0 else "read"), MANY)


def few_traces(rng: random.Random, directory: Path) -> Path:
    return _made(rng, directory / "drawn", FEW)


def _made(rng: random.Random, place: Path, number: int) -> Path:
    place.mkdir()
    for index in range(number):
        hostile_trace(rng, place, f"{index:02}")
    return place


def read(place: Path) -> None:
    """Do to traces what `charact import` does, then what users do with the run."""
    with ExitStack() as cleanup:
        out = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="charact-fuzz-run-")))
        cleanup.enter_context(limited_to(MOST_BYTES))
        writer = RunWriter(out / "runs", "traces", {
            "command_line": ["charact", "import"], "started": "2026-11-23T10:00:00+0000", "machine": {},
            "software": {"charact": "1"}, "counters": described(), "options": {"traces": [place.name]}})
        for path in sorted(place.iterdir()):
            try:
                trace = read_trace(path)
                entry, tables = trace_case(trace, path.name)
            except UserError as error:
                if len(str(error).splitlines()) != 1:
                    raise
                continue
            writer.manifest["software"] |= trace.versions
            writer.add_case(entry, tables)
        if not writer.manifest["cases"]:
            writer.discard()
            return
        writer.close("complete")
        # From here on nothing may be refused: an imported run is a sound one.
        try:
            show(load_run(writer.publish()), out, in_full=place.name == "drawn")
        except UserError as error:
            raise AssertionError(f"an imported run was refused: {error}") from error


def show(run: Run, out: Path, *, in_full: bool) -> None:
    """Do what users do with a run; what is written for them goes to `out`."""
    text = io.StringIO()
    Console(file=text, width=100).print(drawn(summary(run)))
    text.getvalue().encode()
    shares = phase_breakdown(run)
    assert shares["share_frac"].between(0, 1 + 1e-9).all(), shares
    sums = shares.groupby("case")["share_frac"].sum()
    assert sums.between(1 - 1e-6, 1 + 1e-6).all(), sums
    numbers = [run.table(name).select_dtypes("number") for name in run.manifest["tables"]]
    assert not any(bool((frame.abs() == float("inf")).any(axis=None)) for frame in numbers)
    occupancies = pd.concat([run.kernels["occupancy_frac"], pd.Series([0.0])])
    assert occupancies.dropna().between(0, 1).all()
    if in_full:
        report([run]).encode()
        write_scalars(run, run.path)
        for form in ("csv", "json", "parquet"):
            export(run, form, out / form)
        records = Records(str(run.path.parent))
        for entry in records.listing():
            str(records.sections(entry["id"])).encode()


@pytest.mark.parametrize(("make", "count"), [
    pytest.param(few_traces, 1, id="10"),
    pytest.param(traces, 750, id="30000", marks=pytest.mark.slow),
])
def test_a_trace_is_imported_or_refused_in_one_line(make: object, count: int) -> None:
    bases()  # made once, not in each child
    assert fuzz("traces", make, read, count) == []  # type: ignore[arg-type]
