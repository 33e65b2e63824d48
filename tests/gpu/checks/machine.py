"""What charact states of the machine: its devices, its ceilings, and times of basic operations."""

import json
import os
import platform
import re
import subprocess
from functools import partial
from pathlib import Path

import torch
from gpu.checks.session import Session, on_cuda
from support.device_clocks import graph_s, queued_s

from charact.execution.precision import float32_products

KIB, GIB = 2**10, 2**30
PROBLEMS = ("gemm:4096x4096x4096", "gemm:512x512x512", "convolution:8x64x28x28:64x3x3:p1",
            "convolution:32x64x56x56:64x3x3:p1")
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_environment(session: Session) -> None:
    """Versions, memory and privileges; and that CUDA's private memory leaves room below charact's memory guard."""
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    session.info("torch", f"{torch.__version__} cuda {torch.version.cuda} cudnn {cudnn} "
                          f"python {platform.python_version()}")
    memory = _kibibytes("/proc/meminfo", "MemTotal", "MemAvailable")
    session.info("host memory GiB", ", ".join(f"{name} {size / GIB:.1f}" for name, size in memory.items()))
    session.info("uid", os.getuid())
    parameters = Path("/proc/driver/nvidia/params")
    session.info("counters for administrators only", re.findall(r"RmProfilingAdminOnly:\s*\d", parameters.read_text())
                 if parameters.exists() else "not reported")
    if session.on_cuda:
        _check_private_memory(session, memory["MemAvailable"])
        gpu = torch.cuda.get_device_properties(session.device)
        session.info("gpu", f"{gpu.name} sm_{gpu.major}{gpu.minor} {gpu.multi_processor_count} SMs L2 "
                            f"{gpu.L2_cache_size / 2**20:.0f} MiB total {gpu.total_memory}")


def _check_private_memory(session: Session, available_bytes: float) -> None:
    """Hold the private memory that CUDA and its libraries take to the guard, which allows what is available."""
    def private_bytes() -> float:
        return _kibibytes("/proc/self/status", "VmData")["VmData"]

    before = private_bytes()
    torch.zeros(1, device=session.device)
    with_context = private_bytes()
    images, weights = (torch.randn(64, 64, side, side, device=session.device) for side in (56, 3))
    torch.nn.functional.conv2d(images, weights, padding=1)
    torch.mm(*(torch.randn(512, 512, device=session.device) for _ in range(2)))
    torch.cuda.synchronize()
    with_libraries = private_bytes()
    session.within("guard: VmData grown by CUDA / available", (with_libraries - before) / available_bytes, 0, 0.5)
    session.info("VmData growth GiB", f"context {(with_context - before) / GIB:.2f}, then libraries "
                                      f"{(with_libraries - with_context) / GIB:.2f}")


def _kibibytes(path: str, *names: str) -> dict[str, float]:
    found = re.findall(r"^(\w+):\s+(\d+) kB", Path(path).read_text(encoding="ascii"), re.MULTILINE)
    return {name: float(size) * KIB for name, size in found if name in names}


def check_doctor(session: Session) -> None:
    """`charact doctor` names the GPU as PyTorch and nvidia-smi do; the counter sources are shown."""
    found = json.loads(session.charact("doctor", "--json").output)
    for check in found["checks"]:
        if check["group"] == "Counters":
            session.info(f"doctor {check['name']}", (check["status"], check["finding"]))
    if not session.on_cuda:
        session.holds("doctor names no GPU", found["machine"]["gpus"] == [] or torch.cuda.is_available(),
                      found["machine"]["gpus"], "[]")
        return
    name, gpu = torch.cuda.get_device_name(session.device), (found["machine"]["gpus"] or [{}])[0]
    session.holds("doctor names the GPU", gpu.get("name") == name, gpu.get("name"), name)
    listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True,
                            check=False).stdout.split()
    if listed:
        session.holds("doctor's UUID is nvidia-smi's", gpu.get("uuid") in listed, gpu.get("uuid"), "in nvidia-smi -L")


