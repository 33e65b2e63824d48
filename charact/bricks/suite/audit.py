"""Audit of a suite: the information that its public part reveals."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charact.bricks.brick import Brick, canonical
from charact.bricks.captured_graph import ITEM_BYTES
from charact.bricks.suite.index import BRICKS, INDEX, Suite, brick_path, load_suite
from charact.core.errors import UserError
from charact.record.schema import PRECISIONS

KEYS = frozenset([
    "alike", "args", "batch_sizes", "bricks", "channel", "complex", "constant", "context_bytes", "device",
    "digest", "dtype", "float", "format", "g", "high", "inf", "-inf", "infinite", "inputs", "kind", "kwargs",
    "layer_types", "layers", "layout", "low", "memory_format", "method", "mode", "neighbours",
    "num_layers", "operator", "optimizer", "options", "outputs", "precision", "precisions", "quantiles", "repeated",
    "requires_grad", "sample", "schema_version", "several", "sha256", "shape", "stride", "torch", "value", "weight",
    "whole", "written",
])  # fmt: skip
"""Keys of a suite's files."""
_WORDS = frozenset([
    *ITEM_BYTES, "activation", "weight", "buffer", "constant", "normal", "positive", "sequence", "update",
    "gradient_sum", "train", "infer", *PRECISIONS, "nan", "inf", "-inf", "charact bricks", "chains", "paper",
    "heavy", "modules", "strided", "sparse_coo", "sparse_csr", "contiguous_format", "channels_last",
    "channels_last_3d", "preserve_format", "charact.update.default",
    # arguments of operators
    "none", "tanh", "floor", "trunc", "sum", "prod", "mean", "amax", "amin", "linear", "lower", "higher", "midpoint",
    "nearest", "ij", "xy", "fro", "nuc", "valid", "same",
])  # fmt: skip


@dataclass
class AuditReport:
    """Counts over a suite's bricks, and findings of content that should not be there."""

    suite: Suite
    num_bytes: int = 0
    """Size of all files."""
    modes: Counter[str] = field(default_factory=Counter)
    precisions: Counter[str] = field(default_factory=Counter)
    """Number of bricks by the precision of their models."""
    batch_sizes: Counter[int] = field(default_factory=Counter)
    """Number of bricks by the batch size of their models."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Number of bricks by number of layers."""
    layer_types: Counter[str] = field(default_factory=Counter)
    """Layers of all bricks by type."""
    shapes: Counter[tuple[str, tuple[int, ...], str]] = field(default_factory=Counter)
    """Inputs of all bricks by kind, shape and dtype."""
    optimizers: Counter[str] = field(default_factory=Counter)
    """Updates by optimizer; bricks also hold the optimizers' options."""
    context_bytes: Counter[int] = field(default_factory=Counter)
    """Number of bricks by `Brick.context_bytes`, a power of two."""
    num_whole: int = 0
    """Number of inputs with exact integers: indices, which may come from the data."""
    samples: Counter[str] = field(default_factory=Counter)
    """Number of bricks by the value distribution of an activation."""
    num_reading: int = 0
    """Number of bricks that return numbers to the model's code."""
    findings: list[str] = field(default_factory=list)
    """Unexpected content, one line each; empty for a suite written by charact."""

    @property
    def reveals(self) -> list[str]:
        """Return what the suite reveals about its models, one line each."""
        lines = [
            f"{len(self.suite.bricks)} bricks of {self.layer_types.total()} layers of {len(self.layer_types)} types, "
            "with the shapes of their inputs: rare layers reveal model families",
            f"modes {_listed(self.modes)}; precisions {_listed(self.precisions)}; "
            f"batch sizes {_listed(self.batch_sizes)}",
            f"memory touched by models, as powers of two: {len(self.context_bytes)} different",
            "approximate value distributions of activations (perturbed quantiles), but not of weights: the order of "
            "bricks can be guessed better than from shapes alone, but not determined",
        ]
        if equal := sum(number > 1 for number in self.samples.values()):
            lines.append(f"{equal} value distributions that several bricks share: these bricks read the same tensor of "
                         "a model")
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
    """Read a suite's public part and report what it reveals.

    Raises:
        UserError: the suite does not exist, or is damaged.
    """
    suite = load_suite(path)
    report = AuditReport(suite, num_bytes=(path / INDEX).stat().st_size, findings=_foreign_files(suite))
    for identifier, entry in suite.bricks.items():
        brick = suite.brick(identifier)
        report.modes[entry["mode"]] += 1
        report.batch_sizes.update(entry["batch_sizes"])
        report.precisions.update(entry["precisions"])
        _count(report, brick)
        data = brick_path(path, identifier).read_bytes()
        report.num_bytes += len(data)
        report.findings += _texts_found(f"{BRICKS}/{identifier}.json", data, _words_of(brick))
    report.findings += _texts_found(INDEX, (path / INDEX).read_bytes(), _words_of_index(report))
    if list(suite.bricks) != sorted(suite.bricks):
        report.findings.append(f"{INDEX} lists bricks in an order of its own")
    return report


