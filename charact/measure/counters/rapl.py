"""Energy of processor packages and memory, from RAPL counters of Intel and AMD in Linux's powercap."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from charact.measure.counters._support.protocol import Counter, SampledSource, Unavailable, UnavailableError

POWERCAP = Path("/sys/class/powercap")
_ZONES = "intel-rapl:*"
"""Pattern of the zones, also on AMD. The zones of intel-rapl-mmio duplicate them."""
_ENERGIES = {"package": "energy_j", "dram": "dram_energy_j"}


class RaplCounters(SampledSource):
    """Energy of the processor packages, and of the memory if it is counted separately.

    *Error*: the counters are updated about once a millisecond, and include the energy of other programs.
    """

    name = "rapl"
    cost = "reads one small file per package and sample"
    devices = frozenset({"cpu", "cuda"})
    reads = "host"
    period_s = 0.1
    counters = (
        Counter("energy_j", "energy of all processor packages over the pass", "measured",
                "processor packages, with all that runs on them"),
        Counter("dram_energy_j", "energy of the memory over the pass", "measured",
                "memory, with all that uses it"),
        Counter("power_w", "mean power of all processor packages over the pass, or since the previous sample",
                "measured", "processor packages, with all that runs on them"),
    )

    def __init__(self, root: Path) -> None:
        self._root = root

    def available(self) -> Unavailable | None:
        """Return why the source cannot be used; it needs energy counters that this user may read."""
        packages = _zones(self._root, "package")
        if not packages:
            return Unavailable(f"{self._root} shows no energy counters: the processor has none, or this is a virtual "
                               "machine")
        try:
            for zone in packages:
                zone.energy_uj()
        except PermissionError:
            return Unavailable("energy counters are for administrators only",
                               f"sudo chmod a+r {self._root}/{_ZONES}/energy_uj, until the next boot")
        return None

    def open(self, device: torch.device) -> "_RaplReading":
        """Start to count."""
        return _RaplReading(self._root)


class _Zone:
    """A kernel counter, which wraps around at its range."""

    def __init__(self, directory: Path) -> None:
        self._energy = directory / "energy_uj"
        self._range_uj = int((directory / "max_energy_range_uj").read_text(encoding="ascii"))
        self._last_uj: int | None = None
        self.total_uj = 0

    def energy_uj(self) -> int:
        """Return the counter's value in µJ.

        Raises:
            PermissionError: this user may not read it.
        """
        return int(self._energy.read_text(encoding="ascii"))

    def update(self) -> None:
        """Add the energy since the last call; a lower value means that the counter wrapped around once."""
        now_uj = self.energy_uj()
        if self._last_uj is not None:
            passed_uj = now_uj - self._last_uj
            self.total_uj += passed_uj if passed_uj >= 0 else passed_uj + self._range_uj
        self._last_uj = now_uj


class _RaplReading:
    """Energy since the opening."""

    def __init__(self, root: Path) -> None:
        self._zones = {kind: _zones(root, kind) for kind in _ENERGIES}
        self.missing: Mapping[str, str] = (
            {} if self._zones["dram"] else {"dram_energy_j": "this processor does not count its memory's energy"})
        self._update()
        self._begun_s = self._last_s = time.perf_counter()
        self._last_j = 0.0

    def sample(self) -> Mapping[str, float]:
        last_s, last_j = self._last_s, self._last_j
        self._update()
        self._last_s, self._last_j = time.perf_counter(), self._joules("package")
        return {"power_w": (self._last_j - last_j) / (self._last_s - last_s)}

    def close(self) -> Mapping[str, float]:
        self._update()
        length_s = time.perf_counter() - self._begun_s
        energies = {name: self._joules(kind) for kind, name in _ENERGIES.items() if self._zones[kind]}
        return energies | {"power_w": energies["energy_j"] / length_s}

    def _update(self) -> None:
        try:
            for zones in self._zones.values():
                for zone in zones:
                    zone.update()
        except OSError as error:
            raise UnavailableError(f"the energy counters cannot be read any more: {error.strerror}") from error

    def _joules(self, kind: str) -> float:
        return sum(zone.total_uj for zone in self._zones[kind]) / 1e6


def _zones(root: Path, kind: str) -> list[_Zone]:
    return [_Zone(directory) for directory in sorted(root.glob(_ZONES))
            if (directory / "name").read_text(encoding="ascii").strip().partition("-")[0] == kind]


SOURCE = RaplCounters(POWERCAP)
