"""`charact try` on scripts whose remedies are known."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from charact.record.reader import load_run

QUICK = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
WAITING = textwrap.dedent("""\
    import statistics, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Waiting(Dataset):
        def __len__(self):
            return 1600

        def __getitem__(self, index):
            time.sleep(0.002)
            return torch.ones(8), torch.zeros(1)

    if __name__ == "__main__":
        net = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        times, last = [], time.perf_counter()
        for inputs, targets in DataLoader(Waiting(), batch_size=16):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(inputs), targets).backward()
            optimizer.step()
            times.append(time.perf_counter() - last)
            last = time.perf_counter()
        print(statistics.fmean(times[20:]))
        torch.save(net.state_dict(), "last.pt")
    """)
STEPS = textwrap.dedent("""\
    import os, sys, time
    import torch

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    """)
"""The beginning of a program of quick steps, whose optimizer can be fused."""


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    output: str
    error: str


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Any:
    """Check that no process that works in the test's directory is left."""
    yield
    if sys.platform == "linux":
        assert processes_in(tmp_path) == []


def processes_in(directory: Path) -> list[str]:
    """Return the command lines of processes in a directory, which end within a second or stay."""
    for _ in range(20):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if Path(os.readlink(process / "cwd")).is_relative_to(directory):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:  # it has ended, or is another user's
                continue
        if not found:
            break
        time.sleep(0.05)
    return found


