"""How often a comparison cries wolf, and how often it finds a change that is there.

Run `python benchmarks/false_alarms.py [--comparisons 200]`. Two loops of one small training run by turns in one
process, a few iterations each, and leave two records, written and compared as any. In one third of the comparisons both
loops do the same (A/A): what is found then is false. In the others the forward pass of one loop does extra work of an
operator that it has anyway: a matrix product that takes 5 % of an iteration's time, or of the forward pass's.
"""

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.analysis.compare import Group, ratios
from charact.analysis.compare.differences import differences, main_parts
from charact.core.timeline import iteration_rows
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry
from charact.execution.loop import Loop
from charact.measure.passes.operators import operator_pass
from charact.measure.passes.phase_timer import HostPhases
from charact.record.manifest_passes import TimingPass
from charact.record.reader import load_run
from charact.record.schema import Rows
from charact.record.writer import RunWriter
from charact.workload.image_classification import ImageClassification

SLOWER_FRAC = 0.05
NUM_ITERATIONS = 300
TURN = 5
"""Iterations of one loop before it is the other's turn."""
TOLD_EVERY = 10
"""All of it takes an hour: what was found is told as it goes."""
NUM_WARMUP = 5
GATE = 1.05
CHANGED = "forward", "aten::addmm"
"""Phase and operator of the extra work."""


@dataclass(kw_only=True)
class MLP(ImageClassification):
    """Three layers; an iteration of batch 128 takes some 3 ms."""

    name: str = "mlp"
    source: str = "small enough for hundreds of comparisons"
    default_batch_size: int = 128
    smallest_input_size: int = 1
    num_extra_rows: int = 0
    """Rows of the extra matrix product in the forward pass; none for 0."""

    def model(self, dataset: Any) -> nn.Module:
        """3 × 16 × 16 values to 256, 256, and 10 classes."""
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                             nn.Linear(256, 10))

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """Logits, and the extra work beside them."""
        if self.num_extra_rows:
            extra_work(model, self.num_extra_rows)
        logits: Tensor = model(batch[0])
        return logits


def extra_work(model: Any, num_rows: int) -> None:
    """One product with the weights of the second layer, for nothing."""
    layer = model[3]
    with torch.no_grad():
        functional.linear(ones(num_rows), layer.weight, layer.bias)


@cache
def ones(num_rows: int) -> Tensor:
    """What the extra product multiplies; made once, since making it would be work of another operator."""
    return torch.ones(num_rows, 256)


def case_of(num_extra_rows: int) -> Case:
    """The training, with or without extra work."""
    workload = MLP(num_extra_rows=num_extra_rows).prepare("cifar")
    return Case(workload, 16, 128, "train", "fp32", torch.device("cpu"), DataRequest())


def rows_worth(frac: float, *, of_phase: bool) -> int:
    """Rows of the extra product that lengthen the forward pass by a share of the iteration's time, or of its own."""
    num_rows = 32
    for _ in range(4):
        without, extended = (phases.take() for _, phases in by_turns([case_of(0), case_of(num_rows)], 300))
        forward_s = _quickly([row["host_s"] for row in iteration_rows(without) if row["phase"] == "forward"])
        whole_s = forward_s if of_phase else _quickly([iteration.wall_s for iteration in without])
        added_s = _quickly([row["host_s"] for row in iteration_rows(extended) if row["phase"] == "forward"]) - forward_s
        num_rows = min(max(1, round(num_rows * frac * whole_s / max(added_s, 1e-6))), 4 * num_rows)
    return num_rows


