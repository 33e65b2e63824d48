"""Damaged event logs of real watched programs: what is before the damage is read, and nothing else goes wrong."""

import contextlib
import io
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from support.forked import Server
from support.fuzzing import damaged_bytes, damaged_json, fuzz

from charact.commands import recover
from charact.commands._shared.runs import read_run
from charact.record.in_progress import NOTES, SLICES
from charact.record.reader import load_run
from charact.record.schema import TABLES
from charact.record.writer import RunWriter
from charact.views.html.report import report
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn

SCRIPTS = Path(__file__).parents[1] / "scripts"
PROGRAMS = {
    "plain_loop": ["plain_loop.py"], "evaluation": ["evaluation.py"], "gan": ["gan.py"],
    "updated_by_hand": ["updated_by_hand.py"], "inference_only": ["--sample", "inference_only.py"],
    "passes": ["--iterations", "6", "--passes", "operators,memory,counters", "yardstick_mnist.py"],
}
"""Options and scripts; each leaves a hidden run with the event log that it wrote to its end."""
RECORD = struct.Struct("<BBBqqqqq")
ODD_INTEGERS = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63)]


def recorded(names: Iterable[str], tmp_path_factory: pytest.TempPathFactory, server: Server) -> list[Path]:
    """Hidden runs of watched programs, one each."""
    found = []
    for name in names:
        *options, script = PROGRAMS[name]
        place = tmp_path_factory.mktemp(name)
        done = server.charact("run", *options, SCRIPTS / script, cwd=place, stays_hidden=True, TRUTH=os.devnull)
        assert done.returncode == 0, done
        (hidden,) = (place / "runs").iterdir()
        manifest = json.loads((hidden / "run.json").read_text())
        (hidden / "run.json").write_text(json.dumps(manifest | {"hostname": "elsewhere"}))  # looks for no facts
        found.append(hidden)
    return found


def maker(logs: list[Path]) -> Callable[[random.Random, Path], Path]:
    """Writes copies of the runs: one in ten whole, the others with damaged bytes, records or values."""
    def make(rng: random.Random, directory: Path) -> Path:
        hidden = directory / rng.choice(logs).name
        shutil.copytree(next(log for log in logs if log.name == hidden.name), hidden)
        damage = rng.choice([None, damaged_files, damaged_files, damaged_slices, damaged_slices, damaged_notes,
                             damaged_notes, damaged_notes, damaged_manifest, zeros_at_the_end])
        if damage is not None:
            damage(rng, hidden)
        return hidden

    return make


def damaged_files(rng: random.Random, hidden: Path) -> None:
    for name in rng.choice([[SLICES], [NOTES], [SLICES, NOTES]]):
        (hidden / name).write_bytes(damaged_bytes(rng, (hidden / name).read_bytes()))


def zeros_at_the_end(rng: random.Random, hidden: Path) -> None:
    path = hidden / rng.choice([SLICES, NOTES])
    content = path.read_bytes()
    kept = rng.randrange(len(content))
    path.write_bytes(content[:kept] + bytes(len(content) - kept))


def damaged_slices(rng: random.Random, hidden: Path) -> None:
    """Fields of records replaced, records removed, repeated, swapped or put in."""
    path = hidden / SLICES
    content = path.read_bytes()
    records = [list(record) for record in RECORD.iter_unpack(content[:len(content) // RECORD.size * RECORD.size])]
    for _ in range(rng.choice([1, 1, 2, 10])):
        at = rng.randrange(len(records))
        kind = rng.choice(["field", "field", "field", "shift", "remove", "repeat", "swap", "kinds", "no time"])
        if kind == "field":
            field = rng.randrange(8)
            records[at][field] = rng.randrange(256) if field < 3 else rng.choice([*ODD_INTEGERS, rng.getrandbits(62)])
        elif kind == "shift":
            records[at][rng.choice([3, 4, 6, 7])] += rng.choice([-1, 1]) * rng.randrange(10**rng.randrange(1, 12))
        elif kind == "remove" and len(records) > 1:
            del records[at:at + min(rng.choice([1, 5, 100]), len(records) - 1)]
        elif kind == "repeat":
            records[at:at] = [list(record) for record in records[at:at + rng.choice([1, 5, 100])]]
        elif kind == "swap":
            other = rng.randrange(len(records))
            records[at], records[other] = records[other], records[at]
        elif kind == "kinds":  # a valid record, but another program
            for record in records[at:at + rng.choice([1, 20, 1000])]:
                record[0], record[1], record[2] = rng.randint(1, 14), rng.randrange(16), rng.randrange(8)
        else:  # slices that take no time at all
            for record in records:
                record[3] = record[4] = records[0][3]
    clipped = [[*record[:3], *(max(-(2**63), min(2**63 - 1, value)) for value in record[3:])] for record in records]
    path.write_bytes(b"".join(RECORD.pack(*record) for record in clipped))


def damaged_notes(rng: random.Random, hidden: Path) -> None:
    """Values of notes replaced, and notes removed, repeated or put in another order."""
    path = hidden / NOTES
    notes = [json.loads(line) for line in path.read_bytes().splitlines()]
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(notes))
        kind = rng.choice(["value", "value", "value", "value", "remove", "repeat", "swap"])
        if kind == "value":
            notes[at] = damaged_json(rng, notes[at])
        elif kind == "remove" and len(notes) > 1:
            del notes[at]
        elif kind == "repeat":
            notes.insert(rng.randrange(len(notes)), notes[at])
        else:
            other = rng.randrange(len(notes))
            notes[at], notes[other] = notes[other], notes[at]
    path.write_text("".join(json.dumps(note) + "\n" for note in notes))


def damaged_manifest(rng: random.Random, hidden: Path) -> None:
    """The options of the program replaced, by which its event log is read."""
    path = hidden / "run.json"
    manifest = json.loads(path.read_text())
    manifest["options"] = damaged_json(rng, manifest["options"], non_finite=False)
    path.write_text(json.dumps(manifest))


def read(hidden: Path) -> None:
    """What `charact report --partial` does with a run, and what `charact recover` does with a copy of it."""
    chance = random.Random((hidden / SLICES).read_bytes()).random()  # drawing takes a second
    rarely = chance < 0.01
    run = read_run(hidden, partial=True)
    for table in TABLES:
        run.table(table)
    if chance < 0.1:
        drawn(summary(run))
    if rarely:
        report([run])
    copy = hidden.parents[1] / f"{hidden.parent.name}-copy" / hidden.name
    shutil.copytree(hidden, copy)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            recover._recover(copy, quiet=True) if rarely else tables_of(copy)
    finally:
        shutil.rmtree(copy.parent)


def tables_of(copy: Path) -> None:
    """Recover a run up to its views, and read it."""
    writer = RunWriter.reopen(copy)
    recover._close(writer)
    writer.publish()
    run = load_run(writer.final)
    assert not run.cases.empty
    for table in run.manifest["tables"]:
        run.table(table)


@pytest.mark.parametrize(("count", "names"), [
    (4, ["gan", "passes"]), pytest.param(5_000, PROGRAMS, marks=pytest.mark.slow)])
def test_event_logs(count: int, names: Iterable[str], tmp_path_factory: pytest.TempPathFactory,
                    server: Server) -> None:
    logs = recorded(names, tmp_path_factory, server)
    assert fuzz("event-log", maker(logs), read, count) == []
