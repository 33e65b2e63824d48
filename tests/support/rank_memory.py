"""Peak memory of one of several real ranks, counted from the allocator's events; run once for each rank.

Arguments: how ranks train (ddp or fsdp2), rank, number of ranks, a file that does not exist, a workload, its input size
and its batch size. Prints the peak of an iteration (bytes).
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def measured_peaks(parallel: str, num_ranks: int, workload: str, input_size: int, batch_size: int) -> list[int]:
    """Peak of each of several processes that train together through gloo (bytes)."""
    with tempfile.TemporaryDirectory() as directory:
        ranks = [subprocess.Popen(
            [sys.executable, __file__, parallel, str(rank), str(num_ranks), str(Path(directory) / "store"), workload,
             str(input_size), str(batch_size)], stdout=subprocess.PIPE, text=True) for rank in range(num_ranks)]
        printed = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * num_ranks
    return [int(each) for each in printed]


def main(parallel: str, rank: int, num_ranks: int, store: str, workload: str, input_size: int, batch_size: int) -> int:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.profiler import ProfilerActivity, profile

    from charact.datasets._common.request import DataRequest
    from charact.execution.batches import Batches
    from charact.execution.case import Case
    from charact.execution.loop import Loop
    from charact.execution.sharding import shard_by_block
    from charact.workload.registry import find_workload

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    mesh = init_device_mesh("cpu", (num_ranks,))
    case = Case(find_workload(workload).prepare(), input_size, batch_size, "train", "fp32", torch.device("cpu"),
                DataRequest())
    dataset = case.dataset()
    batches = Batches(case, dataset, shuffle=True, whole=True).first(0)
    shard = (lambda model: shard_by_block(model, mesh)) if parallel == "fsdp2" else None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:  # sees all that is allocated
        loop = Loop(case, batches, dataset=dataset, shard=shard)
        if parallel == "ddp":
            loop._called = torch.nn.parallel.DistributedDataParallel(loop.model)
        for _ in range(2):
            loop.iteration(lambda _: contextlib.nullcontext())
        with torch.profiler.record_function("the iteration"):
            loop.iteration(lambda _: contextlib.nullcontext())
    peak = peak_bytes(profiler)
    dist.barrier()
    dist.destroy_process_group()
    return peak


def peak_bytes(profiler: Any) -> int:
    """Most bytes allocated at a time in the iteration, from all allocations and frees since before the model.

    The profiler does not see what gloo's threads free. So what a collective allocates counts until it ends.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    (span,) = [one for one in events if one.get("name") == "the iteration" and one.get("cat") == "user_annotation"]
    collectives = [(one["tid"], one["ts"], one["ts"] + one["dur"]) for one in events
                   if "dur" in one and one["name"].startswith(("c10d::", "gloo:"))]
    held: dict[int, int] = {}
    ends: list[tuple[float, int]] = []
    peak = 0
    for event in sorted((one for one in events if one.get("name") == "[memory]"), key=lambda one: one["ts"]):
        now, address, num_bytes = event["ts"], event["args"]["Addr"], event["args"]["Bytes"]
        for end in [one for one in ends if one[0] < now]:
            ends.remove(end)
            held.pop(end[1], None)
        if num_bytes > 0:
            held[address] = num_bytes
            around = [end for thread, start, end in collectives if thread == event["tid"] and start <= now <= end]
            ends += [(min(around), address)] if around else []
        else:
            held.pop(address, None)
        if span["ts"] <= now <= span["ts"] + span["dur"]:
            peak = max(peak, sum(held.values()))
    return peak


if __name__ == "__main__":
    name, of_rank, number, file, model, *sizes = sys.argv[1:]
    print(main(name, int(of_rank), int(number), file, model, *map(int, sizes)))