def _count(report: AuditReport, brick: Brick) -> None:
    report.lengths[brick.num_layers] += 1
    report.context_bytes[brick.context_bytes] += 1
    if brick.kind == "update":
        report.optimizers[str(brick.layers[0].kwargs.get("optimizer"))] += 1
    else:
        report.layer_types.update(brick.layer_types)
    for each in brick.inputs:
        report.shapes[each.kind, each.type.shape, each.type.dtype] += 1
        report.num_whole += "whole" in each.sample
    report.num_reading += any(layer.gives_number for layer in brick.layers)
    report.samples.update({canonical(each.sample) for each in brick.inputs
                           if {"quantiles", "whole"}.intersection(each.sample)})


def _foreign_files(suite: Suite) -> list[str]:
    """Return findings for files that the index does not name, including the private part."""
    own = {suite.path / INDEX, *(brick_path(suite.path, brick) for brick in suite.bricks)}
    return [f"{path.relative_to(suite.path)} is not part of a suite" for path in sorted(suite.path.rglob("*"))
            if path not in own and path != suite.path / BRICKS]  # fmt: skip


def _words_of_index(report: AuditReport) -> set[str]:
    suite = report.suite
    version = {suite.torch} if re.fullmatch(r"\d+\.\d+[0-9a-z.+]*", suite.torch) else set()
    hashes = {suite.digest, *(entry["sha256"] for entry in suite.bricks.values())}
    return {*report.layer_types, *suite.bricks} | version | hashes


def _words_of(brick: Brick) -> set[str]:
    """Return PyTorch's names of the brick's operators and their arguments."""
    from charact.bricks.executable import names_of  # imported late: it imports torch

    found: set[str] = set()
    for layer in brick.layers:
        try:
            found |= names_of(layer)
        except UserError:
            continue  # unknown operator: its name becomes a finding
    return found


def _texts_found(name: str, data: bytes, known: set[str]) -> list[str]:
    return [f"{name} contains the text {text!r}" for text in dict.fromkeys(_foreign_texts(json.loads(data), known))]


def _foreign_texts(thing: Any, known: set[str]) -> Iterator[str]:
    """Yield keys and strings that do not belong in a suite."""
    if isinstance(thing, dict):
        for key, each in thing.items():
            if key not in KEYS and key not in known:
                yield key
            if not (key == "whole" and isinstance(each, str) and re.fullmatch(r"[A-Za-z0-9+/]*=*", each)):
                yield from _foreign_texts(each, known)
    elif isinstance(thing, list):
        for each in thing:
            yield from _foreign_texts(each, known)
    elif isinstance(thing, str) and thing not in _WORDS and thing not in known:
        yield thing
