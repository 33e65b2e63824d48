"""A sweep as a user runs it: resumed after kills, every case measured once, here and on a Slurm cluster."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.forked import Server

from charact import load_runs
from charact.sweeps import local

Here = Callable[..., Any]
CHARACT = [sys.executable, "-m", "charact", "sweep"]
CLUSTER = Path(__file__).parents[3] / "shared" / "slurm"
_HAS_SLURM = shutil.which("sbatch") is not None and shutil.which("munged") is not None
needs_slurm = pytest.mark.skipif(not (_HAS_SLURM and CLUSTER.is_dir()),
                                 reason="needs an emulated cluster: slurm-wlm, munge, and shared/slurm")


_SHORT_S = 0.05
TOO_LARGE = "gemm:4000000x4000000x8"
"""A product that no memory holds: its case fails."""


def sweep_file(folder: Path, num_cases: int, case_s: float = _SHORT_S) -> Path:
    """A file of cases that measure for `case_s` each, after the start of their processes."""
    path = folder / "trial.yaml"
    problems = ", ".join(f'"gemm:{64 + number}x8x8"' for number in range(num_cases))
    longer = ", precision-target: 0, max-repetitions: 1000000" if case_s > _SHORT_S else ""
    text = f"command: ops\nmatrix: {{problem: [{problems}]}}\noptions: {{max-seconds: {case_s}{longer}}}\n"
    path.write_text(text, encoding="utf-8")
    return path


def sweep(*arguments: str | Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*CHARACT, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env=os.environ | (env or {}))


def status(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sweep("status", out, "--json").stdout)
    return found


def done(out: Path) -> set[str]:
    """Identities of the cases that succeeded; none before the sweep has a list of its cases."""
    if not (out / "sweep.json").is_file():
        return set()
    return {case["id"] for case in status(out)["cases"] if case["state"] == "ok"}


def assert_each_measured_once(out: Path, num_cases: int) -> None:
    found = status(out)
    assert found["counts"]["ok"] == num_cases, found
    runs = [path.name for path in (out / "runs").iterdir() if not path.name.startswith(".")]
    assert sorted(runs) == sorted(case["run"] for case in found["cases"])
    assert not list((out / "runs").glob(".partial-*"))


@pytest.fixture
def forked_tasks(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases run in forked children, which need not import PyTorch."""
    (tmp_path / "task.py").write_text("import sys\nfrom charact.sweeps.task import main\nsys.exit(main())\n")

    class Task:
        def __init__(self, command: list[str], **_: Any) -> None:
            assert command[:3] == [sys.executable, "-m", "charact.sweeps.task"]
            self._child = server.start("task.py", *command[3:], cwd=tmp_path)

        def wait(self) -> int:
            return self._child.wait().status

    monkeypatch.setattr(local.subprocess, "Popen", Task)


