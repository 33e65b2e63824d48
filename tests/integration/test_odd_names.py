"""Names of files and of models that are not UTF-8, hold controls, or are very long."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import records
from support.hostile import EVIL, assert_harmless

from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.views.html.report import report
from charact.views.tensorboard.records import Records

Here = Callable[..., Any]
ODD = os.fsdecode(b"caf\xe9")
"""A name as Python gets it from the command line or a directory, in Latin-1."""
SHOWN = r"caf\xe9"


def odd_record(out: Path, name: str) -> Path:
    """A record all of whose names are such."""
    entry = records.case_entry("resnet50", 32, "train") | {"case": name, "workload": name, "reason": name}
    return records.publish(out, name, records.manifest("profile", name) | {"options": {name: name}},
                           (entry, records.case_tables("train", 32, layer=name)))


@pytest.mark.parametrize("name", [ODD, EVIL, "a\0b", "x" * 5000, "\ud800", "ü" * 300])
def test_a_record_takes_any_name(name: str, tmp_path: Path) -> None:
    run = load_run(odd_record(tmp_path, name))
    assert [*run.cases["case"]] == [*run.operators["case"].unique()] == [*run.cases["workload"]]
    assert set(run.operators["layer"].dropna()) - {"fc", "layer1.0.bn1"} == {run.cases["case"][0]}
    run.cases["case"][0].encode()


@pytest.mark.slow
@pytest.mark.parametrize("name", [EVIL, *(pytest.param(name, marks=pytest.mark.slow)
                                          for name in ("x" * 5000, "ü" * 300, "\ud800", "名前"))])
def test_a_report_shows_any_name(name: str, tmp_path: Path) -> None:
    assert_harmless(report([load_run(odd_record(tmp_path, name))]))


def test_bytes_of_a_name_stay_readable(tmp_path: Path) -> None:
    run = load_run(odd_record(tmp_path, ODD))
    assert run.manifest["name"] == run.cases["case"][0] == SHOWN
    assert run.manifest["options"] == {SHOWN: SHOWN}
    assert run.manifest["command_line"] == ["charact", "profile", SHOWN]


@pytest.mark.parametrize("name", ["a/b", "a\0b", ODD, EVIL, "x" * 5000, "ü" * 300, "..", ""])
def test_a_trace_of_any_case_has_a_place(name: str, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    path = writer.trace_path(name)
    path.write_text("")
    assert path.parent == writer.directory / "trace"
    assert path != writer.trace_path(f"{name}y")
    writer.discard()


@pytest.mark.slow
def test_run_directories_of_any_name_are_read_and_written(tmp_path: Path, here: Here) -> None:
    run = tmp_path / ODD
    records.write_record(tmp_path).rename(run)
    for arguments, made in (
        (["report", ODD, "--to", f"{ODD}.html"], f"{ODD}.html"),
        (["export", ODD, "--format", "csv", "--to", f"{ODD}-csv"], f"{ODD}-csv/run.json"),
        (["compare", ODD, ODD, "--to", f"{ODD}.md"], f"{ODD}.md"),
        (["compare", f"{ODD}={ODD}", ODD, "--to", f"{ODD}.csv", "--fail-if", "time > 1.05", "--allow-single",
          "--junit", "j.xml"], f"{ODD}.csv"),
    ):  # fmt: skip
        done = here(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert SHOWN in done.stdout
        assert (tmp_path / made).exists()
        (tmp_path / made).read_bytes().decode()
    for arguments in (["report", f"{ODD}-none"], ["recover", f"{ODD}-none"], ["export", ODD, "--format", ODD]):
        assert SHOWN in here(*arguments, cwd=tmp_path, status=2).stderr
    logged = Records(str(tmp_path))
    entries = {entry["id"]: entry for entry in logged.listing()}
    (shown,) = [name for name in entries if name.startswith("caf") and not name.endswith("-csv")]
    assert entries[shown]["error"] is None
    assert logged.sections(shown)


def test_a_killed_run_of_any_name_is_recovered(tmp_path: Path, here: Here) -> None:
    writer = RunWriter(tmp_path, ODD, records.manifest("profile", ODD))
    writer.add_case(typed_entry(records.case_entry("resnet50", 32, "train")), records.case_tables("train", 32))
    os.close(writer._lock)
    writer.directory.rename(tmp_path / f"{PARTIAL_PREFIX}{ODD}")
    done = here("recover", f"{PARTIAL_PREFIX}{ODD}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}])
def test_a_script_of_any_name_is_run(tmp_path: Path, locale: dict[str, str]) -> None:
    (tmp_path / f"{ODD}.py").write_text(
        "import sys, torch\nmodel = torch.nn.Linear(4, 4)\nfor _ in range(9): model(torch.ones(2, 4))\n"
        "print(ascii(sys.argv))\n")
    done = subprocess.run([sys.executable, "-m", "charact", "run", "--out", f"r{ODD}", f"{ODD}.py", ODD], cwd=tmp_path,
                          env=os.environ | locale, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == ascii([f"{ODD}.py", ODD])
    assert b"Traceback" not in done.stderr
    (run,) = (tmp_path / f"r{ODD}").iterdir()
    found = load_run(run)
    assert [*found.cases["workload"]] == [SHOWN]
    assert found.manifest["options"]["arguments"] == [SHOWN]
