"""Records whose every free text is hostile: no command obeys what stands there, on no terminal and in no file."""

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from support import records
from support.damage import unseal
from support.hand_made_bricks import a_suite, product
from support.hostile import EVIL, assert_harmless, hostile
from support.kinds_of_runs import RUNS

from charact.analysis.profile.machine_speed import Speed
from charact.commands import tensorboard
from charact.core import output
from charact.core.console import Console
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.views.summary import summary
from charact.views.tensorboard.records import Records
from charact.views.terminal.live import State, line, panel
from charact.views.terminal.progress import LiveProgress, TrainingProgress
from charact.views.terminal.renderer import drawn

Here = Callable[..., Any]
WRITERS = RUNS | {"profile": lambda out: records.write_record(out, oom=True)}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("spoilt")
    return {kind: hostile(write(out / kind)) for kind, write in WRITERS.items()}


def test_the_records_are_hostile(spoilt: dict[str, Path]) -> None:
    run = load_run(spoilt["profile"])
    assert all(EVIL in text for text in [*run.cases["case"], run.manifest["machine"]["cpu"]["model"],
                                         *run.operators["layer"].dropna(), run.manifest["command_line"][0],
                                         run.manifest["software"]["git"]["commit"], run.manifest["options"]["data"]])
    assert run.cases["reason"].str.contains("evil").any()


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "watched" else pytest.mark.slow)
                                  for kind in WRITERS])