def _quickly(times: list[float]) -> float:
    """The lower quartile: what other load lengthens lies above it."""
    return sorted(times)[len(times) // 4]


def by_turns(cases: list[Case], num_iterations: int) -> list[tuple[Loop, HostPhases]]:
    """Loops that have run by turns: what one leaves in caches, and other load, falls on all alike."""
    turns = [(Loop(case), HostPhases()) for case in cases]
    for loop, phases in turns:
        for _ in range(NUM_WARMUP):
            loop.iteration(phases)
    for number in range(num_iterations // TURN):
        for loop, phases in turns if number % 2 else turns[::-1]:
            for _ in range(TURN):
                with phases:
                    loop.iteration(phases)
    return turns


def write_records(cases: list[Case], out: Path, *, profiled: bool) -> list[Group]:
    """Sides of the records of two cases; without operators where they are not needed, which take most of the time."""
    return [
        Group(label, (load_run(_write(loop, phases, out, profiled)),))
        for label, (loop, phases) in zip(("base", "new"), by_turns(cases, NUM_ITERATIONS), strict=True)
    ]


def _write(loop: Loop, phases: HostPhases, out: Path, profiled: bool) -> Path:
    tables: dict[str, Rows] = {"iterations": iteration_rows(phases.take())}
    writer = RunWriter(out, "mlp", {"command_line": [], "options": {}})
    entry = case_entry(loop.case, "a CPU")
    entry.passes["timing"] = TimingPass("ok")
    if profiled:
        found = operator_pass(loop, writer.trace_path(entry.case))
        entry.passes["operators"] = found.facts
        tables["operators"] = found.operator_rows
    writer.add_case(entry, tables)
    writer.close("complete")
    return writer.publish()


def alarms(sides: list[Group]) -> dict[str, bool]:
    """What the comparison of two sides claims of their times."""
    whole = ratios(sides, "case").iloc[0]
    phases = ratios(sides, "phase").set_index("phase")["significant"]
    return {
        f"time > {GATE} and significant": bool(whole["ratio"] > GATE and whole["significant"]),
        "time significant": bool(whole["significant"]),
        **{f"{phase} significant": bool(phases[phase]) for phase in ("forward", "backward", "update")},
    }


def finds(sides: list[Group]) -> dict[str, bool]:
    """What the comparison of two sides finds of the extra work."""
    whole = ratios(sides, "case").iloc[0]
    phases = ratios(sides, "phase").query("significant and ratio > 1")
    grown = phases.assign(delta_s=phases["time_s"] - phases["base_s"]).sort_values("delta_s")["phase"].to_list()
    parts = main_parts(differences(sides[0], sides[1], whole["case"])).set_index("phase")["operator"]
    found = grown[-1:] == [CHANGED[0]]
    return {
        "time significantly slower": bool(whole["significant"] and whole["ratio"] > 1),
        f"{CHANGED[0]} significantly slower, most of all phases": found,
        f"... and {CHANGED[1]} named as most of it": found and parts[CHANGED[0]] == CHANGED[1],
    }


def main() -> None:
    """Run both kinds of comparison by turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=200, help="of each of the two kinds")
    num_comparisons = parser.parse_args().comparisons
    kinds = {"the same twice (A/A)": 0,
             "5 % of the iteration added to the forward pass": rows_worth(SLOWER_FRAC, of_phase=False),
             "5 % of the forward pass added to it": rows_worth(SLOWER_FRAC, of_phase=True)}  # fmt: skip
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {NUM_ITERATIONS} iterations a record, by "
          f"turns of {TURN}", flush=True)  # fmt: skip
    claims: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    slower: dict[str, dict[str, list[float]]] = {kind: {"the iteration": [], CHANGED[0]: []} for kind in kinds}
    for number in range(1, num_comparisons + 1):
        for kind, num_rows in kinds.items():
            with tempfile.TemporaryDirectory() as out:
                sides = write_records([case_of(0), case_of(num_rows)], Path(out), profiled=num_rows > 0)
                claims[kind].update(finds(sides) if num_rows else alarms(sides))
                slower[kind]["the iteration"].append(ratios(sides, "case")["ratio"].iloc[0])
                slower[kind][CHANGED[0]] += ratios(sides, "phase").query("phase == @CHANGED[0]")["ratio"].to_list()
        if number % TOLD_EVERY == 0 or number == num_comparisons:
            tell(claims, slower, number)


def tell(claims: dict[str, Counter[str]], slower: dict[str, dict[str, list[float]]], number: int) -> None:
    """Print what was claimed in so many comparisons of each kind."""
    for kind, found in claims.items():
        grown = [f"{part} took {median(times):.3f} times as long" for part, times in slower[kind].items()]
        print(f"{kind}: {', '.join(grown)}")
        for claim, times in found.items():
            print(f"  {claim:50} {times:4} of {number} ({100 * times / number:.1f} %)", flush=True)


if __name__ == "__main__":
    main()
