"""Fixtures that every test may use."""

import gc
import getpass
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from filelock import FileLock
from support import records
from support.ceilings import keep_made_up

# No test fails because it takes long. `make test` tries few examples, `make test-all` many.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)
hypothesis.settings.register_profile("all", deadline=None, max_examples=60)
NEEDS = {"browser tests": "Chromium", "tests of real data and traces": "../shared", "GPU tests": "CUDA"}
"""Groups of tests that are skipped without something, by a word of the skip's reason."""


def pytest_configure(config: pytest.Config) -> None:
    """Prepare Hypothesis, the collector, signals and the cache of PyTorch's compiler.

    Tests leave many objects, so the collector waits for more of them. Programs that tests start inherit which signals
    are ignored, so none is.
    """
    gc.set_threshold(20_000, 20, 50)
    for number in (signal.SIGINT, signal.SIGHUP) if sys.platform != "win32" else ():
        if signal.getsignal(number) is signal.SIG_IGN:  # by `nohup`, or a shell that runs the tests in the background
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    hypothesis.settings.load_profile("quick" if config.getoption("markexpr") == "not slow" else "all")
    if limit := os.environ.get("ATEN_CPU_CAPABILITY"):
        # Before PyTorch's compiler is imported, which sets this variable. With one cache for all, PyTorch would reuse
        # code for other instructions, which does not compile or aborts.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir())
                                                             / f"torchinductor-{getpass.getuser()}-{limit}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report in one line how many tests were skipped and what they need, and in another the CPU time of the session."""
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.stats.get("skipped", [])
               if isinstance(report.longrepr, tuple | list)]  # fmt: skip
    counts = {name: sum(word in reason for reason in reasons) for name, word in NEEDS.items()}
    skipped = [f"{count} {name} (no {NEEDS[name]})" for name, count in counts.items() if count]
    if rest := len(reasons) - sum(counts.values()):
        skipped.append(f"{rest} others (-rs shows why)")
    if skipped:
        terminalreporter.write_line(f"skipped: {', '.join(skipped)}")
    times = os.times()
    cpu_s = times.user + times.system + times.children_user + times.children_system
    terminalreporter.write_line(f"CPU time of the tests and their child processes: {cpu_s:.0f} s")


_modules_frozen = 0


@pytest.fixture(autouse=True)
def imports_are_not_collected() -> None:
    """Keep the collector, which every measured case calls, from walking all that tests import: 0.4 s each time."""
    global _modules_frozen
    if len(sys.modules) > _modules_frozen + 20:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the tests, and the processes they start, a cache of their own, in which ceilings are kept already.

    Measuring them takes seconds, and what other tests do meanwhile would make them low.
    """
    # Else each session would look for the system's fonts anew.
    os.environ.setdefault("MPLCONFIGDIR", str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
                                              / "matplotlib"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    keep_made_up()


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Skip waiting for the disk: no test cuts the power, and each record waits dozens of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which still fails for a file that is closed
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread: of two, one often waits for the other, which may have to wait for a core."""
    import torch  # here, since most tests need none

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_figures_plain(node: Any, patch: pytest.MonkeyPatch) -> None:
    """Draw the figures of a test or a module as its marks say: by default as their texts alone."""
    if "charact.views.html.drawing" in sys.modules:
        from support import plain_figures  # here, since most tests need none

        if node.get_closest_marker("drawn") is not None:
            plain_figures.draw_all(patch)
        elif node.get_closest_marker("without_figures") is not None:
            plain_figures.leave_titles(patch)
        else:
            plain_figures.leave_texts(patch)


@pytest.fixture(scope="module", autouse=True)
def plain_figures_of_fixtures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Figures that a module's fixtures make are plain."""
    with pytest.MonkeyPatch.context() as patch:
        make_figures_plain(request.node, patch)
        yield


@pytest.fixture(autouse=True)
def plain_figures_of_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that tests make are plain."""
    make_figures_plain(request.node, monkeypatch)


@pytest.fixture(scope="session")
def measured_ceilings(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Ceilings of this machine's processor, measured once by all workers."""
    import torch  # here, since most tests need none

    from charact.measure.microbench.ceilings import measure_ceilings

    own = tmp_path_factory.getbasetemp()
    path = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "ceilings.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_text(json.dumps(measure_ceilings(torch.device("cpu"))), encoding="utf-8")
        ceilings: list[Any] = json.loads(path.read_text(encoding="utf-8"))
    return ceilings


@pytest.fixture(scope="module")
def short_counter_pass() -> Iterator[None]:
    """Counter passes of a tenth of a second, where no test looks at what they count."""
    from support.forked import SHORT_COUNTER_PASS_S

    from charact.measure.passes import counters  # here, since most tests need neither

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "MIN_SECONDS", SHORT_COUNTER_PASS_S)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """Commands in forked children of one process that has imported everything: see `support.forked`."""
    from support.forked import serving  # here, since most tests need none

    with serving() as one:
        yield one


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but the first of `slow_variants` to the slow tests, and give tests of a clock two more tries.

    A clock is held against another, and other programs may take the core away in between.
    """
    shown = set()
    for item in items:
        if item.get_closest_marker("clock") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2))
        if item.get_closest_marker("slow_variants") is not None and item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            if test in shown:
                item.add_marker(pytest.mark.slow)
            shown.add(test)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked `fresh_process` in a process of its own: the heap of this one has holes by now."""
    if pyfuncitem.get_closest_marker("fresh_process") is None or "IN_FRESH_PROCESS" in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(command, cwd=pyfuncitem.config.rootpath, env=os.environ | {"IN_FRESH_PROCESS": "1"},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return True


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A run directory with known numbers: resnet50 at 32 and 224 px, train and infer."""
    return records.write_record(tmp_path / "runs")
