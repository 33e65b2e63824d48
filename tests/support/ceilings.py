"""Ceilings with round numbers, kept for this machine through the real writer."""

import os
from typing import Any

import torch

from charact.machine.ceilings_cache import (
    CachedCeilings,
    CachedCollectives,
    Ceiling,
    cache_ceilings,
    ceilings_file,
    collectives_file,
)
from charact.machine.facts import machine_facts

_MOST_THREADS = max(8, os.cpu_count() or 1)


def ceiling(name: str, value: float, unit: str, **facts: Any) -> Ceiling:
    row = {"device": "cpu", "ceiling": name, "precision": None, "working_set_bytes": None, "level": None,
           "value": value, "low": 0.99 * value, "high": 1.01 * value, "unit": unit, "datasheet": None,
           "datasheet_source": None, "theoretical": None, "cores_frac": None, "origin": None}
    return row | facts  # type: ignore[return-value]


def made_up(device: str = "cpu") -> list[Ceiling]:
    """Of a machine that no process of a test comes near."""
    return [
        ceiling("gemm", 1e13, "flop_per_s", precision="fp32", device=device, cores_frac=1.0),
        ceiling("gemm", 2e13, "flop_per_s", precision="bf16", device=device, cores_frac=1.0),
        ceiling("copy", 4e11, "bytes_per_s", level="memory", working_set_bytes=2**30, device=device),
        ceiling("triad", 5e11, "bytes_per_s", level="memory", working_set_bytes=2**30, device=device),
        ceiling("launch", 1e-7, "s", device=device),
    ]


def keep_made_up() -> None:
    """Fill the cache for every number of threads that a test may take."""
    fingerprint = machine_facts()["fingerprint"]
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    all_reduce = {"operation": "all_reduce", "bytes": 2**20, "time_s": 2e-6, "bus_bytes_per_s": 5e11, "low": 5e11,
                  "high": 5e11}
    cache_ceilings(collectives_file(fingerprint, torch.__version__, 2, "gloo"),
                   CachedCollectives("gloo", 2, [all_reduce], {}))  # type: ignore[list-item]
    for num_threads in range(1, _MOST_THREADS + 1):
        for device in devices:
            cache_ceilings(ceilings_file(fingerprint, torch.__version__, num_threads, device),
                           CachedCeilings(made_up(device)))