def start(directory: Path, arguments: Sequence[object], **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", "charact", "try", *map(str, arguments)], cwd=directory,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            **{"env": os.environ | QUICK, "stdin": subprocess.DEVNULL, **options})


def tried(directory: Path, *arguments: object, stdin: str = "") -> Done:
    process = start(directory, arguments, stdin=subprocess.PIPE)
    output, error = process.communicate(stdin, timeout=550)
    return Done(process.returncode, output, error)


def facts_of(done: Done) -> dict[str, Any]:
    assert done.status == 0, done
    assert done.error == ""
    facts: dict[str, Any] = json.loads(done.output)
    return facts


def failed(done: Done, reason: str) -> None:
    """Check that a command printed one error, with this reason."""
    assert (done.status, done.output) == (2, ""), done
    *_, line = done.error.splitlines()
    assert line.startswith("error: ")
    assert reason in line


@pytest.mark.slow
@pytest.mark.clock
def test_workers_save_what_the_patched_script_saves(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text(WAITING)
    (tmp_path / "kept.txt").write_text("x")
    done = tried(tmp_path, "--only", "workers", "--max-minutes", 4, "--write-patch", "src/train.py")
    assert done.status == 0, done
    (place,) = (tmp_path / "runs").glob("*/try.json")
    facts = json.loads(place.read_text())
    best = facts["remedies"][0]
    assert best["state"] == "proven"
    assert re.fullmatch(r"num_workers=\d+, persistent_workers=True", best["remedy"])
    assert best["place"] == "train.py:17"
    assert best["losses_frac"] == 0
    assert facts["written_files"] == ["last.pt"] or facts["written_files"] == []

    def iteration_s() -> float:
        done = subprocess.run([sys.executable, "src/train.py"], cwd=tmp_path, env=os.environ | QUICK, text=True,
                              capture_output=True, check=True)
        return float(done.stdout)

    without_s = iteration_s()
    diff = done.output[done.output.index("--- a/src/train.py"):].rpartition("Wrote ")[0]
    subprocess.run(["patch", "-p1"], input=diff, text=True, cwd=tmp_path, check=True, capture_output=True)
    assert best["remedy"] in (folder / "train.py").read_text()
    ratio = iteration_s() / without_s
    # The machine may be busy with other tests.
    assert 0.85 * (1 - best["high_frac"]) - 0.05 <= ratio <= 1.15 * (1 - best["low_frac"]) + 0.05
    assert facts["baseline_s"] == pytest.approx(without_s, rel=0.15)


@pytest.mark.slow
def test_the_patch_of_a_module_makes_it_faster(tmp_path: Path) -> None:
    (tmp_path / "manner").mkdir()
    (tmp_path / "manner" / "__main__.py").write_text(STEPS + textwrap.dedent("""\
        is_fused = bool(optimizer.param_groups[0]["fused"])
        for number in range(50):
            step()
            time.sleep(0.0 if is_fused else 0.02)
        print(is_fused)
        """))
    done = tried(tmp_path, "--only", "fused", "--max-minutes", 4, "--write-patch", "--scratch", "-m", "manner")
    diff = done.output[done.output.index("--- a/manner/__main__.py"):].rpartition("Wrote ")[0]
    subprocess.run(["git", "apply"], input=diff, text=True, cwd=tmp_path, check=True, capture_output=True)
    module = subprocess.run([sys.executable, "-m", "manner"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert module.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("is_module", [False, True])
def test_a_trial_runs_the_program_as_it_is_called(tmp_path: Path, is_module: bool) -> None:
    """Arguments, standard input, `__main__` and the directory are the same in each trial; a copy takes the files."""
    log, project = tmp_path / "log.jsonl", tmp_path / "project"
    project.mkdir()
    (project / "kept.txt").write_text("x")
    (project / "job.py").write_text("import argparse, json\n" + STEPS + textwrap.dedent(f"""\
        parser = argparse.ArgumentParser()
        parser.add_argument("--rate", type=float, required=True)
        parser.add_argument("data", nargs="+")
        options = parser.parse_args()
        if __name__ == "__main__":
            with open({str(log)!r}, "a") as file:
                print(json.dumps([vars(options), sys.argv[1:], sys.stdin.read(), os.getcwd()]), file=file)
            for number in range(2000):
                step()
                with open("epoch.txt", "w") as file:
                    file.write("1")
        """))
    before = sorted(project.iterdir())
    program = ["-m", "job"] if is_module else ["job.py"]
    facts = facts_of(tried(project, "--only", "fused,no-grad", "--max-minutes", 0.7, "--json", "--scratch",
                           "--out", tmp_path / "runs", *program, "--rate", "0.5", "a b", "--", "-c", stdin="one\ntwö"))
    runs = [json.loads(line) for line in log.read_text().splitlines()]
    # The probe and the first run come before the trials.
    assert len(runs) == facts["num_trials"] + 2 >= 4
    assert {json.dumps(each) for each in runs} == {json.dumps(
        [{"rate": 0.5, "data": ["a b", "-c"]}, ["--rate", "0.5", "a b", "--", "-c"], "one\ntwö", runs[0][3]])}
    assert Path(runs[0][3]).name == "project"
    assert Path(runs[0][3]) != project
    assert sorted(project.iterdir()) == before
    assert facts["written_files"] == []
    assert not Path(runs[0][3]).exists()
    states = {each["remedy"]: each for each in facts["remedies"]}
    assert states["no-grad"]["state"] == "not tried"
    assert states["fused=True"]["place"].startswith("job.py:")
    assert facts["baseline_s"] > 0


@pytest.mark.slow
def test_a_remedy_that_fails_is_a_row_and_written_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(STEPS + textwrap.dedent("""\
        if optimizer.param_groups[0]["fused"]:
            raise ValueError("no fused step here")
        for number in range(200):
            step()
            open("epoch.txt", "w").close()
        """))
    facts = facts_of(tried(tmp_path, "--only", "fused", "--max-minutes", 0.7, "--json", "job.py"))
    (row,) = facts["remedies"]
    assert (row["state"], row["num_turns"], row["reason"]) == ("failed", 0, "ValueError: no fused step here")
    assert facts["written_files"] == ["epoch.txt"]
    assert Path(facts["report"]).is_file()


@pytest.mark.slow_variants
@pytest.mark.parametrize(("program", "reason"), [
    (STEPS + "raise ValueError('no data')", "ValueError: no data"),
    (STEPS + "sys.exit('too early')", "too early"),
    (STEPS, "called no model"),
])
def test_a_program_that_cannot_be_measured(tmp_path: Path, program: str, reason: str) -> None:
    (tmp_path / "job.py").write_text(program)
    failed(tried(tmp_path, "job.py"), reason)


def test_a_first_run_that_hangs_is_ended_after_half_of_the_time(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(STEPS + "while True: time.sleep(1)")
    failed(tried(tmp_path, "--max-minutes", 0.2, "job.py"), "took longer than 6 s and was ended")


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--only", "worker", "job.py"], "workers"),
    (["--only", ",", "job.py"], "--only"),
    (["gone.py"], "gone.py"),
    ([], "charact try train.py"),
    (["--profile", "-m", "job"], "--module"),
    (["--profile", "--nproc", "2", "resnet18"], "--nproc"),
    (["--profile", "resnet18", "--parallel=ddp"], "--parallel"),
    (["--only", "threads", "--profile", "--model", "nets:Net"], "charact profile: --model needs its inputs"),
    (["--profile", "mlp", "--max-minutes=1"], "--max-minutes: give it before the workload"),
    (["--mode", "train", "--profile", "mlp"], "--mode"),
])
def test_bad_input(tmp_path: Path, arguments: list[str], reason: str) -> None:
    failed(tried(tmp_path, *arguments), reason)


NETS = """\
import os
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                          torch.nn.Linear(8 * 30 * 30, 10))

    def forward(self, images):
        with open("formats.txt", "a") as file:
            print(all(each.is_contiguous(memory_format=torch.channels_last)
                      for each in (images, self.layers[0].weight)), os.getpid(), file=file)
        return self.layers(images)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "only", "remedy", "option"), [
    (["resnet18", "--variant", "cifar"], "threads", "set_num_threads(1)", "--threads 1"),
    (["--model", "nets:Net", "--input-spec", "3xSxS -> int64[10]"], "channels-last", "channels_last",
     "--channels-last")])
def test_remedies_of_a_workload_and_of_a_model(tmp_path: Path, words: list[str], only: str, remedy: str, option: str
                                               ) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    facts = facts_of(tried(tmp_path, "--only", f"{only},fused,workers", "--max-minutes", 0.7, "--json", "--profile",
                           *words, "--input-sizes", 32, "--batch-sizes", 2, "--threads", 2, "--counters", "none"))
    rows = {each["remedy"]: each for each in facts["remedies"]}
    assert {name for name, row in rows.items() if row["state"] == "not tried"} == {"fused", "workers"}
    assert rows[remedy]["change"].endswith(f", as charact profile {option} does")
    assert rows[remedy]["num_turns"] >= 1
    assert rows[remedy]["iteration_s"] > 0
    assert rows[remedy]["losses_frac"] < 1
    trials = [load_run(path.parent) for path in Path(facts["report"]).parent.glob("trials/*/*/run.json")]
    assert len(trials) == facts["num_trials"]
    assert [entry.mode for run in trials for entry in run.entries] == ["train"] * len(trials)
    if only == "threads":
        assert {run.options.threads for run in trials} == {1, 2}
    else:
        seen = {tuple(line.split()) for line in (tmp_path / "formats.txt").read_text().splitlines()}
        processes = {process for is_last, process in seen if is_last == "True"}
        assert len(processes) == sum("channels-last" in str(run.path) for run in trials)


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen in a minute")


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_trial_and_ctrl_c_shows_what_is_decided(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "job.py").write_text(STEPS + textwrap.dedent("""\
        open(f"{os.getpid()}.run", "w").close()
        for _ in range(30):
            step()
        while len(os.listdir()) > 5:  # the third trial hangs
            time.sleep(1)
        for _ in range(2000):
            step()
        """))
    with start(tmp_path, ["--only", "fused", "job.py"], start_new_session=True) as process:
        wait_until(lambda: len(list(tmp_path.glob("*.run"))) == 4)
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "fused=True" in output
        (place,) = (tmp_path / "runs").glob("*/try.json")
        assert json.loads(place.read_text())["ending"] == "interrupted"
    else:
        assert process.returncode == 128 + number
    assert processes_in(tmp_path) == []
