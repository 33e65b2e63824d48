"""How right estimates of memory are: estimated against measured peak, on this machine's CPU.

Run `python benchmarks/memory_prediction.py [NAME ...] [--to results.csv] [--settings]`. Every workload and the ten
models of `memory_models.py` are estimated in training and inference at three input sizes and two batch sizes, and then
run: the measured peak is the running sum of the profiler's memory events over a later iteration. `--settings` repeats
this in processes in which libraries choose as on processors with other instruction sets, with one thread and with two.
`--hundred` estimates 100 sizes of ResNet-50 against the clock. Set XDG_CACHE_HOME to an empty folder for a cold cache.
"""

import argparse
import contextlib
import csv
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.out_of_memory import host_memory_guard
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import this_device
from charact.measure.passes.memory_pass import memory_pass
from charact.workload.base import Workload
from charact.workload.registry import all_workloads, find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

sys.path.insert(0, str(Path(__file__).parent))
import memory_models

CPU = torch.device("cpu")
SIZES = {"image": (64, 80, 132), "sequence": (7, 20, 45)}
ONLY_SIZES = {"model_b": (64, 80, 135)}
"""Sizes of workloads that do not take those."""
BATCHES = {"image": (1, 3), "sequence": (2, 5)}
SETTINGS = [(isa, threads) for isa in ("", "AVX2", "SSE41") for threads in (1, 2)]
"""Instruction set (empty: the machine's own) and number of threads."""
CAPABILITY = {"AVX2": "avx2", "SSE41": "default"}
"""PyTorch's own kernels for an instruction set."""
COLUMNS = ("setting", "name", "mode", "input_size", "batch_size", "measured_bytes", "estimated_bytes", "low_bytes",
           "high_bytes", "error", "inside", "uncertain", "duration_s")


def measured(case: Case) -> int:
    """Peak of a later iteration (bytes)."""
    loop = Loop(case)
    try:
        loop.feed(Batches(case, loop.dataset, shuffle=case.training, whole=True).first(case.data.seed))
        loop.iteration(lambda _: contextlib.nullcontext())
        return int(memory_pass(loop)[1].peak_bytes or 0)
    finally:
        loop.close()


def compare(estimator: Estimator, case: Case, setting: str) -> dict[str, Any]:
    """A row: what was estimated and measured of a case."""
    estimate = estimator.estimate(case)
    with host_memory_guard():
        peak_bytes = measured(case)
    return {
        "setting": setting, "name": case.workload.name, "mode": case.mode, "input_size": case.input_size,
        "batch_size": case.batch_size, "measured_bytes": peak_bytes, "estimated_bytes": estimate.peak_bytes,
        "low_bytes": estimate.low_bytes, "high_bytes": estimate.high_bytes,
        "error": estimate.peak_bytes / peak_bytes - 1,
        "inside": estimate.low_bytes <= peak_bytes <= estimate.high_bytes,
        "uncertain": " ".join(estimate.facts.uncertain or []), "duration_s": estimate.facts.duration_s,
    }


def workload_of(name: str) -> tuple[Workload, str]:
    """A workload or model by name, and its kind of input."""
    if name in memory_models.SPECS:
        spec = parse_input_spec(memory_models.SPECS[name])
        loss = "mse_loss" if name == "unet" else None
        workload = own_model(f"memory_models:{name}", "", spec, loss, "Adam", 0.01).prepare()
        return workload, "sequence" if name in memory_models.SEQUENCES else "image"
    built_in = find_workload(name).prepare()
    return built_in, built_in.input_kind


def cases_of(name: str) -> Iterator[Case]:
    """The points of a workload or model."""
    workload, kind = workload_of(name)
    for mode in ("train", "infer"):
        case = Case(workload, 1, 1, mode, "fp32", CPU, DataRequest())
        for size, batch in itertools.product(ONLY_SIZES.get(name, SIZES[kind]), BATCHES[kind]):
            yield replace(case, input_size=max(size, workload.smallest_input_size), batch_size=batch)


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What came out, in lines."""
    errors = [abs(float(row["error"])) for row in rows]
    mean = math.exp(sum(math.log1p(error) for error in errors) / len(errors)) - 1
    yield f"{len(rows)} points; peak: geometric mean of |error| {mean:.4%}, largest {max(errors):.3%}"
    for what, chosen in (("over 0.15 %", [row for row in rows if abs(float(row["error"])) > 0.0015]),
                         ("outside of the interval", [row for row in rows if str(row["inside"]) != "True"])):
        yield f"{len(chosen)} {what}"
        for row in chosen:
            yield (f"  {row['setting']}, {row['name']} {row['mode']} {row['input_size']} x {row['batch_size']}: "
                   f"{float(row['error']):+.2%} ({row['uncertain']})")


def hundred_sizes() -> str:
    """Time to estimate 100 sizes of ResNet-50, without a cache."""
    case = Case(find_workload("resnet50").prepare(), 1, 8, "train", "fp32", CPU, DataRequest())
    estimator, started = Estimator(this_device(CPU)), time.perf_counter()
    for size in range(32, 832, 8):
        estimator.estimate(replace(case, input_size=size))
    return f"100 sizes of resnet50 training, batch 8, 32 to 824 px: {time.perf_counter() - started:.1f} s"


def run_here(names: Sequence[str], to: Path | None) -> list[dict[str, Any]]:
    """Compare the names' points in this process; append rows to a file."""
    setting = f"{os.environ.get('ONEDNN_MAX_CPU_ISA', 'own')}, {torch.get_num_threads()} threads"
    rows = []
    for name in names:
        estimator = Estimator(this_device(CPU))
        for case in cases_of(name):
            try:
                row = compare(estimator, case, setting)
            except (UserError, MemoryError, RuntimeError, ValueError) as error:
                print(f"{setting}, {case.id}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
                continue
            rows.append(row)
            print(f"{setting}, {case.id}: measured {row['measured_bytes']:,}, estimated {row['error']:+.3%}, "
                  f"{'inside' if row['inside'] else 'OUTSIDE'}", flush=True)
            if to is not None:
                with to.open("a", newline="") as file:
                    csv.DictWriter(file, COLUMNS).writerow(row)
    return rows


def run_settings(names: Sequence[str], to: Path) -> list[dict[str, Any]]:
    """Compare the names' points in a process for each setting."""
    to.write_text("")
    for isa, threads in SETTINGS:
        chosen = {"ONEDNN_MAX_CPU_ISA": isa, "ATEN_CPU_CAPABILITY": CAPABILITY[isa]} if isa else {}
        environment = os.environ | chosen | {"OMP_NUM_THREADS": str(threads)}
        subprocess.run([sys.executable, __file__, *names, "--to", str(to)], env=environment, check=True)
    with to.open(newline="") as file:
        return list(csv.DictReader(file, COLUMNS))


def main() -> None:
    """Compare, print a line a point, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="workloads or models; default: all")
    parser.add_argument("--to", type=Path, help="CSV file to which rows are added")
    parser.add_argument("--settings", action="store_true", help="in processes with other instruction sets and threads")
    parser.add_argument("--hundred", action="store_true", help="only the time of 100 sizes of ResNet-50")
    arguments = parser.parse_args()
    if arguments.hundred:
        print(hundred_sizes())
        return
    names = arguments.names or [*sorted(all_workloads()), *memory_models.SPECS]
    if arguments.settings:
        rows = run_settings(names, arguments.to or Path("memory_prediction.csv"))
    else:
        rows = run_here(names, arguments.to)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