@pytest.mark.usefixtures("forked_tasks")
def test_a_sweep_records_failures_and_runs_the_rest(tmp_path: Path, here: Here) -> None:
    file, out = sweep_file(tmp_path, 1), str(tmp_path / "out")
    file.write_text(file.read_text().replace("problem: [", f'problem: ["{TOO_LARGE}", '))
    done = here("sweep", str(file), "--out", out, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "2/2 ops problem=gemm:64x8x8" in done.stdout.replace(" max-seconds=0.05", "")
    assert f"problem={TOO_LARGE}: failed: oom: " in done.stderr
    found = json.loads(here("sweep", "status", out, "--json", cwd=tmp_path).stdout)
    assert found["counts"] == {"ok": 1, "failed": 1, "killed": 0, "running": 0, "waiting": 0}
    ended = (tmp_path / "out" / "cases").stat().st_mtime_ns
    assert here("sweep", str(file), "--out", out, cwd=tmp_path).returncode == 1
    assert (tmp_path / "out" / "cases").stat().st_mtime_ns == ended  # nothing ran again
    merged = here("sweep", "merge", out, cwd=tmp_path)
    assert merged.returncode == 0, merged.stderr
    assert len((tmp_path / "out" / "cases.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2
    assert (tmp_path / "out" / "report.html").is_file()


def test_one_coordinator_at_a_time_and_one_sweep_a_directory(tmp_path: Path, here: Here) -> None:
    from charact.sweeps.definition import Definition, SweepCase
    from charact.sweeps.directory import SweepDirectory

    file, out = sweep_file(tmp_path, 1), tmp_path / "out"
    directory = SweepDirectory(out)
    directory.create(Definition("other", (SweepCase("infer", (), 1),)))
    assert "is the directory of the sweep 'other', not of 'trial'" in here(
        "sweep", str(file), "--out", str(out), cwd=tmp_path).stderr
    directory.create(Definition("other", ()))
    other = tmp_path / "other.yaml"
    file.rename(other)
    with directory.locked("coordinator"):
        assert "another process runs the sweep" in here("sweep", str(other), "--out", str(out), cwd=tmp_path).stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    for arguments in ([str(other), "--out", "full"], ["status", "full"]):
        assert "is no directory of a sweep" in here("sweep", *arguments, cwd=tmp_path).stderr


@pytest.mark.slow
def test_thirty_kills_lose_nothing_and_measure_nothing_twice(tmp_path: Path) -> None:
    """Kill the coordinator, the running case or both at random moments, and run the same command again."""
    chance = random.Random(0)
    num_cases = 8
    file, out = sweep_file(tmp_path, num_cases), tmp_path / "out"
    kills, ended = 0, 0
    for _ in range(60):
        process = subprocess.Popen([*CHARACT, str(file), "--out", str(out), "--quiet"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.3, 4))
        if process.poll() is not None:
            ended += 1
            if kills >= 30:
                break
            shutil.rmtree(out)  # all done too early: begin again
            continue
        victims = [psutil.Process(process.pid)]
        victims = chance.choice([victims, victims[0].children(), [*victims, *victims[0].children()]])
        done_before = done(out)
        for victim in victims:
            if psutil.pid_exists(victim.pid):
                victim.send_signal(signal.SIGKILL)
                kills += 1
        if victims == psutil.Process().children() or process.poll() is None:
            process.wait()
        assert done_before <= done(out)
    assert kills >= 30
    assert sweep(file, "--out", out).returncode == 0
    assert_each_measured_once(out, num_cases)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Environment for commands of an emulated cluster of three nodes; with the parameter 'accounting', sacct works."""
    accounting = getattr(request, "param", "") == "accounting"
    if accounting and not (shutil.which("slurmdbd") and shutil.which("mariadbd")):
        pytest.skip("no slurmdbd or no mariadbd")
    # The database has its own user, who must reach its folder.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp")) if accounting else tmp_path / "cluster"
    with contextlib.suppress(FileNotFoundError):
        folder.chmod(0o755)
    more = {"ACCT": "1", "TMPDIR": "/var/tmp"} if accounting else {}
    subprocess.run(["bash", str(CLUSTER / "start.sh"), str(folder)], check=True, capture_output=True, timeout=120,
                   env=os.environ | more | {"PORT": "17817"})
    yield {"SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run(["bash", str(CLUSTER / "stop.sh"), str(folder)], check=False, capture_output=True, timeout=120)
    shutil.rmtree(folder, ignore_errors=True)


@needs_slurm
def test_a_sweep_on_slurm_survives_a_cancelled_job(tmp_path: Path, cluster: dict[str, str]) -> None:
    file, out = sweep_file(tmp_path, 6), tmp_path / "out"
    arguments = [file, "--out", out, "--launcher", "slurm", "--slurm", "exclusive=true"]
    coordinator = subprocess.Popen([*CHARACT, *map(str, arguments)], env=os.environ | cluster,
                                   stdout=subprocess.DEVNULL)
    jobs = queue(cluster, at_least=1)
    subprocess.run(["scancel", jobs[0]], env=os.environ | cluster, check=True)
    coordinator.send_signal(signal.SIGINT)
    assert coordinator.wait(60) == 130
    again = sweep(*arguments, env=cluster)
    if again.returncode:  # the cancelled job was followed, and is reported as lost
        assert "left the queue without a result" in again.stderr
        again = sweep(*arguments, env=cluster)
    assert again.returncode == 0, again.stderr
    assert_each_measured_once(out, 6)


@pytest.mark.slow
@needs_slurm
def test_a_task_on_slurm_starts_the_ranks_of_its_case(tmp_path: Path, cluster: dict[str, str]) -> None:
    file, out = tmp_path / "ranks.yaml", tmp_path / "out"
    file.write_text("{name: ranks, command: profile, matrix: {workload: [mlp], nproc: [2]}, "
                    "options: {parallel: ddp, mode: train, batch-sizes: 8, max-seconds: 0.2}}\n", encoding="utf-8")
    done = sweep(file, "--out", out, "--launcher", "slurm", env=cluster)
    assert done.returncode == 0, done.stderr
    (run,) = load_runs(out / "runs")
    assert [(entry.case[-5:], entry.status) for entry in run.entries] == [("rank0", "ok"), ("rank1", "ok")]


def queue(cluster: dict[str, str], at_least: int) -> list[str]:
    """Wait for jobs in the queue, and return their numbers."""
    for _ in range(300):
        listed = subprocess.run(["squeue", "-h", "-r", "-o", "%i"], env=os.environ | cluster, capture_output=True,
                                text=True, check=True).stdout.split()
        if len(listed) >= at_least:
            return listed
        time.sleep(0.1)
    raise AssertionError("no job was submitted")


@pytest.mark.slow
@needs_slurm
@pytest.mark.parametrize("cluster", ["no accounting", "accounting"], indirect=True)
def test_forty_cases_survive_cancels_a_dead_node_and_preemption(tmp_path: Path, cluster: dict[str, str]) -> None:
    """After 20 cancelled jobs, a killed node and a preempted job, the same command measures the rest once."""
    chance = random.Random(1)
    file, out = sweep_file(tmp_path, 40, case_s=2.0), tmp_path / "out"
    arguments = [file, "--out", out, "--launcher", "slurm", "--slurm", "exclusive=true,signal_delay_s=30", "--quiet"]
    environment = os.environ | cluster
    num_cancelled, has_killed, has_preempted = 0, False, False
    for _ in range(40):
        coordinator = subprocess.Popen([*CHARACT, *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        while coordinator.poll() is None:
            time.sleep(chance.uniform(0.2, 1.5))
            running = subprocess.run(["squeue", "-h", "-r", "-t", "R", "-o", "%i"], env=environment, check=True,
                                     capture_output=True, text=True).stdout.split()
            if not running:
                continue
            if num_cancelled >= 5 and not has_preempted:
                command = ["scancel", "--signal=USR2", running[0]]
                has_preempted = subprocess.run(command, env=environment, check=False).returncode == 0  # or it ended
            elif num_cancelled >= 10 and not has_killed:
                kill_node("n2", Path(cluster["SLURM_CONF"]).parent, environment)
                has_killed = True
            elif num_cancelled < 20:
                cancelled = subprocess.run(["scancel", chance.choice(running)], env=environment, check=False)
                num_cancelled += cancelled.returncode == 0
        if coordinator.returncode == 0:
            break
    assert (num_cancelled, has_preempted, has_killed) == (20, True, True)
    assert_each_measured_once(out, 40)
    logs = [path.read_text(encoding="utf-8") for path in (out / "slurm").glob("*_log.*")]
    assert any("this job is preempted" in log for log in logs)


def kill_node(name: str, folder: Path, environment: dict[str, str]) -> None:
    """Kill a node of the cluster with all that runs on it."""
    jobs = subprocess.run(["squeue", "-h", "-r", "-w", name, "-o", "%i %A"], env=environment, check=True,
                          capture_output=True, text=True).stdout.split()
    lines = {process: " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])}
    daemons = [process for process, line in lines.items() if f"-N {name}" in line and str(folder) in line]
    steps = [process for process, line in lines.items()
             if "slurmstepd" in line and any(f"[{job}." in line for job in jobs)]
    assert daemons
    for process in [*daemons, *steps]:
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
