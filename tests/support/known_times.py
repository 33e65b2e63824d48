"""Two runs of one case with known times; the slower one has the smaller median over its phases."""

from pathlib import Path

from charact.record.schema import Rows
from support import records
from support.kept import written_once

CASE = "resnet50-32-b8-train-fp32-cpu"
SLOW_S = {("data", None): 0.010, ("forward", "generator"): 0.500, ("forward", "discriminator"): 0.200,
          ("backward", "generator"): 1.450, ("other", None): 0.004}
FAST_S = {("data", None): 0.250, ("forward", None): 0.250, ("backward", None): 0.250, ("update", None): 0.250}
SLOW_MEDIAN_S, FAST_MEDIAN_S = 2.164 * 1.011, 1.000 * 1.011
NUM_ITERATIONS = 23
HELD = "other programs held 0.6 of 2 cores"


def iterations(phases_s: dict[tuple[str, str | None], float]) -> Rows:
    """Rows of `iterations`: each takes 0.1 % longer than the one before, so the twelfth is the median."""
    return [{"iteration": number, "phase": phase, "part": part, "host_s": seconds * (1 + 0.001 * number),
             "device_s": None} for number in range(NUM_ITERATIONS) for (phase, part), seconds in phases_s.items()]


@written_once
def write_known(out: Path, *, name: str, is_slow: bool) -> Path:
    """A run with one case; in the slow one, other programs took a third of the processor time that it wanted."""
    entry = records.case_entry("resnet50", 32, "train")
    entry["passes"]["timing"] |= {"num_iterations": NUM_ITERATIONS, "warmup_ended_by": "max_seconds"}
    if is_slow:
        entry["passes"]["timing"]["core_use"] = {
            "length_s": 10.0, "processor_s": 10.0, "others_s": 6.0, "waiting_s": 6.0, "stolen_s": 0.0,
            "num_usable_cores": 2}
    tables = {"iterations": iterations(SLOW_S if is_slow else FAST_S),
              "memory": records.case_tables("train", 32)["memory"]}
    return records.publish(out, name, records.manifest("profile", name), (entry, tables))
