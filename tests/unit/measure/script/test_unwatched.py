"""Training in other processes and threads is not recorded; the record tells where it was."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.watched import cases, training, watched
from torch.utils.data._utils.worker import _worker_loop

from charact.measure.script.hooks import child_patches
from charact.measure.script.hooks.child_patches import ChildPatches
from charact.measure.script.hooks.patch_context import PatchContext
from charact.measure.script.spans.blind_spots import unwatched
from charact.measure.script.spans.event_log_reader import EventLog
from charact.measure.script.spans.recorder import SpanRecorder


def train() -> None:
    training(4)()


def predict() -> None:
    with torch.no_grad():
        torch.nn.Linear(2, 2)(torch.ones(1, 2))


def unwatched_of(log: EventLog) -> tuple[int, int]:
    return log.total("unwatched", "children"), log.total("unwatched", "threads")


def in_child(function: Callable[[], None]) -> None:
    process = os.fork()
    if process == 0:
        function()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_forked_children_that_train_are_counted_once_each(tmp_path: Path) -> None:
    log = watched(tmp_path, lambda: [in_child(train), in_child(predict), train(), in_child(train)])
    assert unwatched_of(log) == (2, 0)
    assert sum(one.training for one in log.iterations) == 4  # nothing of the children
    ((entry, _),) = cases(log)
    assert unwatched(2, 0)[0] in entry.passes.timing.blind_spots


def test_threads_that_train_are_counted(tmp_path: Path) -> None:
    log = watched(tmp_path, lambda: [in_thread(predict), in_thread(train), train()])
    assert unwatched_of(log) == (0, 1)


@pytest.mark.parametrize(("method", "target", "num_children"), [
    ("spawn", train, 1), ("forkserver", train, 1), ("spawn", _worker_loop, 0), ("fork", train, 0)])
def test_children_that_import_pytorch_are_counted(
        method: str, target: Callable[..., None], num_children: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_patches, "_INTERVAL_S", 0.001)
    patches = ChildPatches(PatchContext(SpanRecorder(), lambda *_: None, lambda *_: None))
    start = patches._start(lambda _: None)
    start(SimpleNamespace(pid=os.getpid(), _target=target, _popen=SimpleNamespace(method=method)))
    until = time.monotonic() + 30
    while patches._waiting and time.monotonic() < until:
        time.sleep(0.001)
    assert patches.num_with_torch == num_children


def test_messages_have_numbers_and_a_remedy() -> None:
    assert unwatched(0, 0) == []
    (children, thread) = unwatched(1, 1)
    assert children.startswith("1 child process with PyTorch was not recorded: start charact run in each ")
    assert thread == "training in another thread is not recorded: enter a charact.Profiler there"
    children, threads = unwatched(3, 2)
    assert children.startswith("3 child processes with PyTorch were not recorded: ")
    assert threads.startswith("training in 2 other threads is not recorded: ")


@pytest.mark.parametrize(("module", "num_children"), [
    ("torch._inductor.cpu_vec_isa", 0), ("triton.runtime.build", 0), ("mine", 1), ("torch.multiprocessing.spawn", 1)])
def test_processes_that_compilers_start_are_not_counted(
        module: str, num_children: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that imports PyTorch to test an instruction set; its command line may be any."""
    expected: list[int] = []
    patches = ChildPatches(PatchContext(SpanRecorder(), lambda *_: None, lambda *_: None))
    monkeypatch.setattr(patches, "_expect", expected.append)
    monkeypatch.setattr(subprocess.Popen, "__init__", patches._popen(subprocess.Popen.__init__))
    code = "import subprocess, sys\ndef check():\n    subprocess.run([sys.executable, '-c', ''], check=True)"
    names: dict[str, Any] = {"__name__": module}
    exec(code, names)
    names["check"]()
    assert len(expected) == num_children


WITH_TORCH = "import torch, time; time.sleep(0.7)"


@pytest.mark.slow_variants
@pytest.mark.parametrize(("command", "num_children"), [
    ([sys.executable, "-c", WITH_TORCH], 1),
    (["sh", "-c", f"{sys.executable} -c '{WITH_TORCH}'; true"], 1),
    ([sys.executable, "-c", "import time; time.sleep(0.7)"], 0),
    ([sys.executable, "-c", WITH_TORCH, "torch._inductor.compile_worker"], 0),
    ([sys.executable, "-c", WITH_TORCH, "charact run train.py"], 0),
], ids=["program", "in a shell", "without torch", "compiles", "is recorded"])  # fmt: skip
def test_programs_with_torch_that_a_script_starts_are_counted(tmp_path: Path, command: list[str], num_children: int
                                                              ) -> None:
    log = watched(tmp_path, lambda: [subprocess.run(command, check=True), train()])
    assert unwatched_of(log) == (num_children, 0)
