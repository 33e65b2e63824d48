import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import pairs, records
from support.damage import reseal

from charact.record.in_progress import write_manifest

Run = Callable[..., Any]
K80, P100 = "reference:northeastern-k80", "reference:northeastern-p100"
TRAIN = "resnet50-32-b8-train-fp32-cpu"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with two runs of a case, one of another size, and what is no run."""
    for name, size in [("before", 32), ("after", 32), ("other", 64)]:
        records.write_record(tmp_path / name, sizes=(size,), modes=("train",))
    records.write_record(tmp_path / "several", sizes=(64, 128), modes=("train",))
    whole = next((tmp_path / "before").iterdir())
    for name in ("broken", "newer", "torn"):
        shutil.copytree(whole, tmp_path / name)
    (tmp_path / "broken" / "iterations.parquet").write_bytes(b"PAR1")
    manifest = json.loads((whole / "run.json").read_text())
    (tmp_path / "newer" / "run.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    (tmp_path / "torn" / "run.json").write_text("{")
    shutil.copytree(tmp_path / "torn", tmp_path / "all_torn" / "torn")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no run")
    return tmp_path


def test_prints_the_published_speedups(here: Run, tmp_path: Path) -> None:
    done = here("compare", K80, P100, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["googlenet", "2.78", "2.83", "2.82"] in words
    assert ["resnet18", "2.63", "2.82", "2.87"] in words
    assert next(line for line in words if line[:1] == ["all"])[:3] == ["all", "6", "2.79"]
    assert "NVIDIA Tesla K80" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_runs_of_a_script_under_two_names_get_the_remedy(refused: Run, tmp_path: Path) -> None:
    for name in ("old", "new"):
        records.write_watched(tmp_path / name, name=name)
    refused("compare", "old", "new", said="; for a changed script, give both runs one name: charact run --name NAME\n")


def test_tells_where_one_s_own_machine_stands(here: Run, tmp_path: Path) -> None:
    for data in ("cifar10", "mnist", "kmnist"):
        pairs.write_northeastern(tmp_path / "mine", data, {"googlenet": 200.0, "resnet18": 100.0})
    done = here("compare", P100, "mine", cwd=tmp_path)
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["googlenet", "0.510", "0.457", "0.457"] in words
    assert ["resnet18", "0.694", "0.519", "0.505"] in words
    assert "AMD EPYC, 2 cores on bench-1" in done.stdout
    assert "Cases without a counterpart" not in done.stdout


def test_a_run_against_itself_is_exactly_one(here: Run, place: Path) -> None:
    done = here("compare", "before", "before", "--to", "same.csv", "--by", "case,phase,operator", "-q", cwd=place)
    assert (done.returncode, done.stdout) == (0, "Wrote same.csv\n")
    with open(place / "same.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["level"] for row in rows} == {"case", "phase", "operator"}
    assert {row["side"] for row in rows} == {"before (2)"}
    assert {float(row["ratio"]) for row in rows if row["ratio"]} == {1.0}
    assert {row["significant"] for row in rows} == {"False"}
    assert all(row["reason"] for row in rows if not row["ratio"])


def test_a_run_that_cannot_be_read_spoils_no_others(here: Run, place: Path) -> None:
    for name in ("torn", "newer"):
        shutil.copytree(place / name, place / "before" / name)
    done = here("compare", "before", "after", cwd=place)
    assert done.returncode == 0
    assert next(line.split() for line in done.stdout.splitlines() if line.startswith(TRAIN))[-3:] == [
        "no", "difference", "shown"]
    newer, torn = done.stderr.splitlines()
    assert newer.startswith("warning: a run of before is left out: before/newer was written with schema 99")
    assert torn.startswith("warning: a run of before is left out: before/torn/run.json is corrupt")
    assert torn.endswith("restore it from a copy, or move the run away")


def spoil(run: Path, what: str, value: Any) -> None:
    """Change a manifest by hand: `software.torch`, `cases.0.data`."""
    manifest = json.loads((run / "run.json").read_text())
    *path, last = what.split(".")
    place = manifest
    for key in path:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    write_manifest(run, manifest)


@pytest.mark.parametrize(("what", "value"), [
    ("software.torch", 5), ("machine.cpu.num_usable_cores", "x"), ("options.channels_last", [1]), ("reference", "x"),
])
def test_a_manifest_that_was_changed_is_one_line(refused: Run, place: Path, what: str, value: Any) -> None:
    (run,) = (place / "after").iterdir()
    spoil(run, what, value)
    refused("compare", "before", f"after/{run.name}", cwd=place, said="restore it from a copy")


@pytest.mark.parametrize(("what", "value"), [("status", None), ("device_name", ["a"]), ("passes", 5)])
def test_a_case_that_is_damaged_is_named_and_the_others_are_compared(here: Run, place: Path, what: str,
                                                                     value: Any) -> None:
    (run,) = (place / "after").iterdir()
    spoil(run, f"cases.0.{what}", value)
    done = here("compare", "before", f"after/{run.name}", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "damaged" in done.stdout


@pytest.mark.parametrize(("column", "value"), [("host_s", 1e300), ("phase", "foo")])
def test_a_table_that_was_changed_is_one_line(refused: Run, place: Path, column: str, value: Any) -> None:
    (run,) = (place / "after").iterdir()
    frame = pd.read_parquet(run / "iterations.parquet")
    frame.assign(**{column: value}).to_parquet(run / "iterations.parquet")
    reseal(run)
    refused("compare", "before", "after", "--by", "case,phase", cwd=place,
            said=f"iterations.parquet is corrupt (column '{column}': ")


def test_a_folder_that_cannot_be_read_is_told(here: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir, hidden = os.scandir, str(Path("before", "hidden"))
    shutil.copytree(next((place / "before").iterdir()), place / hidden)

    def refusing(path: Any) -> Any:
        if str(path) == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    done = here("compare", "before", "after", cwd=place)
    assert (done.returncode, done.stderr) == (
        0, "warning: a run of before is left out: before/hidden: permission denied\n")


@pytest.mark.parametrize("suffix", [pytest.param("html", marks=pytest.mark.slow), "md", "csv"])
def test_writes_a_file_and_overwrites_none_unasked(here: Run, place: Path, suffix: str) -> None:
    arguments = ["compare", "before", "after", "--quiet", "--to", f"out.{suffix}"]
    assert here(*arguments, cwd=place).stdout == f"Wrote out.{suffix}\n"
    assert TRAIN in (place / f"out.{suffix}").read_text(encoding="utf-8")
    again = here(*arguments, cwd=place)
    assert (again.returncode, again.stderr) == (
        2, f"error: out.{suffix} exists: --force overwrites it, --to names another file\n")
    here(*arguments, "--force", cwd=place, status=0)


@pytest.mark.parametrize(("arguments", "said"), [
    (["before"], "give at least two groups of runs, as in `charact compare runs/before runs/after`: each is a run "
                 "directory, a directory of runs, or reference:NAME (aalto-1, aalto-2, aalto-3, aalto-4, "
                 "northeastern-k80, northeastern-p100)"),
    (["before", "absent"], "absent does not exist: give a run directory, a directory of runs, or reference:NAME"),
    (["before", "file"], "file is a file: give a run directory, a directory of runs, or reference:NAME"),
    (["before", "empty"], "empty has no finished run: give a run directory, a directory of runs, or reference:NAME"),
    (["before", "reference:k80"], "there is no reference 'k80': choose from aalto-1, aalto-2, aalto-3, aalto-4, "
                                  "northeastern-k80, northeastern-p100"),
    (["before", "newer"], "newer was written with schema 99, this charact reads up to 1: upgrade charact"),
    (["before", "broken"], "broken/iterations.parquet was changed since it was written (its checksum does not match): "
                           "restore it from a copy, or move the run away"),
    (["before", "torn"], "torn/run.json is corrupt (Expecting property name enclosed in double "
                         "quotes: line 1 column 2 (char 1)): restore it from a copy, or move the run away"),
    (["before", "all_torn"], "all_torn has no run that can be read: all_torn/torn/run.json is corrupt "
                             "(Expecting property name enclosed in double quotes: line 1 column 2 "
                             "(char 1)): restore it from a copy, or move the run away"),
    (["before", "several"], f"nothing in common: before has {TRAIN}; several has resnet50-64-b8-train-fp32-cpu, "
                            "resnet50-128-b8-train-fp32-cpu (nearest: input size 32 here, 64 there); cases match "
                            "where workload, sizes, mode, precision and data are the same"),
    (["before", "after", "--by", "phases"], "--by: 'phases' is not one of case, phase, operator_type, operator, layer, "
                                            "kernel, problem, brick, layer_type"),
    (["before", "after", "--to", "out.pdf"], "--to out.pdf: its name must end in .html, .md, .csv"),
    (["before", "after", "--to", "absent/out.md"], "cannot write absent/out.md (no such file or directory): choose "
                                                   "another place"),
    (["before", "new="], "'new=': write a label as in before=runs/20261121-100000-resnet50-0a1b2c"),
])
def test_bad_input_gets_one_line(refused: Run, place: Path, arguments: list[str], said: str) -> None:
    refused("compare", *arguments, cwd=place, said=f"error: {said}\n")
