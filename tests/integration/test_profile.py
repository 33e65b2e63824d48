"""`charact profile` as a user runs it: in a process of its own, on seconds-long cases."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forked import Server
from support.programs import only_record

from charact import load_run

pytestmark = pytest.mark.clock

QUICK = ["--max-iterations", "6", "--max-seconds", "2"]
SMALL = ["mlp", "--input-sizes", "2,3", "--batch-sizes", "2", *QUICK]
Finished = tuple[subprocess.CompletedProcess[str], Path]
MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def charact(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "charact", *arguments], cwd=cwd, capture_output=True, text=True,
                          timeout=300, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Finished:
    directory = tmp_path_factory.mktemp("profile") / "place"
    directory.mkdir()
    done = server.charact("profile", *SMALL, cwd=directory, draws_views=True)
    assert done.returncode == 0, done.stderr
    return done, only_record(directory).path


@pytest.mark.slow
def test_ranks_and_a_single_process_give_the_scaling(tmp_path: Path) -> None:
    done = charact("profile", "mlp", "--parallel", "ddp", "--nproc", "1,2", "--batch-sizes", "32,64", *QUICK,
                   "--input-sizes", "8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "weak scaling to 2 ranks (batch 32 per rank, 64 in all)" in " ".join(done.stdout.split())
    run = only_record(tmp_path)
    assert list(run.cases["case"]) == [
        name for size in (32, 64) for name in (f"mlp-8-b{size}-train-fp32-cpu", *(
            f"mlp-8-b{size}-train-fp32-cpu-ddpx2-rank{rank}" for rank in (0, 1)))]
    assert run.entries[1].global_batch_size == 64
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Scaling efficiency" in page
    assert "Exposed communication" in page
    assert "Collectives of each rank" in page


class TestAFinishedRun:
    def test_it_ends_with_a_summary_and_where_to_go_next(self, finished: Finished) -> None:
        done, path = finished
        assert re.sub(r"^\[\d/\d\] .*\n", "", done.stderr, flags=re.MULTILINE) == ""  # but for progress
        assert f"Wrote runs/{path.name}" in done.stdout
        assert f"runs/{path.name}/report.html" in done.stdout
        assert "charact tensorboard runs" in done.stdout
        assert "mlp-3-b2-train-fp32-cpu" in done.stdout

    def test_the_record_holds_every_case_and_pass(self, finished: Finished) -> None:
        run = load_run(finished[1])
        assert run.manifest["status"] == "complete"
        assert run.manifest["command_line"] == ["charact", "profile", *SMALL]
        assert list(run.cases["case"]) == [f"mlp-{size}-b2-{mode}-fp32-cpu"
                                           for size in (2, 3) for mode in ("train", "infer")]
        assert set(run.cases["status"]) == {"ok"}
        assert set(run.iterations.groupby("case")["phase"].nunique()) == {6, 3}
        products = {size: (3 * size**2) * 512 + 512 * 512 + 512 * 10 for size in (2, 3)}
        assert set(run.cases["num_parameters"]) == {one + 512 + 512 + 10 for one in products.values()}
        forward = run.flop[run.flop["phase"] == "forward"].groupby("case")["flop"].sum()
        assert forward["mlp-3-b2-train-fp32-cpu"] == 2 * 2 * products[3]

    def test_nothing_hidden_is_left_and_the_traces_are_named_for_viewers(self, finished: Finished) -> None:
        _, path = finished
        assert not [entry for entry in path.parent.iterdir() if entry.name.startswith(".")]
        assert len(list((path / "trace").glob("*.pt.trace.json.gz"))) == 4
        assert list(path.glob("events.out.tfevents.*"))
        assert (path / "report.html").stat().st_size < 2e6


class TestBadInput:
    @pytest.mark.parametrize(("arguments", "message"), [
        (["mlp", "--parallel", "ddp", "--nproc", "2", "--compile"], "error: --parallel and --compile exclude"),
        (["mlp", "--parallel", "ddp", "--nproc", "2", "--mode", "infer"], "error: --parallel is for training"),
        (["mlp", "--parallel", "ddp", "--nproc", "2", "--passes", "timing"], "error: --parallel measures time only"),
        (["resnet18", "--lora", "4"], "error: --lora adapts linear layers of attention"),
        (["llama", "--lora", "65", "--mode", "train"], "error: --lora 65 is more than the width 64"),
        (["mlp", "--passes", "kernels"], "error: --passes: 'kernels' is not one of timing, operators"),
        (["rasnet"], "error: unknown workload 'rasnet': did you mean resnet"),
        (["resnet18", "--input-sizes", "0"], "error: --input-sizes: 0 is not positive"),
        (["resnet18", "--batch-sizes", "0"], "error: --batch-sizes: 0 is not positive"),
        (["resnet18", "--mode", "traning"], "error: --mode: 'traning' is not one of train, infer"),
        (["resnet18", "--precision", "fp64"],
         "error: --precision: 'fp64' is not one of fp32, tf32, bf16, fp16, pure-bf16, int8-weights"),
        (["resnet18", "--device", "tpu"], "error: unknown device 'tpu'"),
        (["resnet18", "--data", "mnits"], "error: unknown dataset 'mnits': did you mean mnist"),
        (["resnet18", "--seed", "-1"], "error: "),
        (["resnet18", "--workers", "-1"], "error: "),
        (["resnet18", "--out", "a-file"], "error: a-file is a file"),
        (["resnet18", "--max-seconds", "inf"], "error: "),
        (["resnet18", "--threads", "100000"], "error: "),
        (["resnet18", "--seed", "9" * 30], "error: "),
        (["resnet18", "--name", ""], "error: --name is empty"),
        (["resnet18", "--data-dir", "."], "error: --data-dir is for real data"),
        ([], "error: "),
    ])
    def test_it_gets_one_line_and_nothing_is_written(self, tmp_path: Path, arguments: list[str], message: str,
                                                     refused: Callable[..., None]) -> None:
        (tmp_path / "a-file").write_text("here before")
        refused("profile", *arguments, said=message)

    def test_a_disk_that_fills(self, tmp_path: Path, server: Server) -> None:
        one = ["mlp", "--input-sizes", "2", "--batch-sizes", "2", "--mode", "infer", *QUICK]
        done = server.charact("profile", *one, cwd=tmp_path, largest_file_bytes=3_000)
        assert done.returncode == 2
        assert "no space left while writing" in done.stderr
        assert done.stderr.count("\n") == 1
        assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_running_out_of_memory_is_recorded_with_its_size_and_the_sweep_goes_on(tmp_path: Path) -> None:
    def two_gb_of_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2_000_000_000, 2_000_000_000))

    done = charact("profile", "vgg11", "--input-sizes", "32", "--batch-sizes", "8000,2", "--mode", "infer", *QUICK,
                   cwd=tmp_path, preexec_fn=two_gb_of_memory)
    assert done.returncode == 0, done.stderr
    run = only_record(tmp_path)
    failed, ok = run.entries
    assert (failed.status, ok.status) == ("oom", "ok")
    assert failed.requested_bytes == 8_000 * 64 * 32 * 32 * 4  # the first layer's output
    assert "oom" in done.stdout


def test_ctrl_c_keeps_the_finished_cases_and_exits_130(tmp_path: Path, server: Server) -> None:
    arguments = ["profile", "mlp", "--input-sizes", "2,3", "--batch-sizes", "2", "--mode", "infer",
                 "--max-iterations", "1000000", "--max-seconds", "1", "--precision-target", "0"]
    child = server.start(*arguments, cwd=tmp_path)
    child.until(lambda: list(tmp_path.glob("runs/.partial-*/parts/iterations-0000.parquet")))
    time.sleep(0.2)
    child.kill(signal.SIGINT)
    done = child.wait()
    assert done.status == 130, done.error
    assert done.error.splitlines()[-1] == "mlp-3-b2-infer-fp32-cpu: interrupted (by SIGINT)"
    run = only_record(tmp_path)
    assert run.manifest["status"] == "interrupted"
    assert list(run.cases["status"]) == ["ok", "interrupted"]
    assert run.path.name in done.output


@pytest.mark.slow
def test_ctrl_c_at_the_start_writes_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-m", "charact", "profile", "vgg16"], cwd=tmp_path, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(0.6)  # torch is being imported
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert not list(tmp_path.glob("runs/*"))


def test_adapters_are_cases_of_training(tmp_path: Path, server: Server) -> None:
    done = server.charact("profile", "llama", "--input-sizes", "8", "--batch-sizes", "1", "--lora", "2,4", "--passes",
                          "memory", *QUICK, cwd=tmp_path, draws_views=True)
    assert done.returncode == 0, done.stderr
    run = only_record(tmp_path)
    assert [(entry.mode, entry.lora_rank, entry.num_trainable_parameters) for entry in run.entries] == [
        ("train", 2, 4 * 2 * (256 + 256 + 256 + 64)), ("train", 4, 4 * 4 * (256 + 256 + 256 + 64)),
        ("infer", None, None)]
    assert run.entries[1].num_parameters == run.entries[2].num_parameters + 4 * 4 * (256 + 256 + 256 + 64)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "13,312" in page
    assert "LoRA of rank 4" in page


def test_passes_that_are_not_asked_for_are_skipped(tmp_path: Path, server: Server) -> None:
    done = server.charact("profile", "mlp", "--input-sizes", "2", "--batch-sizes", "2", "--mode", "train", "--passes",
                          "memory", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (entry,) = only_record(tmp_path).entries
    assert {name: entry.passes[name].status for name in ("timing", "operators", "memory", "flop", "counters")} == {
        "timing": "ok", "operators": "skipped", "memory": "ok", "flop": "skipped", "counters": "skipped"}
    assert entry.passes.flop.reason == "not asked for: --passes flop"


@pytest.mark.slow
def test_two_runs_at_once_into_one_directory(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "charact", "profile", "resnet18", "--variant", "cifar", "--input-sizes", "8",
                 "--batch-sizes", "2", "--mode", "infer", "--quiet", *QUICK]
    processes = [subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    runs = [load_run(path) for path in (tmp_path / "runs").iterdir()]
    assert len({run.run_id for run in runs}) == 2
    assert sorted(outputs) == sorted(f"Wrote runs/{run.run_id}\n" for run in runs)


@pytest.mark.slow
def test_a_workload_of_a_third_party(tmp_path: Path) -> None:
    """An installed distribution whose entry point names a module with WORKLOADS is all it takes."""
    site = tmp_path / "site"
    metadata = site / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[charact.workloads]\ntheirs = their_workloads\n")
    (site / "their_workloads.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from charact.workload import ImageClassification\n"
        "@dataclass(kw_only=True)\n"
        "class Tiny(ImageClassification):\n"
        "    smallest_input_size: int = 1\n"
        "    def model(self, dataset):\n"
        "        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),\n"
        "                             nn.Linear(4, dataset.num_classes))\n"
        "WORKLOADS = [Tiny(name='<b>tiny', source='theirs', default_batch_size=2)]\n")
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = charact("profile", "<b>tiny", "--input-sizes", "8", *QUICK, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    report = (only_record(tmp_path).path / "report.html").read_text()
    assert "&lt;b&gt;tiny" in report
    assert "<b>tiny" not in report
