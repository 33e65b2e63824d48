"""Use of the cores: what a spinning process used and waited for is the time that passed."""

import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from msgspec.structs import asdict

from charact.machine import core_use
from charact.machine.core_use import CoreMeter, _descendants
from charact.record.manifest_passes import CoreUse

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waiting for a core is counted by Linux")
alone = pytest.mark.fresh_process
"""In this process, threads and children that other tests left take and wait for cores, too."""


def spin(seconds: float) -> None:
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended:
        pass


_HOG = "import os, time\nos.sched_setaffinity(0, {core})\nwhile time.monotonic() < {end}: pass"


@contextmanager
def one_core_shared(*, with_child: bool) -> Iterator[None]:
    """Pin this process to one core that another spinning process uses: its child, or a program of its own."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    code = _HOG.format(core={core}, end=time.monotonic() + 20)
    command = [sys.executable, "-c", code]
    if not with_child:  # the child's child, whose parent has ended
        command = ["sh", "-c", '"$0" "$1" "$2" >/dev/null 2>&1 & echo $!', *command]
    started = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert started.stdout is not None
    hog = started.pid if with_child else int(started.stdout.read())
    try:
        os.sched_setaffinity(0, {core})
        spin(0.3)  # until the other process has started
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(hog, signal.SIGKILL)
        started.communicate()


@pytest.mark.slow
@alone
@pytest.mark.clock
def test_used_and_waiting_time_of_a_spinning_thread_are_the_wall_time() -> None:
    begun = CoreMeter()
    spin(1.0)
    facts = begun.facts()
    assert facts is not None
    assert facts.length_s == pytest.approx(1.0, abs=0.2)
    assert facts.processor_s + facts.waiting_s == pytest.approx(facts.length_s, rel=0.05)


@pytest.mark.slow
@alone
@pytest.mark.clock
def test_children_count_as_own() -> None:
    """On one core, a spinning child and its parent wait for each other."""
    with one_core_shared(with_child=True):
        begun = CoreMeter()
        spin(1.0)
        facts = begun.facts()
    assert facts is not None
    assert facts.num_usable_cores == 1
    assert facts.processor_s + facts.waiting_s == pytest.approx(2 * facts.length_s, rel=0.1)
    assert facts.num_involuntary_switches > 10


@alone
@pytest.mark.clock
def test_other_programs_hold_what_this_one_waits_for() -> None:
    with one_core_shared(with_child=False):
        begun = CoreMeter()
        spin(1.0)
        facts = begun.facts()
    assert facts is not None
    assert facts.processor_s <= 0.6 * facts.length_s  # half at most; the kernel divides it fairly
    assert facts.others_s == pytest.approx(facts.waiting_s, rel=0.2)


def test_a_short_interval_has_no_facts() -> None:
    assert CoreMeter().facts() is None


def test_descendants_are_those_of_psutil() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & echo; wait"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        try:
            expected = {child.pid for child in psutil.Process().children(recursive=True)}
            assert set(_descendants(os.getpid())) == expected
            assert len(_descendants(parent.pid)) == 2
        finally:
            for child in _descendants(parent.pid):
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(("after", "expected"), [
    ({}, None), ({"time_s": 0.09}, None),
    ({"time_s": 0.1}, CoreUse(0.1, 3, 0, 0, 0, 0, 0)),
    ({"time_s": 2, "processor_s": 5, "busy_s": 9, "waiting_s": 1, "stolen_s": 2, "num_involuntary_switches": 4},
     CoreUse(2, 3, 5, 4, 1, 2, 4)),
    ({"time_s": 2, "processor_s": 5, "busy_s": 4}, CoreUse(2, 3, 5, 0, 0, 0, 0)),
    ({"time_s": 2, "processor_s": -1, "waiting_s": -1, "busy_s": 3}, CoreUse(2, 3, 0, 4, 0, 0, 0)),
    ({"time_s": 2, "waiting_s": None, "stolen_s": None, "num_involuntary_switches": None}, CoreUse(2, 3, 0, 0)),
])
def test_use_is_the_increase_of_counters(monkeypatch: pytest.MonkeyPatch, after: dict[str, Any],
                                         expected: CoreUse | None) -> None:
    begun = {"time_s": 0.0, "processor_s": 20, "busy_s": 30, "waiting_s": 40, "stolen_s": 50,
             "num_involuntary_switches": 60}
    ended = {name: None if after.get(name, 0) is None else value + after.get(name, 0) for name, value in begun.items()}
    totals = [core_use._Totals(**begun), core_use._Totals(**ended)]  # type: ignore[arg-type]
    monkeypatch.setattr(core_use, "_totals", lambda: totals.pop(0))
    monkeypatch.setattr(core_use, "usable_cores", lambda: 3)
    found = CoreMeter().facts()
    assert (found is None) is (expected is None)
    if found is not None and expected is not None:
        assert asdict(found) == {name: value if value is None else pytest.approx(value)
                                 for name, value in asdict(expected).items()}


@pytest.mark.parametrize(("allowed", "busy_s", "steal"), [([0, 2], 4 + 6, True), ([0, 9], 4 + 5 + 6, True),
                                                          ([1], 5, False), ([0, 3], 4 + 5 + 6, False)])
def test_busy_time_is_that_of_the_usable_cores(monkeypatch: pytest.MonkeyPatch, allowed: list[int], busy_s: float,
                                               steal: bool) -> None:
    names = ("user", "idle", *(["steal"] if steal else []))
    cores = [namedtuple("Times", names)(*(4 + core, 100, 10 + core)[:len(names)]) for core in range(3)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: allowed)
    found = core_use._totals()
    numbers = allowed if max(allowed) < 3 else range(3)
    assert (found.busy_s, found.stolen_s) == (busy_s, sum(10 + core for core in numbers) if steal else None)
