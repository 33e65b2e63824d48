"""Audit of a suite: the information that its public part reveals."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charact.bricks.suite.suite import BRICKS, INDEX, Suite, brick_path, load_suite


@dataclass
class AuditReport:
    """Counts over a suite's bricks, and files that should not be there."""

    suite: Suite
    modes: Counter[str] = field(default_factory=Counter)
    precisions: Counter[str] = field(default_factory=Counter)
    """Number of bricks by the precision of their models."""
    batch_sizes: Counter[int] = field(default_factory=Counter)
    """Number of bricks by the batch size of their models."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Number of bricks by number of layers."""
    layer_types: Counter[str] = field(default_factory=Counter)
    """Layers of all bricks by type."""
    optimizers: Counter[str] = field(default_factory=Counter)
    """Updates by optimizer; bricks also hold the optimizers' options."""
    num_whole: int = 0
    """Number of inputs with exact integers: indices, which may come from the data."""
    num_reading: int = 0
    """Number of bricks that return numbers to the model's code."""
    findings: list[str] = field(default_factory=list)
    """Files that are not part of the suite, one line each; empty for a suite as charact writes it."""

    @property
    def reveals(self) -> list[str]:
        """Return lines about what the suite reveals of its models; the last names what it does not."""
        lines = [
            f"{len(self.suite.bricks)} bricks of {self.layer_types.total()} layers of {len(self.layer_types)} types, "
            "with the shapes of their inputs: rare layers reveal model families",
            f"modes {_listed(self.modes)}; precisions {_listed(self.precisions)}; "
            f"batch sizes {_listed(self.batch_sizes)}; memory touched by models, as powers of two",
            "value distributions of activations, but not of weights: the order of bricks can be guessed better than "
            "from shapes alone, but not determined; bricks with equal distributions may read the same tensor",
        ]
        if self.num_reading:
            lines.append(f"numbers that models' code reads from tensors, in {self.num_reading} bricks: other bricks "
                         "may hold exact values computed from them")
        if self.optimizers:
            lines.append(f"optimizers with their options: {_listed(self.optimizers)}")
        if self.num_whole:
            lines.append(f"exact integers of {self.num_whole} inputs, such as word indices")
        return [*lines, "not revealed: which bricks form a model, in which order and how often; names of models and "
                        "layers; weights, unless the model's code reads them as numbers; how many bricks are decoys"]


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(str(each) for each in sorted(counts)) or "none"


def audit(path: Path) -> AuditReport:
    """Return what the public part of a suite reveals of its models, and which files do not belong to it."""
    suite = load_suite(path)
    own = {path / INDEX, path / BRICKS, *(brick_path(path, brick) for brick in suite.bricks)}
    report = AuditReport(suite, findings=[f"{each.relative_to(path)} is not part of a suite"
                                          for each in sorted(path.rglob("*")) if each not in own])
    for identifier, entry in suite.bricks.items():
        brick = suite.brick(identifier)
        report.modes[entry["mode"]] += 1
        report.batch_sizes.update(entry["batch_sizes"])
        report.precisions.update(entry["precisions"])
        report.lengths[brick.num_layers] += 1
        if brick.kind == "update":
            report.optimizers[str(brick.layers[0].kwargs.get("optimizer"))] += 1
        else:
            report.layer_types.update(brick.layer_types)
        report.num_whole += sum("whole" in each.sample for each in brick.inputs)
        report.num_reading += any(layer.gives_number for layer in brick.layers)
    return report
