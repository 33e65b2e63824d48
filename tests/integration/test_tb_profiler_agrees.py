"""Communication of imported traces is that of torch-tb-profiler's Distributed view."""

import subprocess
import sys
from pathlib import Path

import pytest

from charact import load_runs

loader = pytest.importorskip("torch_tb_profiler.profiler.loader", reason="needs torch-tb-profiler")

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
inputs = torch.randn(64, 512)
write = lambda found: found.export_chrome_trace(f"{sys.argv[1]}/rank{rank}.1795607650588.pt.trace.json")
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=4), on_trace_ready=write,
             record_shapes=True) as profiler:
    for _ in range(6):
        time.sleep(0.03 * rank)
        model(inputs).square().mean().backward()
        profiler.step()
dist.barrier()
time.sleep(0.1)
os._exit(0)  # gloo may wait for ever at exit
"""


@pytest.mark.slow
def test_exposed_communication_is_that_of_the_distributed_view(tmp_path: Path) -> None:
    from torch_tb_profiler.io.cache import Cache

    traces = tmp_path / "traces"
    traces.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                    str(tmp_path / "program.py"), str(traces)], check=True, capture_output=True, timeout=120)
    subprocess.run([sys.executable, "-m", "charact", "import", str(traces), "--out", str(tmp_path / "runs")],
                   check=True, capture_output=True, timeout=120)
    (run,) = load_runs(tmp_path / "runs")
    exposed_s = run.collectives.groupby("case")["exposed_s"].sum()
    profiles = loader.RunLoader("traces", str(traces), Cache()).load().profiles.values()
    (distributed,) = (one for one in profiles if type(one).__name__ == "DistributedRunProfile")
    for rank in (0, 1):
        _, _, exposed_us, _ = distributed.steps_to_overlap["data"]["all"][f"rank{rank}"]  # the mean of the four steps
        (ours_s,) = exposed_s[exposed_s.index.str.endswith(f"rank{rank}")]
        assert ours_s / 4 == pytest.approx(exposed_us / 1e6, rel=0.03, abs=50e-6)
