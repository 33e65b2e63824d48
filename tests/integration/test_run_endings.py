"""Whatever way a program ends, it ends as it would alone; what was measured until then is a record."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forked import Server
from support.programs import OURS, Ended, num_iterations, only_record, run_bare, run_watched

from charact.commands._shared.publish import has_views

# A program without PyTorch has no record, and so ends within a second. All else is as with it.
ENDINGS = {
    "to its end": "print('out'); print('err', file=sys.stderr)\n"
                  "try:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
                  "except KeyboardInterrupt:\n    print('early')\n"
                  "threading.Thread(target=lambda: (time.sleep(.1), print('later'))).start(); print('main')\n"
                  "atexit.register(print, 'first'); atexit.register(print, 'second'); print('body')\n"
                  "import warnings; warnings.simplefilter('error'); print(warnings.filters[0])",
    "exit with a number": "sys.exit(3)",
    "exit with a text": "sys.exit('a text')",
    "exit below 0": "sys.exit(-1)",
    "exit beyond a byte": "sys.exit(2**40 + 7)",
    "an error": "def f():\n    raise ValueError('two\\nlines')\nf()",
    "an error from an error": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('x') from e",
    "a group of errors": "raise ExceptionGroup('both', [ValueError(1), TypeError(2)])",
    "a hook for errors": "sys.excepthook = lambda kind, *_: print('hook', kind, sys.last_type)\n1 / 0",
    "an own interrupt": "raise KeyboardInterrupt",
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "SIGTERM": "print('lost', end=''); os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
    "SIGTERM with a handler": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
                              "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)\ntime.sleep(9)",
    "os._exit": "print('lost', end=''); os._exit(5)",
    "a crash": "os.abort()",
    "another program in its place": "try:\n    os.execvp('not-there', ['x'])\nexcept FileNotFoundError:\n"
                                    "    print('none', flush=True)\nos.execlp('echo', 'echo', 'other')",
    "an error in a handler at exit": "atexit.register(int, 'x')",
    "exit in a handler at exit": "atexit.register(os._exit, 4)",
    "standard output closed": "sys.stdout.close()",
    "standard output gone": "sys.stdout = None",
    "all descriptors closed": "os.closerange(3, 100); f = open('own.txt', 'w'); f.write('x'); print(f.fileno())",
    "working directory removed": "os.mkdir('d'); os.chdir('d'); os.rmdir('../d'); print('gone')",
    "children": "if os.fork() == 0:\n    print('child'); sys.exit(2)\nprint(os.wait()[1], flush=True)\n"
                "if os.fork() == 0:\n    os._exit(2)\nprint(os.wait()[1], flush=True)\n"
                "if (c := os.fork()) == 0:\n    time.sleep(9); os._exit(0)\n"
                "os.kill(c, signal.SIGTERM); print(os.wait()[1])",
    "surroundings": "print(sys.stdin.read(), sys.argv, sys.path[0], os.getcwd(), __file__, __name__, __spec__, "
                    "type(__loader__), __builtins__, sorted(globals()))\n"
                    "print({k: v for k, v in os.environ.items() if 'LOG' in k}); print(sys.flags, sys.warnoptions)\n"
                    "import beside; print(beside.__file__)\nimport pickle\nclass A:\n    x = 1\n"
                    "print(pickle.loads(pickle.dumps(A())).x, A)",
    "what is in the working directory": "import only_there",
    "processes by spawning": "import multiprocessing as mp\ndef f(x):\n    return x * x\nif __name__ == '__main__':\n"
                             "    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(f, [3]))",
}


def script(directory: Path, text: str) -> Path:
    path = directory / "program.py"
    path.write_text(f"import atexit, os, signal, sys, threading, time\n{text}\n", encoding="utf-8")
    return path


def assert_same(bare: Ended, watched: Ended) -> None:
    assert watched.status == bare.status
    assert watched.output == bare.output
    assert watched.error == bare.error


@pytest.mark.slow_variants
@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_program_does_as_it_does_alone(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").touch()
    (tmp_path / "only_there.py").touch()
    path = script(folder, text)
    arguments = [str(path.relative_to(tmp_path)), "--epochs", "1", "--quiet", "-x", "--", "last"]
    bare, watched = (run(arguments, tmp_path, input="typed") for run in (run_bare, run_watched))
    assert_same(bare, watched)
    if text == ENDINGS["a crash"]:
        assert watched.ours == []
    else:
        assert watched.ours == ["charact: program did not import PyTorch: nothing was measured"]
        assert list((tmp_path / "runs").iterdir()) == []


def test_nobody_is_told_anything_where_standard_error_is_closed(tmp_path: Path) -> None:
    path = script(tmp_path, "sys.stderr.close(); os.close(2) if os.path.exists('/proc/self/fd/2') else 0\n"
                            "own = open('own.txt', 'w'); print(own.fileno())")
    bare, watched = run_bare([str(path)], tmp_path), run_watched([str(path)], tmp_path)
    assert_same(bare, watched)
    assert watched.output == "2\n"
    assert watched.ours == []
    assert (tmp_path / "own.txt").read_text() == ""


def test_a_module_does_as_it_does_alone(tmp_path: Path) -> None:
    arguments = ["-m", "package.train", "--out", "else", "-x", "--quiet"]
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print(sys.argv[0])\n")
    (package / "other.py").write_text("def fail():\n    raise ValueError('from another module')\n")
    (package / "train.py").write_text(
        "import sys\nfrom .other import fail\nprint(sys.argv, sys.path[0], __spec__.name, __package__)\nfail()\n")
    assert_same(run_bare(arguments, tmp_path), run_watched(arguments, tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.name != "package"] == ["runs"]


# With PyTorch: what was measured is there.

TRAINING = """
import torch
from torch import nn
from torch.nn import functional

