"""`charact import`: traces become a run like any other, or are refused in one line that leaves nothing behind."""

import io
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.traces import TraceMaker, training

from charact.analysis.profile.breakdown import phase_breakdown
from charact.record.reader import load_run
from charact.views.html.report import report
from charact.views.tensorboard.records import Records
from charact.views.terminal import progress

NASTY = "</script><img src=x onerror=alert(1)>"


def only_run(directory: Path) -> Path:
    (run,) = [path for path in (directory / "runs").iterdir() if not path.name.startswith(".")]
    return run


@pytest.mark.drawn
def test_a_trace_becomes_a_run_with_a_report_and_tables(here: Callable[..., Any], tmp_path: Path) -> None:
    training().write(tmp_path / "mine.pt.trace.json.gz")
    done = here("import", "mine.pt.trace.json.gz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mine-train" in done.stdout
    assert "1.20 ms per iteration" in done.stdout
    assert "inferred from the calls around it" in " ".join(done.stdout.split())
    run = load_run(only_run(tmp_path))
    assert run.run_id.split("-")[2] == "mine"
    assert run.cases["case"].tolist() == ["mine-train"]
    assert run.manifest["tables"] == ["iterations", "collectives", "operators", "kernels", "layers", "counters"]
    counters = run.counters.set_index("counter")["value"]
    assert counters["launch_delay_s"] == pytest.approx(648e-6)
    assert run.manifest["counters"]["kineto"]["launch_delay_s"]["method"] == "measured"
    assert run.passes("mine-train")["counters"]["sources"]["kineto"]["status"] == "ok"
    assert any(path.name.startswith("events.out.tfevents") for path in run.path.iterdir())
    page = (run.path / "report.html").read_text(encoding="utf-8")
    for words in ("How phases were found", "autograd’s nodes", "exposed communication", "Times are from the trace."):
        assert words in page
    assert "Nothing else is measured at the same time" not in page


@pytest.mark.slow
def test_the_outcome_is_the_json_of_the_run(here: Callable[..., Any], tmp_path: Path) -> None:
    training().write(tmp_path / "mine.json")
    done = here("import", "mine.json", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == here("show", f"runs/{only_run(tmp_path).name}", "--json", cwd=tmp_path).stdout
    assert [case["case"] for case in json.loads(done.stdout)["cases"]] == ["mine-train"]


@pytest.mark.slow
def test_it_can_be_exported_and_compared(here: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        training().write(tmp_path / f"{name}.json")
        assert here("import", f"{name}.json", "--quiet", cwd=tmp_path).returncode == 0
    runs = sorted(str(path) for path in (tmp_path / "runs").iterdir())
    assert here("report", *runs, "--to", "both.html", cwd=tmp_path).returncode == 0
    assert here("export", runs[0], "--format", "csv", "--to", "csv", cwd=tmp_path).returncode == 0
    exported = pd.read_csv(tmp_path / "csv" / "iterations.csv")
    assert exported.groupby("iteration")["device_s"].sum().iloc[1] == pytest.approx(1.2e-3)


@pytest.mark.slow
def test_tensorboard_shows_it_beside_others(here: Callable[..., Any], tmp_path: Path) -> None:
    properties = [{"id": index, "name": "AMD Instinct MI300X", "totalGlobalMem": 2**37} for index in range(8)]
    training(deviceProperties=properties).write(tmp_path / "one.json")
    training(1).write(tmp_path / "two.json")
    for name in ("one", "two"):
        assert here("import", f"{name}.json", "--name", "net", "--out", f"runs/{name}", cwd=tmp_path).returncode == 0
    records = Records(str(tmp_path / "runs"))
    listed = {entry["id"].partition("/")[0]: entry for entry in records.listing()}
    assert [entry["error"] for entry in listed.values()] == [None, None]
    assert listed["one"]["machine"] == "AMD Instinct MI300X"
    assert listed["two"]["machine"].startswith("n/a")
    shown = records.sections(listed["one"]["id"])
    assert "How phases were found" in str(shown)
    assert "net-train" in str(records.comparison([entry["id"] for entry in listed.values()]))
    assert load_run(records.directories()[listed["one"]["id"]]).manifest["machine"] == {
        "num_gpus": 8, "gpus": [{"name": "AMD Instinct MI300X", "memory_bytes": 2**37, "num_multiprocessors": None}]}


def test_ranks_of_a_directory_are_cases_of_one_run(here: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ddp").mkdir()
    for rank in (0, 1):
        training(distributedInfo={"rank": rank, "world_size": 2}).write(tmp_path / "ddp" / f"part{rank}.json.gz")
    assert here("import", "ddp", cwd=tmp_path).returncode == 0
    run = load_run(only_run(tmp_path))
    assert run.cases["case"].tolist() == ["ddp-train-rank0", "ddp-train-rank1"]
    assert set(run.table("collectives")["case"]) == {"ddp-train-rank0", "ddp-train-rank1"}
    assert run.counters.groupby("case")["rank"].first().tolist() == [0, 1]


def test_a_rank_that_a_directory_lacks_is_named(here: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ddp").mkdir()
    for rank in (0, 1, 3):
        training(1, distributedInfo={"rank": rank, "world_size": 4}).write(tmp_path / "ddp" / f"part{rank}.json")
    done = here("import", "ddp", cwd=tmp_path)
    assert done.returncode == 0
    assert "ranks 0–1, 3 of 4; rank 2 is missing" in done.stdout
    assert "ranks 0–1, 3 of 4; rank 2 is missing" in (only_run(tmp_path) / "report.html").read_text(encoding="utf-8")


def test_ranks_are_merged_into_one_file_for_perfetto(here: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ddp").mkdir()
    for rank in (1, 0):
        training(1, distributedInfo={"rank": rank, "world_size": 2}).write(tmp_path / "ddp" / f"part{1 - rank}.json")
    assert here("import", "ddp", "--quiet", cwd=tmp_path).returncode == 0
    run = f"runs/{only_run(tmp_path).name}"
    done = here("export", run, "--format", "perfetto", "--to", "all.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Wrote all.json: rank 0 (ddp-train-rank0), rank 1 (ddp-train-rank1)\n"
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "rank 0 (ddp-train-rank0)", "rank 1 (ddp-train-rank1)"]
    again = here("export", run, "--format", "perfetto", "--to", "all.json", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (2, "error: all.json exists: --force replaces it, --to names another\n")
    (tmp_path / "ddp" / "part0.json").unlink()
    done = here("export", run, "--format", "perfetto", "--to", "all.json", "--force", cwd=tmp_path)
    assert done.stdout == ("Wrote all.json: rank 0 (ddp-train-rank0); without ddp-train-rank1, which has no trace\n")
    (tmp_path / "ddp" / "part1.json").unlink()
    done = here("export", run, "--format", "perfetto", cwd=tmp_path)
    assert done.stderr == (f"error: {run} has no traces: ddp/part0.json is not there: run this in the directory of "
                           "charact import\n")


def test_dumps_of_the_flight_recorder_are_ranks(here: Callable[..., Any], tmp_path: Path) -> None:
    call = {"profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"], "input_sizes": [[10]],
            "input_dtypes": ["Float"], "output_sizes": [[10]], "output_dtypes": ["Float"], "retired": False}
    for rank in (0, 1):
        calls = [call | {"time_created_ns": 10**18 + number * 10**6, "collective_seq_id": number}
                 for number in range(1, 4 - rank)]
        content = {"entries": calls, "pg_config": {"": {"ranks": "[0, 1]"}}, "version": "2.10"}
        (tmp_path / f"dump_rank{rank}.json").write_text(json.dumps(content))
    done = here("import", "--name", "job", "dump_rank0.json", "dump_rank1.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = load_run(only_run(tmp_path))
    assert run.cases["case"].tolist() == ["job-rank0", "job-rank1"]
    assert run.table("collectives").groupby("case")["bytes"].sum().tolist() == [120, 80]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "3 collectives had not completed: all_reduce 1 of group default" in page
    assert "the ranks called different collectives" in page


def test_a_pickle_is_not_read(here: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": []}, protocol=2))
    done = here("import", "nccl_trace_rank_0", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ("error: nccl_trace_rank_0 is a pickle, which can run any code when it is read: name a trace "
                           "of torch.profiler, or write the flight recorder's dump as JSON "
                           "(torch._C._distributed_c10d._dump_fr_trace_json)\n")


@pytest.mark.slow
def test_files_without_ranks_go_by_their_names(here: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        training(1).write(tmp_path / f"{name}.json")
    assert here("import", "a.json", "b.json", "--name", "both", cwd=tmp_path).returncode == 0
    assert load_run(only_run(tmp_path)).cases["case"].tolist() == ["both-a-train", "both-b-train"]


def test_two_traces_of_one_rank_are_refused(here: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        training(1, distributedInfo={"rank": 0, "world_size": 2}).write(tmp_path / f"{name}.json")
    done = here("import", "a.json", "b.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "both become the case" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_names_are_text_and_no_page(here: Callable[..., Any], tmp_path: Path) -> None:
    made = training(1, deviceProperties=[{"id": 0, "name": NASTY}])
    made.operator(NASTY, 150, 10)
    made.module(f"{NASTY}_0", 120, 20)
    made.kernel(NASTY, 160, 2000, 50)
    made.write(tmp_path / "a.json")
    assert here("import", "a.json", "--name", NASTY, cwd=tmp_path).returncode == 0
    run = load_run(only_run(tmp_path))
    page = report([run])
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize(("content", "words"), [
    (b'{"traceEvents": []}', "neither operators nor kernels"),
])
def test_what_is_no_trace_is_told_in_one_line_and_leaves_nothing(here: Callable[..., Any], tmp_path: Path,
                                                                 content: bytes, words: str) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    done = here("import", "broken.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_name_that_is_no_text_is_no_fault(here: Callable[..., Any], tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff.json")
    training(1, deviceProperties=[{"id": {}, "name": {"a": []}, "totalGlobalMem": "much"}]).write(tmp_path / name)
    assert here("import", name, "--quiet", cwd=tmp_path).returncode == 0
    assert load_run(only_run(tmp_path)).cases["case"].tolist() == ["bad\ufffd-train"]


def test_one_broken_trace_of_several_leaves_nothing(here: Callable[..., Any], tmp_path: Path) -> None:
    training().write(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{}", encoding="utf-8")
    assert here("import", "a.json", "b.json", cwd=tmp_path).returncode == 2
    assert list((tmp_path / "runs").iterdir()) == []


def test_odd_values_are_tolerated_and_what_was_dropped_is_shown(here: Callable[..., Any], tmp_path: Path) -> None:
    made = training(1, deviceProperties=[{"id": 0, "name": "H\ud800"}])
    made.operator("aten::\ud800", 150, 10, **{"Input Dims": [[float("inf")]]})
    for number in range(3):
        made.kernel("\udfff", 5000, 9000 + number, 5, **{"est. achieved occupancy %": 21_474_836})
    made.write(tmp_path / "a.json")
    done = here("import", "a.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 kernels (launched outside of all iterations)" in " ".join(done.stdout.split())
    run = load_run(only_run(tmp_path))
    page = (run.path / "report.html").read_text(encoding="utf-8")
    method = page[page.index("Data of the trace that the record leaves out"):]
    for words in ("occupancies", "not from 0 to 100 %", "input shapes", "launched outside of all iterations"):
        assert words in method
    assert here("export", str(run.path), "--format", "json", "--to", "out", cwd=tmp_path).returncode == 0
    records = Records(str(tmp_path / "runs"))
    (listed,) = records.listing()
    assert "occupancies" in str(records.sections(listed["id"]))


@pytest.mark.slow_variants
@pytest.mark.parametrize("kept", ["kernel", "cpu_op"])
def test_a_trace_that_does_not_link_kernels_with_launches_is_drawn(here: Callable[..., Any], tmp_path: Path,
                                                                   kept: str) -> None:
    made = training(2)
    made.events = [event for event in made.events if event["cat"] in (kept, "kernel")]
    for event in made.events:
        event["args"] = {}
    made.write(tmp_path / "a.json")
    done = here("import", "a.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nan" not in done.stdout.lower()
    shares = phase_breakdown(load_run(only_run(tmp_path)))["share_frac"]
    assert shares.sum() == pytest.approx(1)


@pytest.mark.slow
def test_a_limit_on_what_is_unpacked_can_be_raised(here: Callable[..., Any], tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    training().write(tmp_path / "a.json.gz")
    monkeypatch.setenv("CHARACT_MAX_BYTES", "1K")
    done = here("import", "a.json.gz", cwd=tmp_path)
    assert done.returncode == 2
    assert "raise the limit with CHARACT_MAX_BYTES" in done.stderr
    assert here("import", "a.json.gz", "--max-bytes", "8GiB", cwd=tmp_path).returncode == 0
    done = here("import", "a.json.gz", "--max-bytes", "much", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, "error: --max-bytes: 'much' is not a size: write one such as 500MiB or 8GiB\n")


def test_a_terminal_shows_how_much_was_read_once_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(progress.time, "monotonic", lambda: screen.now_s)
    with progress.ReadingProgress(screen.console, "[/x].json", enabled=True) as shown:
        screen.now_s = 0.9
        shown(10, 100)
        assert screen.text == ""
        screen.now_s = 1.5
        shown(37, 100)
        assert "reading [/x].json" in screen.text
        assert "37 %" in screen.text


class Screen:
    """A terminal, and a clock."""

    now_s = 0.0

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.console = Console(file=self._file, force_terminal=True, width=100)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._file.getvalue())


def test_an_empty_name_is_refused(here: Callable[..., Any], tmp_path: Path) -> None:
    training(1).write(tmp_path / "a.json")
    done = here("import", "a.json", "--name", " ", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: --name is empty: give the run a name, or leave it out\n")


@pytest.mark.parametrize("path", ["a" * 300 + ".json", "x/" * 3000 + "a.json"])
def test_a_path_that_is_too_long_is_refused(here: Callable[..., Any], tmp_path: Path, path: str) -> None:
    done = here("import", path, cwd=tmp_path)
    assert done.returncode == 2
    assert "file name too long" in done.stderr


def test_an_absent_trace_is_refused(here: Callable[..., Any], tmp_path: Path) -> None:
    done = here("import", "absent.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a file" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_trace_on_the_host_alone_has_no_device(here: Callable[..., Any], tmp_path: Path) -> None:
    made = TraceMaker()
    made.mark("ProfilerStep#0", 0, 100)
    made.operator("aten::linear", 10, 50)
    made.write(tmp_path / "a.json")
    assert here("import", "a.json", cwd=tmp_path).returncode == 0
    run = load_run(only_run(tmp_path))
    assert run.cases["device"].tolist() == ["cpu"]
    assert "the trace has no kernels" in (run.path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_characts_own_trace_has_the_phases_that_were_measured(here: Callable[..., Any], tmp_path: Path) -> None:
    done = here("profile", "mlp", "--input-sizes", "32", "--mode", "train", "--max-iterations", "5",
                "--max-seconds", "2", "--out", "measured", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (measured,) = (tmp_path / "measured").iterdir()
    (trace,) = (measured / "trace").iterdir()
    assert here("import", str(trace), cwd=tmp_path).returncode == 0
    run = load_run(only_run(tmp_path))
    timing = run.manifest["cases"][0]["passes"]["timing"]
    assert timing["own_marks"] is True
    assert timing["inferred_frac"] < 0.05
    shares = run.iterations.groupby("phase")["host_s"].sum() / run.iterations["host_s"].sum()
    assert shares[["data", "forward", "loss", "backward", "update"]].gt(0).all()
    theirs = load_run(measured).operators
    ours = run.operators
    names = theirs.loc[theirs["phase"] == "backward", "operator"]
    assert set(names) <= set(ours.loc[ours["phase"] == "backward", "operator"])
    assert set(ours["layer"].dropna()) == set(theirs["layer"].dropna())
    assert json.loads((run.path / "run.json").read_text(encoding="utf-8"))["options"]["traces"] == [str(trace)]
