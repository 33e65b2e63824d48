"""Records of basic operations with known numbers, written through the real writer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from support.judged import CEILINGS
from support.records import manifest

Row = dict[str, Any]

TIMES = (0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02)
"""Repetitions over their median, whose 95 % interval is from the least to the largest."""
VO_SIZES = ((3072, 128, 1024), (5124, 9124, 2560), (2560, 64, 2560), (7860, 64, 2560), (1760, 128, 1760))
"""Dense products that an author published as 244,379,762,688 FLOP in total."""
VO_FLOP = 244_379_762_688


def problem_row(problem: str, direction: str = "forward", **facts: Any) -> Row:
    """A row of the table `problems`: a product of 1 GFLOP and 1 MB where nothing else is said."""
    return {"operation": problem.partition(":")[0], "problem": problem, "suite": None, "set": None,
            "direction": direction, "flop": 1e9, "published_flop": None, "convention": None, "bytes": 1e6,
            "sparsity_frac": None, "layout": None, "hot": "no", "max_error": 2e-7, "tolerance": 1e-5,
            **facts}  # fmt: skip


def repetition_rows(median_s: float, direction: str = "forward", *, on_device: bool = False,
                    times: Sequence[float] = TIMES) -> list[Row]:
    """Repetitions around a median; on a device the host's clock reads a tenth of it."""
    return [{"direction": direction, "repetition": number, "num_calls": 10,
             "host_s": factor * median_s * (0.1 if on_device else 1.0),
             "device_s": factor * median_s if on_device else None} for number, factor in enumerate(times)]  # fmt: skip


def entry(problem: str, *, suite: str = "", precision: str = "fp32", device: str = "cpu", status: str = "ok",
          reason: str | None = None, case: str | None = None) -> Row:
    """An entry of the manifest as `charact ops` writes it."""
    outcome = "ok" if status == "ok" else "failed"
    return {
        "case": case or f"{problem.replace(':', '-')}-{precision}-{device}", "workload": problem, "variant": suite,
        "input_kind": None, "input_size": None, "batch_size": None, "mode": "op", "precision": precision,
        "device": device, "device_name": "AMD EPYC", "data": "synthetic", "num_parameters": None, "source": None,
        "status": status, "reason": reason, "requested_bytes": None,
        "passes": {"ops": {"status": outcome, "reason": reason}},
    }  # fmt: skip


class Operations:
    """A record that grows by a problem at a time."""

    def __init__(self, out: Path, name: str = "ops", ceilings: Sequence[Row] = CEILINGS, **changes: Any) -> None:
        told = {"ceilings": list(ceilings), "ceilings_reason": None}
        self.writer = RunWriter(out, name, manifest("ops") | told | changes)

    def add(self, problem: str, times_s: dict[str, float], *, entry_of: Row | None = None, on_device: bool = False,
            work: dict[str, Row] | None = None, **facts: Any) -> "Operations":
        """A problem, with the median of each direction that was timed; `work` says what differs by direction."""
        different = work or {}
        rows = [problem_row(problem, direction, **{**facts, **different.get(direction, {})}) for direction in times_s]
        repetitions = [row for direction, median_s in times_s.items()
                       for row in repetition_rows(median_s, direction, on_device=on_device)]
        told = entry(problem, suite=facts.get("suite") or "") | (entry_of or {})
        told["passes"]["ops"]["directions"] = {direction: {"ended_by": "precision"} for direction in times_s}
        self.writer.add_case(typed_entry(told), {"problems": rows, "repetitions": repetitions})
        return self

    def fail(self, problem: str, status: str, reason: str, rows: Sequence[Row] = (), **of_entry: Any) -> "Operations":
        self.writer.add_case(typed_entry(entry(problem, status=status, reason=reason, **of_entry)),
                             {"problems": list(rows)})
        return self

    def run(self) -> Run:
        self.writer.close("complete")
        return load_run(self.writer.publish())


def vo(out: Path, **facts: Any) -> Run:
    """The five dense products, at 100 GFLOP/s each, of 100 MB."""
    record = Operations(out, "vo")
    for m, n, k in VO_SIZES:
        flop = 2.0 * m * n * k
        record.add(f"gemm:{m}x{n}x{k}", {"forward": flop / 1e11}, suite="vo", set="DMM", flop=flop, bytes=1e8, **facts)
    return record.run()


def sparse(out: Path, ratios: dict[float, float], *, layout: str = "csr", dense_s: float | None = 0.01) -> Run:
    """Sparse products of one size by density, so many times as slow as a dense one (where that is measured)."""
    size, record = "512x64x512", Operations(out, "sparse")
    for density, ratio in ratios.items():
        record.add(f"sparse_gemm:{size}:s{1 - density:g}:{layout}", {"forward": ratio * 0.01},
                   sparsity_frac=1 - density, layout=layout)  # fmt: skip
    if dense_s is not None:
        record.add(f"sparse_gemm:{size}:s0.5:dense", {"forward": dense_s}, layout="dense")
        record.add(f"gemm:{size}:tn", {"forward": 100 * dense_s})
    return record.run()


def suite(out: Path, num_problems: int = 160, *, ceilings: Sequence[Row] = CEILINGS) -> Run:
    """As many convolutions and products as a published suite has, in three directions and in one; one is too large."""
    record = Operations(out, "deepbench", ceilings)
    for number in range(num_problems):
        flop = float(round(1e8 * 1.06**number))
        if number % 2:
            directions = {direction: factor * flop / 4e11 for direction, factor in
                          [("forward", 1.0), ("backward_input", 1.3), ("backward_weight", 1.1)]}
            work = {"forward": {"published_flop": 2 * flop, "convention": "output sizes are not rounded down"}}
            record.add(f"convolution:{8 + number}x64x56x56:128x3x3:p1", directions, work=work, suite="deepbench",
                       set="training", flop=flop, bytes=flop / 20)  # fmt: skip
        else:
            record.add(f"gemm:{512 + number}x128x1024", {"forward": flop / (3e11 + 5e9 * number)}, suite="deepbench",
                       set="training", flop=flop, bytes=flop / (2 + number))  # fmt: skip
    large = "gemm:100000x100000x100000"
    row = problem_row(large, suite="deepbench", set="training", flop=2e15, bytes=1.2e11, max_error=None, tolerance=None)
    return record.fail(large, "oom", "out of memory: asked for 40.0 GB", [row], suite="deepbench").run()