@on_cuda
def check_ceilings(session: Session) -> None:
    """Ceilings against a search of our own for the best product and copy, and against datasheets."""
    session.big()
    rows = json.loads(session.charact("doctor", "--ceilings", "--json").output)["ceilings"]["cuda:0"]["ceilings"]
    ceilings = {(row["ceiling"], row["precision"] or row["level"]): row["value"] for row in rows}
    datasheets = {(row["ceiling"], row["precision"] or row["level"]): row["datasheet"] for row in rows}
    session.info("ceilings", {" ".join(map(str, key)): f"{value:.4g}" for key, value in ceilings.items()})
    for precision, dtype in DTYPES.items():
        best = max(_product_rate(session, precision, dtype, side) for side in (4096, 8192))
        session.within(f"ceiling/own best product, {precision}", ceilings["gemm", precision] / best, 0.93, 1.10)
        if datasheets["gemm", precision]:
            session.within(f"ceiling/datasheet, {precision}",
                           ceilings["gemm", precision] / datasheets["gemm", precision], 0.4, 1.02)
    source = torch.randn(2**28, device=session.device)
    rate = 2 * source.nbytes / queued_s(partial(torch.empty_like(source).copy_, source), 4)
    memory = ceilings["copy", "memory"]
    session.within("ceiling/own copy, memory", memory / rate, 0.95, 1.05)
    if datasheets["copy", "memory"]:
        session.within("ceiling/datasheet, memory", memory / datasheets["copy", "memory"], 0.7, 1.02)
    cache = max(ceilings.get((name, "L2"), 0.0) for name in ("copy", "triad"))
    session.within("L2 / memory bandwidth", cache / memory, 1.1, 10)


def _product_rate(session: Session, precision: str, dtype: torch.dtype, side: int) -> float:
    left, right = (torch.randn(side, side, device=session.device, dtype=dtype) for _ in range(2))
    with float32_products(precision):
        return 2 * side**3 / queued_s(partial(torch.mm, left, right), 4)


@on_cuda
def check_operations(session: Session) -> None:
    """`charact ops` against replays of a CUDA graph, where no launch is waited for."""
    arguments = [part for problem in PROBLEMS for part in ("--problem", problem)]
    run = session.record("operations", "ops", *arguments, "--hot", "--precision", "fp32", "--device", "cuda", "--quiet")
    rows = run.table("repetitions").merge(run.cases[["case", "workload"]], on="case")
    for problem in PROBLEMS:
        of_problem = rows[(rows["workload"] == problem) & (rows["direction"] == "forward")]
        device_s, host_s = of_problem["device_s"].median(), of_problem["host_s"].median()
        with float32_products("fp32"):
            session.within(f"ops/graph, {problem}", device_s / _call_s(session, problem), 0.9, 1.1)
        num_calls = int(of_problem["num_calls"].iloc[0])
        session.info(f"ops of {problem}", f"device {device_s * 1e6:.2f} us, host {host_s * 1e6:.2f} us a call, "
                                          f"{num_calls} calls: a queue of {num_calls * host_s * 1e3:.2f} ms")


def _call_s(session: Session, problem: str) -> float:
    """Return the time of a call of PyTorch's own function of a problem (s)."""
    shapes = [[int(size) for size in part.split("x")] for part in problem.split(":")[1:3] if part[0].isdigit()]
    if problem.startswith("gemm"):
        rows, columns, inner = shapes[0]
        return graph_s(partial(torch.mm, *_random(session, (rows, inner), (inner, columns))))
    inputs, (channels, *kernel) = shapes
    images, weights = _random(session, inputs, (channels, inputs[1], *kernel))
    return graph_s(partial(torch.nn.functional.conv2d, images, weights, padding=1))


def _random(session: Session, *shapes: tuple[int, ...] | list[int]) -> list[torch.Tensor]:
    return [torch.randn(shape, device=session.device) for shape in shapes]
