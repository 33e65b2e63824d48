"""Memory snapshots from anywhere: each is imported and shown, or refused in one line, whatever it holds."""

import json
import random
import tempfile
from pathlib import Path

from support.fuzzing import damaged_bytes, damaged_json, fuzz
from support.snapshots import snapshot, training

from charact.core.errors import UserError
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.traces.snapshots.memory_snapshots import read_snapshot
from charact.traces.snapshots.snapshot_cases import snapshot_cases
from charact.views.export.run_summary import run_summary
from charact.views.html.report import report
from charact.views.summary import summary

FEW, SHOWN_EVERY = 8, 8
"""Snapshots of an input, and how many inputs there are for one whose run is shown."""


def snapshots(rng: random.Random, directory: Path) -> Path:
    place = directory / ("shown" if rng.randrange(SHOWN_EVERY) == 0 else "read")
    place.mkdir()
    for index in range(FEW):
        content = damaged_json(rng, snapshot(training()))
        text = json.dumps(content).encode()
        (place / f"{index}.json").write_bytes(damaged_bytes(rng, text) if rng.randrange(3) == 0 else text)
    return place


def read(place: Path) -> None:
    """Do to snapshots what `charact import` does, then what users do with the run."""
    with tempfile.TemporaryDirectory(prefix="charact-fuzz-run-") as out:
        writer = RunWriter(Path(out), "snapshots", {"options": {"snapshots": [place.name]}})
        for path in sorted(place.iterdir()):
            try:
                cases = snapshot_cases(read_snapshot(path), path.stem)
            except UserError as error:
                if len(str(error).splitlines()) != 1:
                    raise
                continue
            for entry, tables in cases:
                writer.add_case(entry, tables)
        if not writer.manifest["cases"]:
            writer.discard()
            return
        writer.close("complete")
        # From here on nothing may be refused: an imported run is a sound one.
        try:
            run = load_run(writer.publish())
            assert set(run.cases["status"]) == {"ok"}
            json.dumps(run_summary(run), allow_nan=False)
            summary(run)
            if place.name == "shown":
                assert "<script>alert(1)" not in report([run])
        except UserError as error:
            raise AssertionError(f"an imported run was refused: {error}") from error


def test_damaged_snapshots_are_refused_in_a_line_or_shown() -> None:
    assert fuzz("snapshots", snapshots, read, 12) == []
