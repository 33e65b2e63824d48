"""Energy of an iteration."""

from collections.abc import Iterator

from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.efficiency.utilization import energy
from charact.record.reader import Run


def _energies(run: Run) -> Iterator[tuple[str, Sample]]:
    for case, rows in energy(run).dropna(subset=["energy_per_iteration_j"]).groupby("case", sort=False):
        of_device = "rapl" if run.entry(str(case)).device.startswith("cpu") else "nvml"
        joules = rows.groupby("source", sort=False)["energy_per_iteration_j"].sum().to_dict()
        source = of_device if of_device in joules else str(next(iter(joules)))
        yield str(case), Sample(joules[source], reason=ONE_VALUE, basis=source)


METRIC = Metric("energy", 60, "energy of an iteration", "J", "energy of the device over an iteration", _energies,
                measured_by="counters")
