"""Use of the cores: what a spinning process used and waited for is the time that passed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from charact.machine.core_use import CoreMeter, _descendants

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
