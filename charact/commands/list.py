"""`charact list`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.core.output import show
from charact.core.units import quantity

if TYPE_CHECKING:
    from charact.workload.base import Workload

Row = dict[str, Any]
_MOST_WORDS = 3


class Topic(StrEnum):
    """What can be listed."""

    WORKLOADS = "workloads"
    DATASETS = "datasets"
    DEVICES = "devices"
    COUNTERS = "counters"
    OPERATOR_TYPES = "operator-types"


def command(
    topic: Annotated[Topic | None, typer.Argument(
        metavar="TOPIC", help="workloads, datasets, devices, counters or operator-types. Default: everything.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all details as JSON.")] = False,
) -> None:
    """List workloads, data sets, devices, counters and others."""
    listed = {each: _LISTINGS[each].rows() for each in ([topic] if topic else Topic)}
    if as_json:
        import json

        show(*json.dumps(listed, indent=1).split("\n"))
        return
    from charact.commands._shared.print_table import print_table

    for each, rows in listed.items():
        columns = _LISTINGS[each].columns
        for heading, members in groupby(rows, _LISTINGS[each].heading):
            print_table(heading, [column.removesuffix("_bytes").replace("_", " ") for column in columns],
                        [[_text(row, column) for column in columns] for row in members])


def _text(row: Row, column: str) -> str:
    value = row[column]
    if isinstance(value, list):
        words = ", ".join(value[:_MOST_WORDS])
        return f"{words}, … ({len(value)} in --json)" if len(value) > _MOST_WORDS else words or "–"
    if isinstance(value, int):
        if column.endswith("_bytes"):
            return quantity(value, "B")
        return str(value) if value < 10_000 else f"{value:,}"  # a year has no comma
    if value is None:
        return "any" if column == "kind" else "–"
    aliases = row["aliases"] if column == "workload" else []
    return " ".join([value, *(f"({alias})" for alias in aliases)])


def _workloads() -> list[Row]:
    from charact.workload.registry import all_workloads

    return [
        {"workload": workload.name, "family": type(workload).__module__.rpartition(".")[2], "year": workload.year,
         "parameters": _num_parameters(workload.prepare()), "aliases": list(workload.aliases),
         "variants": list(workload.variants), "input": workload.input_kind,
         "input_size": workload.prepare().default_input_size,
         "smallest_input_size": workload.prepare().smallest_input_size, "batch_size": workload.default_batch_size,
         "source": workload.source}
        for workload in all_workloads().values()
    ]


def _num_parameters(workload: "Workload") -> int | None:
    """Return the number of parameters of a workload's default variant, without its weights; None if it needs them."""
    import torch

    from charact.datasets._common.request import DataRequest

    try:
        with torch.device("meta"):
            model = workload.model(workload.dataset(workload.default_input_size, DataRequest()))
    except (NotImplementedError, RuntimeError):  # the model of a plugin reads the values of its weights
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def _datasets() -> list[Row]:
    from charact.datasets._common.registry import all_datasets

    return [
        {"dataset": spec.name, "kind": spec.kind, "classes": spec.num_classes, "splits": list(spec.splits),
         "description": spec.description, "source": spec.source}
        for spec in all_datasets().values()
    ]


def _devices() -> list[Row]:
    from charact.machine.facts import machine_facts
    from charact.measure.memory_estimate.target_devices import target_like, target_names

    machine = machine_facts()
    here = [("cpu", machine["cpu"]["model"], machine["memory_bytes"])]
    here += [(f"cuda:{gpu['index']}", gpu["name"], gpu["memory_bytes"]) for gpu in machine["gpus"]]
    rows: list[Row] = [{"device": device, "option": "--device", "name": name, "memory_bytes": memory_bytes,
                        "source": "this machine"} for device, name, memory_bytes in here]
    known = [target_like(name) for name in target_names()]
    return rows + [{"device": target.name, "option": "--device-like", "name": None, "memory_bytes": target.memory_bytes,
                    "source": target.source} for target in known]


def _counters() -> list[Row]:
    from charact.measure.counters import all_sources

    rows: list[Row] = []
    for source in all_sources().values():
        unavailable = source.available()
        reason = None if unavailable is None else unavailable.reason
        rows += [{"counter": counter.name, "method": counter.method, "scope": counter.scope,
                  "definition": counter.definition, "source": source.name, "cost": source.cost, "taken": source.taken,
                  "unavailable_reason": reason, "tried_on": source.tried_on} for counter in source.counters]
    return rows


def _counter_heading(row: Row) -> str:
    from charact.measure.counters._support.protocol import NOT_TRIED

    reason = row["unavailable_reason"]
    remarks = [*([] if reason is None else [f"n/a ({reason})"]), *([] if row["tried_on"] else [NOT_TRIED])]
    return f"Counters of {row['source']}" + (": " if remarks else "") + "; ".join(remarks)


def _operator_types() -> list[Row]:
    from charact.core.operator_types import OPERATOR_TYPES

    return [{"operator_type": name, "description": description} for name, description in OPERATOR_TYPES.items()]


@dataclass(frozen=True)
class _Listing:
    """How a topic is listed: its rows, the columns to show, and the headings of groups of rows."""

    rows: Callable[[], list[Row]]
    columns: tuple[str, ...]
    heading: Callable[[Row], str]


_LISTINGS = {
    Topic.WORKLOADS: _Listing(_workloads, ("workload", "family", "year", "parameters", "variants"),
                              lambda _: "Workloads, with the parameters of the first variant"),
    Topic.DATASETS: _Listing(_datasets, ("dataset", "kind", "splits", "description", "source"), lambda _: "Datasets"),
    Topic.DEVICES: _Listing(_devices, ("device", "name", "memory_bytes"), lambda row: (
        "Devices of this machine" if row["option"] == "--device" else "Devices of --device-like")),
    Topic.COUNTERS: _Listing(_counters, ("counter", "method", "definition"), _counter_heading),
    Topic.OPERATOR_TYPES: _Listing(_operator_types, ("operator_type", "description"), lambda _: "Operator types"),
}
