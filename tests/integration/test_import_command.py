"""`charact import`: traces become a run like any other, or are refused in one line that leaves nothing behind."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.programs import only_record
from support.serving_traces import LAYER, ServerTrace
from support.snapshots import snapshot, write
from support.snapshots import training as allocator
from support.traces import TraceMaker, training

from charact.analysis.profile.breakdown import phase_breakdown
from charact.record.reader import load_run
from charact.views.tensorboard.records import Records

Here = Callable[..., Any]
NASTY = "</script><img src=x onerror=alert(1)>"


@pytest.mark.drawn
@pytest.mark.views
def test_a_trace_becomes_a_run_with_a_report_and_tables(here: Here, tmp_path: Path) -> None:
    training().write(tmp_path / "mine.pt.trace.json.gz")
    done = here("import", "mine.pt.trace.json.gz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mine-train takes 1.20 ms an iteration" in done.stdout
    run = only_record(tmp_path)
    assert run.run_id.split("-")[2] == "mine"
    assert run.cases["case"].tolist() == ["mine-train"]
    assert run.manifest["tables"] == ["iterations", "collectives", "operators", "kernels", "layers", "counters"]
    counters = run.counters.set_index("counter")["value"]
    assert counters["launch_delay_s"] == pytest.approx(648e-6)
    assert run.manifest["counters"]["kineto"]["launch_delay_s"]["method"] == "measured"
    assert run.entry("mine-train").passes.counters.sources["kineto"].status == "ok"
    assert any(path.name.startswith("events.out.tfevents") for path in run.path.iterdir())
    page = (run.path / "report.html").read_text(encoding="utf-8")
    for words in ("How phases were found", "autograd’s nodes", "exposed communication", "Times are from the trace."):
        assert words in page
    assert "Nothing else is measured at the same time" not in page


def test_files_of_a_servers_stages_are_cases(here: Here, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for stage in ("EXTEND", "DECODE"):
        made = ServerTrace()
        made.beside["distributedInfo"] = {"rank": 0, "world_size": 2}
        for at in (0, 1000):
            made.event("python_function", "sglang/srt/managers/scheduler.py(1): run_batch", at, 500)
            made.eager(at + 10, at + 50, LAYER)
        made.write(tmp_path / "traces" / f"1700-TP-0-{stage}.trace.json.gz")
    done = here("import", "traces", "--name", "server", cwd=tmp_path, status=0)
    assert "prefill steps take all of the steps’ time" in " ".join(done.stdout.split())
    run = only_record(tmp_path)
    assert run.cases["case"].tolist() == ["server-decode-infer-rank0", "server-prefill-infer-rank0"]
    assert run.table("serving_steps")["kind"].tolist() == ["decode"] * 2 + ["prefill"] * 2


@pytest.mark.slow
def test_tensorboard_shows_it_beside_others(here: Here, tmp_path: Path) -> None:
    properties = [{"id": index, "name": "AMD Instinct MI300X", "totalGlobalMem": 2**37} for index in range(8)]
    training(deviceProperties=properties).write(tmp_path / "one.json")
    training(1).write(tmp_path / "two.json")
    for name in ("one", "two"):
        here("import", f"{name}.json", "--name", "net", "--out", f"runs/{name}", cwd=tmp_path, status=0)
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


@pytest.mark.views
def test_ranks_of_a_directory_are_cases_of_one_run_and_one_that_it_lacks_is_named(here: Here, tmp_path: Path) -> None:
    (tmp_path / "ddp").mkdir()
    for rank in (0, 1, 3):
        training(1, distributedInfo={"rank": rank, "world_size": 4}).write(tmp_path / "ddp" / f"part{rank}.json.gz")
    done = here("import", "ddp", cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    assert run.cases["case"].tolist() == [f"ddp-train-rank{rank}" for rank in (0, 1, 3)]
    assert set(run.table("collectives")["case"]) == set(run.cases["case"])
    assert run.counters.groupby("case")["rank"].first().tolist() == [0, 1, 3]
    assert "ranks 0–1, 3 of 4; rank 2 is missing" in done.stdout
    assert "ranks 0–1, 3 of 4; rank 2 is missing" in (run.path / "report.html").read_text(encoding="utf-8")


def test_ranks_are_merged_into_one_file_for_perfetto(here: Here, tmp_path: Path) -> None:
    (tmp_path / "ddp").mkdir()
    for rank in (1, 0):
        training(1, distributedInfo={"rank": rank, "world_size": 2}).write(tmp_path / "ddp" / f"part{1 - rank}.json")
    here("import", "ddp", "--quiet", cwd=tmp_path, status=0)
    run = f"runs/{only_record(tmp_path).path.name}"
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


@pytest.mark.views
def test_dumps_of_the_flight_recorder_are_ranks(here: Here, tmp_path: Path) -> None:
    call = {"profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"], "input_sizes": [[10]],
            "input_dtypes": ["Float"], "output_sizes": [[10]], "output_dtypes": ["Float"], "retired": False}
    for rank in (0, 1):
        calls = [call | {"time_created_ns": 10**18 + number * 10**6, "collective_seq_id": number}
                 for number in range(1, 4 - rank)]
        content = {"entries": calls, "pg_config": {"": {"ranks": "[0, 1]"}}, "version": "2.10"}
        (tmp_path / f"dump_rank{rank}.json").write_text(json.dumps(content))
    done = here("import", "--name", "job", "dump_rank0.json", "dump_rank1.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_record(tmp_path)
    assert run.cases["case"].tolist() == ["job-rank0", "job-rank1"]
    assert run.table("collectives").groupby("case")["bytes"].sum().tolist() == [120, 80]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "3 collectives had not completed: all_reduce 1 of group default" in page
    assert "the ranks called different collectives" in page


def test_a_server_is_not_bound_by_data_and_an_unread_device_not_by_its_host(here: Here, tmp_path: Path) -> None:
    serving = TraceMaker(deviceProperties=[{"id": 0, "name": "GPU"}])
    serving.kernel("Memcpy HtoD (Host -> Device)", 505, 530, 3, by=serving.operator("aten::copy_", 500, 20),
                   cat="gpu_memcpy")
    serving.event("cuda_runtime", "cudaGraphLaunch", 1500, 300, correlation=9000)
    for place in range(40):
        serving.event("kernel", "decode", 1900 + 490 * place, 480, 7, device=0, stream=7, correlation=9000)
    serving.module("Sampler_0", 21_500, 200)
    serving.operator("aten::argmax", 21_510, 50)
    other = TraceMaker(deviceProperties=[{"id": 0, "name": "OTHER"}])
    other.operator("aten::mm", 100, 50)
    other.event("mtia_ccp_events", "<b>mm</b>", 200, 9000)
    other.operator("aten::relu", 9300, 20)
    for name, made, said in (("serving", serving, "Verdict: n/a (most of it is in no phase)"),
                             ("other", other, "Verdict: n/a (the trace lacks the device’s work")):
        made.write(tmp_path / f"{name}.json")
        done = here("import", f"{name}.json", "--out", name, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert said in done.stdout
        assert "bound" not in done.stdout


def test_a_pickle_is_not_read(refused: Here, tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": []}, protocol=2))
    (tmp_path / "runs").mkdir()
    refused("import", "nccl_trace_rank_0", said="nccl_trace_rank_0 is a pickle, which can run any code when it is read")


@pytest.mark.parametrize(("arguments", "said"), [
    (["a.json", "b.json"], "both become the case"), (["a.json", "empty.json"], "neither operators nor kernels"),
    (["a.json", "none.json"], "none.json"), (["a.json", "--name", " "], "--name is empty: give the run a name"),
    (["absent.json"], "is not a file"), (["a" * 300 + ".json"], "file name too long"),
    (["x/" * 3000 + "a.json"], "file name too long"),
])
def test_what_is_no_run_is_refused_and_leaves_nothing(refused: Here, tmp_path: Path, arguments: list[str], said: str
                                                      ) -> None:
    for name in ("a", "b"):
        training(1, distributedInfo={"rank": 0, "world_size": 2}).write(tmp_path / f"{name}.json")
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    (tmp_path / "none.json").write_text("{}")
    (tmp_path / "runs").mkdir()
    refused("import", *arguments, said=said)


def test_a_name_that_is_no_text_is_no_fault(here: Here, tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff.json")
    training(1, deviceProperties=[{"id": {}, "name": {"a": []}, "totalGlobalMem": "much"}]).write(tmp_path / name)
    here("import", name, "--quiet", cwd=tmp_path, status=0)
    assert only_record(tmp_path).cases["case"].tolist() == ["bad\ufffd-train"]


@pytest.mark.views
def test_odd_values_are_tolerated_and_what_was_dropped_is_shown(here: Here, tmp_path: Path) -> None:
    made = training(1, deviceProperties=[{"id": 0, "name": "H\ud800"}])
    made.operator("aten::\ud800", 150, 10, **{"Input Dims": [[float("inf")]]})
    for number in range(3):
        made.kernel("\udfff", 5000, 9000 + number, 5, **{"est. achieved occupancy %": 21_474_836})
    made.write(tmp_path / "a.json")
    done = here("import", "a.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 kernels (launched outside of all iterations)" in " ".join(done.stdout.split())
    run = only_record(tmp_path)
    page = (run.path / "report.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    method = page[page.index("Data of the trace that the record leaves out"):]
    for words in ("occupancies", "not from 0 to 100 %", "input shapes", "launched outside of all iterations"):
        assert words in method
    here("export", str(run.path), "--format", "json", "--to", "out", cwd=tmp_path, status=0)
    records = Records(str(tmp_path / "runs"))
    (listed,) = records.listing()
    assert "occupancies" in str(records.sections(listed["id"]))


@pytest.mark.slow_variants
@pytest.mark.parametrize("kept", ["kernel", "cpu_op"])
def test_a_trace_that_does_not_link_kernels_with_launches_is_drawn(here: Here, tmp_path: Path,
                                                                   kept: str) -> None:
    made = training(2)
    made.events = [event for event in made.events if event["cat"] in (kept, "kernel")]
    for event in made.events:
        event["args"] = {}
    made.write(tmp_path / "a.json")
    done = here("import", "a.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nan" not in done.stdout.lower()
    shares = phase_breakdown(only_record(tmp_path))["share_frac"]
    assert shares.sum() == pytest.approx(1)


@pytest.mark.slow
def test_a_limit_on_what_is_unpacked_can_be_raised(here: Here, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    training().write(tmp_path / "a.json.gz")
    monkeypatch.setenv("CHARACT_MAX_BYTES", "1K")
    done = here("import", "a.json.gz", cwd=tmp_path)
    assert done.returncode == 2
    assert "raise the limit with CHARACT_MAX_BYTES" in done.stderr
    here("import", "a.json.gz", "--max-bytes", "8GiB", cwd=tmp_path, status=0)
    done = here("import", "a.json.gz", "--max-bytes", "much", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, "error: --max-bytes: 'much' is not a size: write one such as 500MiB or 8GiB\n")


@pytest.mark.views
def test_a_trace_on_the_host_alone_has_no_device(here: Here, tmp_path: Path) -> None:
    made = TraceMaker()
    made.mark("ProfilerStep#0", 0, 100)
    made.operator("aten::linear", 10, 50)
    made.write(tmp_path / "a.json")
    here("import", "a.json", cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    assert run.cases["device"].tolist() == ["cpu"]
    assert "the trace has no kernels" in (run.path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_characts_own_trace_has_the_phases_that_were_measured(here: Here, tmp_path: Path) -> None:
    here("profile", "mlp", "--input-sizes", "32", "--mode", "train", "--max-iterations", "5",
                "--max-seconds", "2", "--out", "measured", cwd=tmp_path, status=0)
    (measured,) = (tmp_path / "measured").iterdir()
    (trace,) = (measured / "trace").iterdir()
    here("import", str(trace), cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    timing = run.entries[0].passes.timing
    assert timing.own_marks is True
    assert timing.inferred_frac < 0.05
    shares = run.iterations.groupby("phase")["host_s"].sum() / run.iterations["host_s"].sum()
    assert shares[["data", "forward", "loss", "backward", "update"]].gt(0).all()
    theirs = load_run(measured).operators
    ours = run.operators
    names = theirs.loc[theirs["phase"] == "backward", "operator"]
    assert set(names) <= set(ours.loc[ours["phase"] == "backward", "operator"])
    assert set(ours["layer"].dropna()) == set(theirs["layer"].dropna())
    assert json.loads((run.path / "run.json").read_text(encoding="utf-8"))["options"]["traces"] == [str(trace)]


@pytest.mark.drawn
@pytest.mark.views
def test_a_memory_snapshot_becomes_a_run_with_a_curve_and_the_lines_that_hold_memory(here: Here, tmp_path: Path
                                                                                       ) -> None:
    write(tmp_path / "gpu.json.gz", snapshot(allocator(), external_annotations=[{"name": "x" * 100}] * 9))
    done = here("import", "gpu.json.gz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpu peaks at 6.00 MiB of allocated memory; 50.0 % of it is from train.py:41 backward." in " ".join(
        done.stdout.split())
    run = only_record(tmp_path)
    assert run.manifest["tables"] == ["memory"]
    assert run.memory["reserved_bytes"].max() == 8 << 20
    page = (run.path / "report.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    for words in ("Memory snapshot", "Lines that hold memory at the peak", "/job/train.py:41 backward",
                  "time since the first event", "Out of memory", "replay of the history"):
        assert words in page
    assert "At the peak of an iteration" not in page
    shown = json.loads(here("show", f"runs/{run.path.name}", "--json", cwd=tmp_path).stdout)["cases"][0]
    assert (shown["kind"], shown["headline"]["peak_bytes"]) == ("snapshot", (6 << 20) + 1000)
    assert shown["holders"][0] == {"place": "/job/train.py:41", "function": "backward", "reason": None,
                                   "bytes": 3 << 20, "share_frac": 3 * (1 << 20) / ((6 << 20) + 1000), "num_blocks": 1}
    records = Records(str(tmp_path / "runs"))
    (listed,) = records.listing()
    assert "Lines that hold memory at the peak" in str(records.sections(listed["id"]))


@pytest.mark.views
def test_a_snapshot_without_a_history_gives_the_reason_for_its_missing_peak(here: Here, tmp_path: Path) -> None:
    one, other = allocator(), allocator()
    one.alloc(0x1300000, 1000, ("/job/<img src=x onerror=alert(1)>.py", 7, NASTY))
    other.device, other.events, one.events = 1, [], []
    content = snapshot(one, other)
    content["segments"].append({"device": 1, "total_size": -1, "blocks": []})
    write(tmp_path / "a.json", content)
    done = here("import", "a.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 cases hold 3.00 MiB of allocated memory" in done.stdout  # one holds 1,024 B more
    assert "a-cuda1: Left out: 1 segments (with a size that is no number of bytes)" in " ".join(done.stdout.split())
    run = only_record(tmp_path)
    assert run.cases["case"].tolist() == ["a-cuda0", "a-cuda1"]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "n/a (the snapshot has no history: call torch.cuda.memory._record_memory_history()" in page
    assert "/job/&lt;img src=x onerror=alert(1)&gt;.py:7 &lt;/script&gt;" in page
    assert "<img src=x" not in page
    assert "Data of the snapshot that the record leaves out" in page


def test_snapshots_and_traces_are_imported_separately(refused: Here, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    write(tmp_path / "all" / "snapshot.json", snapshot(allocator()))
    training(1).write(tmp_path / "all" / "trace.json")
    (tmp_path / "runs").mkdir()
    refused("import", "all", said="all/snapshot.json is a memory snapshot, and all/trace.json is not: import them")


def test_two_snapshots_with_one_name_are_refused(refused: Here, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "snapshot.json", snapshot(allocator()))
    (tmp_path / "runs").mkdir()
    refused("import", "a", "b", said="both become the case snapshot")