def test_no_summary_and_no_report_obey_a_record(spoilt: dict[str, Path], kind: str, tmp_path: Path, here: Here) -> None:
    texts = []
    for terminal in (False, True):
        file = io.StringIO()
        Console(file=file, width=120, force_terminal=terminal, color_system="truecolor" if terminal else None).print(
            drawn(summary(load_run(spoilt[kind]))))
        texts.append(file.getvalue())
    done = here("report", spoilt[kind], "--to", "r.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_harmless(done.stdout)
    for text in [*texts, (tmp_path / "r.html").read_text()]:
        assert "evil" in text
        assert_harmless(text)


def test_no_comparison_obeys_a_record(spoilt: dict[str, Path], tmp_path: Path, here: Here) -> None:
    slower = spoilt["profile"].with_name("slower")
    shutil.copytree(spoilt["profile"], slower)
    rows = load_run(slower).iterations
    _write(rows.assign(host_s=2 * rows["host_s"]), slower / "iterations.parquet")
    sides = [str(spoilt["profile"]), f"b{re.sub('[/=]', '', EVIL)}={slower}"]
    rules = ["--fail-if", "time > 1.5", "--allow-single"]
    done = here("compare", *sides, "--by", "case,phase,operator_type,operator,layer", "--explain", *rules, "--junit",
                "j.xml", "--summary", "s.md", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert_harmless(done.stdout)
    assert "evil" in done.stdout
    assert [case for case in ElementTree.parse(tmp_path / "j.xml").iter("testcase") if "evil" in case.get("name", "")]
    for name in ("j.xml", "s.md"):
        assert_harmless((tmp_path / name).read_text())
    done = here("compare", *sides, *rules, "--quiet", cwd=tmp_path)
    assert "evil" in done.stderr
    assert_harmless(done.stderr)


@pytest.mark.parametrize("name", [pytest.param("c.html", marks=pytest.mark.slow), "c.md", "c.csv"])
def test_no_file_of_a_comparison_holds_what_is_obeyed(spoilt: dict[str, Path], name: str, tmp_path: Path,
                                                      here: Here) -> None:
    sides = [f"{label}={spoilt['profile']}" for label in ("+1+1", "[x](evil)")]
    here("compare", *sides, "--to", name, "--by", "case,layer", cwd=tmp_path, status=0)
    text = (tmp_path / name).read_text()
    assert_harmless(text)
    if name == "c.csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert {row["side"] for row in rows} <= {"'+1+1", "[x](evil)"}
    if name == "c.md":
        assert "](evil" not in text.replace("\\](evil", "")
        assert "[bold" not in text.replace("\\[bold", "")


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_an_export_prints_nothing_that_is_obeyed(spoilt: dict[str, Path], form: str, tmp_path: Path,
                                                 here: Here) -> None:
    done = here("export", str(spoilt["profile"]), "--format", form, "--to", f"x{EVIL.replace('/', '')}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_harmless(done.stdout)
    assert "evil" in done.stdout


def test_recovering_prints_nothing_that_is_obeyed(tmp_path: Path, here: Here) -> None:
    writer = records.RunWriter(tmp_path, "resnet50", records.manifest("profile"))
    entry = records.case_entry("resnet50", 32, "train", status="error", reason=EVIL)
    writer.add_case(typed_entry(entry | {"case": EVIL}), {})
    writer.manifest["name"] = EVIL
    os.close(writer._lock)
    directory = tmp_path / f"{PARTIAL_PREFIX}x{EVIL.replace('/', '')}"
    writer.directory.rename(directory)
    done = here("recover", str(directory), cwd=tmp_path)
    assert done.returncode == 1
    assert "evil" in done.stderr
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)


def test_errors_obey_no_path(tmp_path: Path, here: Here) -> None:
    for arguments in (["report", EVIL], ["export", EVIL, "--format", "csv"], ["compare", EVIL, EVIL], ["recover", EVIL],
                      ["import", EVIL], ["watch", EVIL], ["tensorboard", EVIL], ["bricks", "show", EVIL],
                      ["bricks", "audit", EVIL], ["profile", EVIL], ["run", EVIL], ["list", EVIL],
                      ["data", "check", EVIL], ["--traceback", "report", EVIL], [EVIL], [f"--{EVIL}"]):
        done = here(*arguments, cwd=tmp_path)
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert_harmless(done.stderr, lines="--traceback" not in arguments)
        assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.slow
def test_tensorboard_lists_nothing_that_is_obeyed(spoilt: dict[str, Path], tmp_path: Path, here: Here,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    logdir = tmp_path / f"x{EVIL.replace('/', '')}"
    logdir.mkdir()
    (logdir / "run").symlink_to(spoilt["profile"])
    monkeypatch.setattr(tensorboard, "_start", lambda logdir, port: "http://127.0.0.1/")
    monkeypatch.setattr(tensorboard, "_wait", lambda: None)
    done = here("tensorboard", str(logdir), cwd=tmp_path)
    assert done.returncode == 0
    assert_harmless(done.stdout)
    for section in Records(str(spoilt["profile"].parent)).sections(spoilt["profile"].name):
        assert_harmless(section["html"])


def test_a_suite_of_bricks_is_shown_without_what_is_obeyed(tmp_path: Path, here: Here) -> None:
    suite = a_suite(tmp_path / f"s{EVIL.replace('/', '')}", product())
    composition = next(suite.private.glob("*.json"))
    facts = json.loads(composition.read_text())
    composition.write_text(json.dumps(facts | {"case": EVIL, "model": EVIL, "variant": EVIL, "method": "chains"}))
    for command in (["show"], ["audit"]):
        done = here("bricks", *command, str(suite.path), cwd=tmp_path)
        assert done.returncode in (0, 1, 2), done.stderr  # a composition with control characters is refused
        assert_harmless(done.stdout, lines=False)
        assert_harmless(done.stderr)


def test_a_watched_program_is_shown_without_what_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    speed = Speed(True, 3, 0.1, 80.0, {"forward": 1.0}, "forward", False)
    for state in (State(EVIL, 3, speed, 0.1, 10**9), State(EVIL, 0, None, 0.1, None)):
        output.show(f"charact: {line(state)}")
        shown = panel(state, Console(width=100, force_terminal=True, color_system="truecolor"))
        assert_harmless("\n".join(shown))
    assert_harmless(capsys.readouterr().out)


@pytest.mark.parametrize("kind", [LiveProgress, TrainingProgress])
def test_progress_obeys_no_case(kind: type, capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    options = {} if kind is LiveProgress else {"lines": True}
    with kind(Console(file=file, force_terminal=True, width=100), enabled=True, **options) as progress:
        progress.case_started(EVIL, 1, 2)
    shown = file.getvalue() + capsys.readouterr().out
    assert "evil" in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
    assert "\x9b" not in shown


@pytest.mark.slow
def test_formulas_are_text_in_an_exported_csv_and_come_back(record: Path, tmp_path: Path, here: Here) -> None:
    run = load_run(record)
    layers = ["=1+1", "+x", "-x", "@x", "\tx", "'=x", "plain", "a=b"]
    path = record / "layers.parquet"
    rows = pd.concat([run.layers.head(1)] * len(layers), ignore_index=True).assign(layer=layers)
    _write(rows, path)
    unseal(record)
    here("export", str(record), "--format", "csv", "--to", "out", cwd=tmp_path)
    with (tmp_path / "out" / "layers.csv").open(newline="") as file:
        written = [row["layer"] for row in csv.DictReader(file)]
    assert written == ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "''=x", "plain", "a=b"]
    here("export", str(record), "--format", "json", "--to", "json", cwd=tmp_path)
    assert [row["layer"] for row in json.loads((tmp_path / "json" / "layers.json").read_text())] == layers


def test_negative_numbers_stay_numbers(record: Path, tmp_path: Path, here: Here) -> None:
    run: Run = load_run(record)
    _write(run.iterations.assign(host_s=-1.5), record / "iterations.parquet")
    unseal(record)
    here("export", str(record), "--format", "csv", "--to", "out", cwd=tmp_path)
    assert set(pd.read_csv(tmp_path / "out" / "iterations.csv")["host_s"]) == {-1.5}


def _write(rows: pd.DataFrame, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from charact.record.tables import arrow_schema

    pq.write_table(pa.Table.from_pandas(rows, schema=arrow_schema(path.stem), preserve_index=False), path)
