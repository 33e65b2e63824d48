"""Windows and macOS lack modules, functions, signals and files of Linux: what must work there is imported without."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from charact.cli import run
from charact.measure.passes.resident_memory import resident_peak_bytes

ROOT = Path(__file__).parents[2]
NEED_UNIX = {
    "charact.measure.script": "watches a script by its signals and by the processes that it forks",
    "charact.profiler": "uses charact.measure.script",
    "charact.integrations": "use charact.profiler; their frameworks may be absent, too",
    "charact.__main__": "runs the command line",
}
"""Modules and packages that need Unix, with the reason; on macOS they can be imported, too."""
WITHOUT = """
import builtins, importlib, io, os, signal, sys
import matplotlib, multiprocessing, pandas, psutil, pyarrow, subprocess, tempfile, tensorboard, torch
import torch.distributed, torch.utils.data  # the libraries work on all systems by themselves

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "getuid", "geteuid",
             "getgid", "nice", "setsid", "killpg", "getpgid", "getloadavg", "sysconf", "statvfs", "uname", "wait4",
             "WIFSIGNALED", "WTERMSIG", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "mkfifo", "fchmod"):
    if hasattr(os, name):  # this may be such a system
        delattr(os, name)
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGQUIT", "SIGCHLD", "SIGALRM", "SIGTSTP", "SIGCONT",
             "SIGSTOP", "SIGWINCH", "SIGPIPE", "SIG_BLOCK", "SIG_SETMASK", "SIG_UNBLOCK", "pthread_sigmask",
             "setitimer", "alarm", "sigwait"):
    if hasattr(signal, name):
        delattr(signal, name)

opened, listed = io.open, os.listdir

def absent(function):
    def call(path=".", *arguments, **options):
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *arguments, **options)
    return call

builtins.open = io.open = absent(opened)
os.listdir = absent(listed)
"""


def modules() -> list[str]:
    """All modules of charact that must be imported on every system."""
    paths = [*(ROOT / "charact").rglob("*.py"), *(ROOT / "workloads").rglob("*.py")]
    names = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    names = [name if name.startswith("charact") else f"charact.{name}" for name in names]
    return [name for name in names
            if not any(name == one or name.startswith(f"{one}.") for one in NEED_UNIX)]


@pytest.mark.slow
def test_every_module_but_the_exceptions_is_imported_without_what_other_systems_lack() -> None:
    """A module that no longer needs Unix leaves the list of exceptions."""
    names = modules()
    assert len(names) > 400
    program = f"""
for name in {names!r}:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"{{name}}: {{type(error).__name__}}: {{error}}")
for name in ("charact.measure.script.session", "charact.profiler", "charact.integrations.lightning"):
    try:
        importlib.import_module(name)
    except (AttributeError, ImportError) as error:
        assert "fork" in str(error) or "SIG" in str(error) or "halted" in str(error), error
    else:
        print(f"{{name}} is imported")
import charact.cli
assert charact.cli.run(["list", "workloads"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " is imported" not in done.stdout
    assert "Error: " not in done.stdout
    assert "resnet50" in done.stdout


@pytest.mark.parametrize("command", [["run", "train.py"], ["bricks", "run", "suite"]])
def test_commands_that_fork_are_rejected_in_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "fork", raising=False)
    assert run(command) == 2
    assert capsys.readouterr().err.endswith("needs a system that forks processes, such as Linux or macOS: use one, "
                                            "or WSL\n")


def test_memory_is_measured_without_the_module_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts:
        peak_wset = 7_000_000

    class Process:
        def memory_info(self) -> Counts:
            return Counts()

    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(psutil, "Process", Process)
    assert resident_peak_bytes() == 7_000_000
