"""Runs to compare: trainings as a protocol asks for them, and runs that are slower by a known factor."""

from pathlib import Path
from typing import Any

from charact.record.reader import Run, load_run
from support import records

VARIANTS = {"googlenet": "torchvision", "resnet18": "imagenet"}


def write_northeastern(out: Path, data: str, epoch_s: dict[str, float], *, num_epochs: int = 10) -> Path:
    """A run of `charact train googlenet resnet18 --protocol northeastern --data DATA` on a CPU, by seconds an epoch."""
    cases = []
    for workload, seconds in epoch_s.items():
        entry = records.training_entry(workload, 10) | {
            "case": f"{workload}-224-b10-train-fp32-cpu", "variant": VARIANTS[workload], "input_size": 224,
            "data": data}  # fmt: skip
        entry["passes"]["training"] |= {"num_epochs_asked": num_epochs, "num_epochs": num_epochs}
        stages = [{"stage": "training", "number": number, "phase": "forward", "host_s": seconds, "device_s": None,
                   "num_iterations": 800, "num_samples": 8000} for number in range(1, num_epochs + 1)]  # fmt: skip
        cases.append((entry, {"stages": stages}))
    return records.publish(out, data, records.manifest("train", *epoch_s), *cases)


def slowed(run: Run, factor: float) -> Run:
    """The same run with every phase `factor` times as long."""
    rows = run.iterations
    run._tables["iterations"] = rows.assign(host_s=rows["host_s"] * factor)
    return run


def pair(out: Path, factor: float, **record: Any) -> list[Run]:
    first, second = (load_run(records.write_record(out, **record)) for _ in range(2))
    return [first, slowed(second, factor)]