class Model(nn.Linear):
    def forward(self, x):
        if number == 10:
            end_within()
        return super().forward(x)

def train():
    global number
    for number in range(10):
        loss = functional.mse_loss(model(torch.ones(4, 4)), torch.ones(4, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(.05)

end_within = lambda: None
number, model = 0, Model(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
train()
print("trained", flush=True)
"""
WITHIN = "\nnumber = 10\nmodel(torch.ones(4, 4))\n"


@pytest.mark.parametrize(("ending", "words"), [
    ("end_within = lambda: 1 / 0" + WITHIN, "ZeroDivisionError: division by zero"),
    pytest.param("end_within = lambda: os._exit(5)" + WITHIN, "os._exit(5)", marks=pytest.mark.slow),
    pytest.param("end_within = lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(9))" + WITHIN,
                 "ended by SIGTERM", marks=pytest.mark.slow),
])
def test_the_record_is_there_whatever_way_a_training_ends(tmp_path: Path, ending: str, words: str) -> None:
    path = script(tmp_path, TRAINING + ending)
    bare, watched = run_bare([str(path)], tmp_path), run_watched([str(path)], tmp_path)
    assert_same(bare, watched)
    run = only_record(tmp_path)
    assert watched.ours == [f"Wrote {run.path}"]
    assert run.manifest["ending"] == words
    assert run.manifest["status"] == "complete"
    assert num_iterations(run) == 8  # 2 of 10 are a warm-up


@pytest.mark.slow
def test_a_rude_program_does_as_it_does_alone_and_has_its_record(tmp_path: Path) -> None:
    path = script(tmp_path, "import resource, warnings\nwarnings.simplefilter('error')" + TRAINING.replace(
        "train()\nprint", "torch.set_default_dtype(torch.float64); model.double(); train()\nprint") + """
resource.setrlimit(resource.RLIMIT_NOFILE, (12, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.RLIM_INFINITY))
os.environ.clear()
os.makedirs("gone")
os.chdir("gone")
os.rmdir("../gone")
os.closerange(3, 50)
sys.stdout.flush()
sys.stdout.close()
""")
    bare, watched = run_bare([str(path)], tmp_path), run_watched([str(path)], tmp_path)
    assert_same(bare, watched)
    assert num_iterations(only_record(tmp_path)) == 8


@pytest.mark.slow
def test_an_exit_in_a_loader_worker_is_the_worker_s(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING + """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os._exit(6) if index == 2 else None
        return torch.ones(4)

import contextlib
with contextlib.suppress(RuntimeError):  # one of these two is noticed first, and the signal of the other may come later
    with contextlib.suppress(OSError):
        list(torch.utils.data.DataLoader(Data(), num_workers=1))
    time.sleep(1)
print("failed")
""")
    bare, watched = run_bare([str(path)], tmp_path), run_watched([str(path)], tmp_path)
    assert_same(bare, watched)
    assert watched.output == "trained\nfailed\n"
    run = only_record(tmp_path)
    assert run.manifest["ending"] == "to its end"


# For a number of iterations

WATCHED = "\nprint('charact' in repr((nn.Module.__call__, torch.optim.SGD.step.__globals__['__name__'])), flush=True)\n"


@pytest.mark.slow
def test_after_its_iterations_a_program_goes_on_unwatched(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING.replace("train()\nprint", f"{WATCHED}train()\nprint") + f"{WATCHED}train()")
    watched = run_watched(["--iterations", "4", "--skip", "2", str(path)], tmp_path)
    assert (watched.status, watched.output) == (0, "True\ntrained\nFalse\n")
    run = only_record(tmp_path)
    assert num_iterations(run) == 4
    timing = run.entries[0].passes.timing
    assert (timing.num_warmup_iterations, timing.ended_by) == (2, "max_iterations")


# What goes wrong

def test_on_a_full_disk_the_program_goes_on(tmp_path: Path, server: Server) -> None:
    done = server.charact("run", "--quiet", script(tmp_path, TRAINING), cwd=tmp_path, largest_file_bytes=700)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.startswith("charact: stopped measuring: no space left while writing ")
    assert all(line.startswith(OURS) for line in done.stderr.splitlines())


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "give a script: charact run train.py, or a module: charact run -m package.module"),
    (["nowhere.py"], "cannot read nowhere.py (no such file or directory): name the script"),
    (["folder"], "cannot read folder (is a directory): name the script"),
    (["broken.py"], "broken.py is not valid Python (invalid syntax, line 2): name the script to run"),
    (["-m", "no.where"], "module 'no.where' not found: name one that python -m finds from here"),
    (["--stop", "fine.py"], "--stop ends the script after --iterations: give a number"),
    (["--iterations", "0", "fine.py"], "--iterations: '0' is not allowed: give a whole number (at least 1)"),
    (["--out", "/proc/charact", "fine.py"], "choose another place"),
    (["--passes", "flop", "fine.py"], "--passes: 'flop' is not one of timing, operators, memory, inspection, counters"),
])
def test_a_mistake_is_told_in_a_line_and_nothing_is_run(
        tmp_path: Path, arguments: list[str], said: str, refused: Callable[..., None]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.py").write_text("x = 1\nif\n")
    (tmp_path / "fine.py").write_text("print('run')\n")
    refused("run", "--quiet", *arguments, said=said)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_record_is_written_does_not_prevent_it(tmp_path: Path, number: signal.Signals) -> None:
    path = script(tmp_path, TRAINING + "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)")
    child = subprocess.Popen([sys.executable, "-m", "charact", "run", "-q", str(path)], cwd=tmp_path,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stderr is not None
    assert any("KeyboardInterrupt" in line for line in iter(child.stderr.readline, ""))  # the record is being made
    time.sleep(0.3)
    os.killpg(child.pid, number)
    said = child.communicate()[1]
    run = only_record(tmp_path)
    assert said == f"Wrote {run.path}\n"
    assert num_iterations(run) == 8
    until = time.monotonic() + 60
    while not has_views(run.path):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_failure_before_the_first_iteration_is_the_reason_why_there_is_no_record(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch\nraise ValueError('no data')")
    watched = run_watched([str(path)], tmp_path)
    assert watched.status == 1
    assert watched.ours == [f"error: {path} ended before its first iteration did, so there is nothing to report: "
                            "ValueError: no data"]
