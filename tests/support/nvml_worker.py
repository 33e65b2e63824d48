"""A program that reads counters from whatever NVML it finds: one JSON object a line says what, one a line what came."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from charact.measure.counters._support.protocol import Reading, Unavailable, UnavailableError
from charact.measure.counters.gpm import GpmCounters
from charact.measure.counters.nvml import NvmlCounters
from charact.measure.passes.counters import Sampler

SOURCES = {"nvml": NvmlCounters, "gpm": GpmCounters}
DEVICE = torch.device("cuda", 0)
RULES, CALLS = (Path(os.environ[name]) for name in ("STUB_NVML_RULES", "STUB_NVML_CALLS"))


def read(source: str, uuid: str, pauses: Sequence[float] = (), later: str = "") -> dict[str, Any]:
    """Samples of a source on a device, each after a pause (s), and what its close gives.

    `later` are the rules for one more sample, after the last pause again, and for the close.
    """
    opened = SOURCES[source](lambda device: uuid)
    found: dict[str, Any] = {"available": told(opened.available())}
    try:
        reading = opened.open(DEVICE)
    except UnavailableError as refused:
        return found | {"refused": told(refused.unavailable)}
    samples = [attempt(reading, pause_s) for pause_s in pauses]
    if later:
        RULES.write_text(later)
        samples.append(attempt(reading, pauses[-1]))
    try:
        whole: Any = dict(reading.close())
    except UnavailableError as refused:
        whole = told(refused.unavailable)
    return found | {"samples": samples, "whole": whole, "missing": dict(reading.missing)}


def attempt(reading: Reading, pause_s: float) -> Any:
    """A sample, or the refusal."""
    time.sleep(pause_s)
    try:
        return dict(reading.sample())
    except UnavailableError as refused:
        return told(refused.unavailable)


def sample(source: str, uuid: str, later: str | None = None) -> dict[str, Any]:
    """Rows and outcome of a source that is read by the sampler; `later` are rules from the middle on."""
    sampler = Sampler([SOURCES[source](lambda device: uuid)], DEVICE)
    sampler.start()
    time.sleep(0.5)
    if later is not None:
        RULES.write_text(later)
        time.sleep(0.5)
    rows = sampler.stop()
    return {"rows": rows, "outcome": sampler.outcomes[source]}


def told(refusal: Unavailable | None) -> list[str | None] | None:
    return None if refusal is None else [refusal.reason, refusal.remedy]


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        RULES.write_text(asked.pop("rules"))
        CALLS.write_text("")
        os.environ["CUDA_VISIBLE_DEVICES"] = asked.pop("visible")
        found = {"read": read, "sample": sample}[asked.pop("do")](**asked)
        print(json.dumps({"found": found, "calls": Counter(CALLS.read_text().split())}), flush=True)


if __name__ == "__main__":
    main()
