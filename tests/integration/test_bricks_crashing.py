"""`charact bricks run` with bricks that crash: each costs itself, and no other."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hand_made_bricks import a_brick, a_layer, a_suite, an_input, pointwise, product, value

from charact import load_run
from charact.bricks.timing.worker import DESCRIBING, TIMING, Crashes, Note
from charact.record.reader import Run

Here = Callable[..., Any]
FEW = ["--max-rounds", "6", "--threads", "1"]
CRASHING = a_brick(
    [an_input(4), an_input(1, dtype="int64", sample={"low": 2**40, "high": 2**40})],
    [a_layer("segment_reduce.default", [value(0), "sum"], 2, lengths=value(1), unsafe=True)], [2])
"""Reads far beyond its input: a segmentation fault."""
OTHER = a_brick([an_input(6), an_input(1, dtype="int64", sample={"low": 2**40, "high": 2**40})], [
    a_layer("segment_reduce.default", [value(0), "mean"], 2, lengths=value(1), unsafe=True)], [2])


def the_run(directory: Path) -> Run:
    (path,) = directory.glob("runs/*bricks*")
    return load_run(path)


@pytest.mark.slow
def test_bricks_that_crash_are_recorded_and_the_others_go_on(tmp_path: Path, here: Here,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    others = [product(), pointwise("relu.default")]
    a_suite(tmp_path / "suite", CRASHING, OTHER, *others)
    (tmp_path / "site").mkdir()  # of processes that take `segment_reduce` for an operator that bricks may call
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import charact.bricks.aten as operators\noperators.OPERATORS |= {'segment_reduce'}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    here("bricks", "run", "suite", *FEW, cwd=tmp_path, status=0)
    run = the_run(tmp_path)
    rows = run.bricks.set_index("brick")
    for crashed in (CRASHING, OTHER):
        assert rows.loc[crashed.id, ["status", "reason"]].tolist() == ["error", "it ended its process by SIGSEGV"]
    assert set(run.brick_times["brick"]) == {each.id for each in others}
    assert run.brick_times.groupby("brick")["round"].nunique().tolist() == [6, 6]
    facts = run.entries[0].passes.bricks
    assert (facts.num_failed, facts.num_resumed) == (2, 0)


@pytest.mark.slow
def test_such_an_operator_is_refused(tmp_path: Path, here: Here) -> None:
    a_suite(tmp_path / "suite", CRASHING, product())
    here("bricks", "run", "suite", *FEW, cwd=tmp_path, status=0)
    rows = the_run(tmp_path).bricks.set_index("brick")
    assert "a brick may not call operator aten.segment_reduce.default" in rows["reason"][CRASHING.id]


@pytest.mark.slow
def test_a_brick_that_is_too_large_costs_itself(tmp_path: Path, here: Here) -> None:
    inputs = a_brick([an_input(2**23)], [a_layer("relu.default", [value(0)], 1)], [1])
    outputs = a_brick([], [a_layer("ones.default", [[2**23]], 0)], [0])
    entry = an_input(1, 1) | {"shape": [2**40, 2**20], "stride": [2**20, 1]}
    unpacked = a_brick([entry], [a_layer("relu.default", [value(0)], 1)], [1])
    small = product()
    a_suite(tmp_path / "suite", inputs, outputs, unpacked, small)
    here("bricks", "run", "suite", *FEW, "--max-bytes", "30MiB", cwd=tmp_path, status=0)
    rows = the_run(tmp_path).bricks.set_index("brick")
    assert rows["status"].to_dict() == {inputs.id: "error", unpacked.id: "error", outputs.id: "oom", small.id: "ok"}
    assert rows["reason"].dropna().str.contains("--max-bytes").all()


class TestNotes:
    def test_a_process_reads_what_its_child_ran_last(self) -> None:
        note = Note()
        assert note.read() is None
        brick, other = product().id, pointwise("relu.default").id
        child = os.fork()
        if child == 0:
            crashes = Crashes(note)
            with crashes.running(other, DESCRIBING):
                pass
            with crashes.running(brick, TIMING):
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert note.read() == (brick, TIMING)
        note.clear()
        assert note.read() is None

    def test_what_the_system_kills_is_out_of_memory(self) -> None:
        crashes = Crashes(signals={("a", TIMING): signal.SIGKILL, ("b", DESCRIBING): signal.SIGABRT})
        assert crashes.endings(TIMING)["a"]["status"] == "oom"
        assert crashes.endings(DESCRIBING)["b"]["reason"] == "it ended its process by SIGABRT"
