"""Trials in processes of their own: seeds, losses, and remedies that cannot be applied."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.remedied import tried

from charact.remedies.process import Command
from charact.remedies.program import Program
from charact.remedies.race import trial_options
from charact.remedies.remedy import Setting

PROGRAM = """
import random
import numpy as np
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=.1)
facts = {"losses": []}
for step in range(12):
    images = torch.rand(8, 4) * random.random() + float(np.random.rand())
    loss = net(images).square().mean()
    facts["losses"].append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_trials_draw_the_same_random_numbers_and_record_the_first_losses(tmp_path: Path) -> None:
    first, facts = tried(tmp_path, PROGRAM)
    second, others = tried(tmp_path, PROGRAM, ("threads", {"num_threads": 1}))
    assert (first.failure, second.failure) == (None, None)
    assert len(set(facts["losses"])) == 12
    assert first.losses == tuple(facts["losses"][:10])
    assert second.losses == pytest.approx(first.losses, rel=1e-6)
    assert others["losses"] == pytest.approx(facts["losses"], rel=1e-5)
    assert first.run is not None
    assert second.run is not None
    assert first.run.path != second.run.path


def test_a_trial_imports_nothing_that_a_watched_program_does_not() -> None:
    """With pandas, the workers of a loader start a quarter of a second later, in each epoch."""
    program = ("import sys; from charact.remedies import losses, patching, remedy, trial; remedy.all_remedies(); "
               "print({'torch', 'pandas', 'pyarrow', 'numpy', 'scipy'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse the name")
def test_a_trial_in_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    directory.mkdir()
    trial, facts = tried(directory, PROGRAM.replace("range(12)", "range(6)").replace(
        "loss.item()", "loss.item() if step else float('nan')").replace("loss.backward()", "(loss / 0).backward()"))
    assert trial.failure is None
    assert facts["losses"][1:]
    assert trial.losses == (None,) * 6  # JSON has no infinity


def test_a_remedy_that_cannot_be_applied_is_the_reason_of_the_failure(tmp_path: Path) -> None:
    program = "\n".join([
        "from torch.utils.data import DataLoader, IterableDataset",
        "class Items(IterableDataset):",
        "    def __iter__(self): return iter(range(4))",
        "try:",
        "    loader = DataLoader(Items())",
        "finally:",
        "    print('the last line')",
        PROGRAM])
    trial, facts = tried(tmp_path, program, ("workers", {"num_workers": 1, "file": None, "line": None}))
    assert (trial.run, facts) == (None, {})
    assert trial.failure is not None
    assert "IterableDataset" in trial.failure
    assert "Traceback" not in trial.failure


RANKS = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=.1)
facts = {"fused": bool(optimizer.param_groups[0]["fused"]), "losses": []}
for step in range(4):
    loss = net(torch.ones(8, 4)).square().mean() * (1 + dist.get_rank())
    facts["losses"].append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
if int(os.environ["RANK"]):
    raise SystemExit
"""


@pytest.mark.slow
def test_ranks_have_the_remedies_and_the_losses_are_those_of_the_first(tmp_path: Path) -> None:
    trial, facts = tried(tmp_path, RANKS, ("fused", {"name": "SGD", "file": None, "line": None}),
                         options=("--nproc", "2"))
    assert trial.failure is None
    assert facts["fused"] is True
    assert trial.losses == tuple(facts["losses"])


def test_a_trial_of_a_workload_times_the_longest_case_alone(tmp_path: Path) -> None:
    words = ("mlp", "--batch-sizes", "2,64", "--max-seconds", "60", "--threads", "2")
    command = Command("profile", words, b"", tmp_path)
    first = command.measured(["--max-seconds", "0.1", "--counters", "none"], [], tmp_path / "first", 100.0)
    assert first.run is not None, first.failure
    assert len(first.run.entries) == 4
    settings = [Setting(name, values, name, name) for name, values in (
        ("threads", {"num_threads": 1}), ("channels-last", {}))]
    trial = command.measured(trial_options(Program(first.run), 0.1), settings, tmp_path / "trial", 100.0)
    assert trial.run is not None, trial.failure
    (entry,) = trial.run.entries
    assert (entry.mode, entry.batch_size) == ("train", 64)
    assert {name for name in entry.passes if entry.passes[name].status == "ok"} == {"timing"}
    assert (first.run.options.threads, trial.run.options.threads) == (2, 1)
    assert trial.run.manifest["options"]["max_seconds"] == 0.1
    assert len(trial.losses) >= 6
    assert not list(tmp_path.rglob("report.html"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent was killed")
def test_a_trial_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """The program would go on for a minute, without iterations."""
    (tmp_path / "train.py").write_text("import os, time, torch\nopen('pid', 'w').write(str(os.getpid()))\n"
                                       "time.sleep(60)\n")
    starter = ("from pathlib import Path; from charact.remedies.process import Command; import sys;"
               "Command('run', ('train.py',), b'', Path.cwd()).measured([], (), Path('runs'), 100.0)")
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path)
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(10)
