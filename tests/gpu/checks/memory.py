"""Memory that charact measures and estimates, against PyTorch's allocator and the driver."""

import torch
from gpu.checks.session import SCRIPTS, Session, last_words, on_cuda
from support.device_clocks import allocated_peak

from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op
from charact.measure.memory_estimate.cuda_workspaces import held
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import this_device

GIB, MIB = 2**30, 2**20
ESTIMATED = (
    ("resnet18", 224, 16, None, "train", "fp32"), ("resnet18", 224, 16, None, "train", "bf16"),
    ("resnet18", 224, 16, None, "infer", "fp32"), ("vgg11", 224, 16, None, "train", "fp32"),
    ("rnn_lm", 140, 20, "lstm", "train", "fp32"), ("transformer", 128, 8, "base", "train", "bf16"))
"""Workload, input size, batch size, variant, mode and precision."""


def check_memory(session: Session) -> None:
    """The memory pass against PyTorch's allocator, and the share of unknown use."""
    run = session.big()
    for entry in run.manifest["cases"]:
        precision, facts = entry["precision"], entry["passes"]["memory"]
        rows = run.memory[(run.memory["case"] == entry["case"]) & (run.memory["kind"] == "peak")]
        held = rows.groupby("category")["bytes"].sum()
        difference = float(held.sum() - facts["peak_bytes"])
        session.holds(f"peak's categories sum up, {precision}", abs(difference) < 1, difference, "0")
        if session.on_cuda:
            session.within(f"peak by events / allocator, {precision}",
                           facts["peak_bytes"] / facts["allocator_peak_bytes"], 0.99, 1.01)
            session.within(f"peak of unknown use, {precision}", held.get("unknown", 0.0) / facts["peak_bytes"], 0, 0.02)
            session.info(f"categories MB, {precision}", {key: round(value / 1e6, 1) for key, value in held.items()})


@on_cuda
def check_prediction(session: Session) -> None:
    """Estimated peaks against those of the allocator, and the estimated context against NVML."""
    estimator = Estimator(this_device(session.device))
    for name, size, batch_size, variant, mode, precision in ESTIMATED:
        label = f"{name} {size} b{batch_size} {mode} {precision}"
        try:
            case = session.case(name, size, batch_size, mode, precision, variant)
            estimate = estimator.estimate(case)
            peak, reserved = allocated_peak(case)
        except Exception as error:  # the other cases are still worth their time
            session.line("ERROR", f"estimate of {label}", f"{type(error).__name__}: {str(error)[:120]}")
            continue
        low, high = estimate.low_bytes, estimate.high_bytes
        session.within(f"estimated/allocated peak, {label}", estimate.peak_bytes / peak, 0.98, 1.02)
        session.holds(f"stated range holds it, {label}", 0.998 * low <= peak <= 1.002 * high,
                      f"{peak / 1e6:.1f} MB", f"{low / 1e6:.1f} .. {high / 1e6:.1f} MB")
        session.within(f"estimated/reserved, {label}", (estimate.facts.reserved_peak_bytes or 0) / reserved, 0.9, 1.1)
    ended = session.run(str(SCRIPTS / "context_memory.py"), timeout=90)
    if ended.status != 0:
        raise RuntimeError(f"the context was not measured: {last_words(ended)}")
    bare, loaded = map(int, ended.output.split()[-2:])
    session.info("context MiB, bare and with libraries", f"{bare / MIB:.0f} {loaded / MIB:.0f}")
    session.within("estimated/measured context", (this_device(session.device).context_bytes or 0) / loaded, 0.8, 1.25)


@on_cuda
def check_out_of_memory(session: Session) -> None:
    """A case that cannot fit under a limit is recorded as such, and the next one runs."""
    run = session.record("out-of-memory", "memory", "resnet18", "--input-sizes", "224", "--batch-sizes", "256,8",
                         "--mode", "train", "--measure", "--device-memory", "4GiB", "--device", "cuda", "--quiet")
    statuses = list(run.cases["status"])
    session.holds("out of memory, then the next case", statuses == ["oom", "ok"], statuses, "['oom', 'ok']")
    facts = run.manifest["cases"][0].get("out_of_memory") or {}
    held = sum((facts.get("composition") or {}).values())
    session.within("held when memory ran out / limit", held / (4 * GIB), 0.5, 1.0)
    session.info("out of memory, as recorded",
                 {key: facts.get(key) for key in ("requested_bytes", "free_bytes", "phase", "fits_reason")})


@on_cuda
def check_workspaces(session: Session) -> None:
    """The workspaces that PyTorch's allocator holds for cuBLAS, against those of charact's estimates."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    session.info("allocated before anything", torch.cuda.memory_allocated())
    left, right, bias = (torch.randn(*shape, device=session.device) for shape in ((512, 512), (512, 512), (512,)))
    tensors = torch.cuda.memory_allocated()
    torch.mm(left, right)  # the result is free again at once
    after_mm = torch.cuda.memory_allocated() - tensors
    torch.addmm(bias, left, right)
    after_addmm = torch.cuda.memory_allocated() - tensors
    for name, allocated in (("mm", after_mm), ("addmm", after_addmm)):
        expected = sum(held(AllocationTrace(ops=[Op(f"aten::{name}", "forward", None)]), this_device(session.device)))
        session.within(f"workspaces of cuBLAS after {name} / charact's", allocated / expected, 0.999, 1.001)
