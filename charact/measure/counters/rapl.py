"""Energy of the processor and its memory, as Intel's and AMD's processors count it (RAPL), from Linux's powercap."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from charact.measure.counters._support.protocol import Counter, Refusal, Refused

POWERCAP = Path("/sys/class/powercap")
_ZONES = "intel-rapl:*"
"""Zones of AMD's processors are called so, too. Those of intel-rapl-mmio are the same over again."""
_ENERGIES = {"package": "energy_j", "dram": "dram_energy_j"}


class RaplCounters:
    """Joules of the processor's packages, and of the memory beside them where it is counted.

    *Error*: the counters move about once a millisecond. Of other programs the energy counts, too.

    Args:
        root: where the kernel shows its powercap zones.
    """

    name = "rapl"
    cost = "reads a small file a package and sample"
    devices = frozenset({"cpu", "cuda"})
    reads: Literal["host"] = "host"
    taken: Literal["along"] = "along"
    period_s = 0.1
    counters = (
        Counter("energy_j", "energy of all processor packages over the stretch", "measured",
                "processor packages, with all that runs on them"),
        Counter("dram_energy_j", "energy of the memory over the stretch", "measured",
                "memory, with all that uses it"),
        Counter("power_w", "mean power of all processor packages over the stretch, or since the sample before",
                "measured", "processor packages, with all that runs on them"),
    )

    def __init__(self, root: Path) -> None:
        self._root = root

    def available(self) -> Refusal | None:
        """Whether there are such counters and they may be read."""
        packages = _zones(self._root, "package")
        if not packages:
            return Refusal(f"{self._root} shows no energy counters: the processor has none, or this is a virtual "
                           "machine")
        try:
            for zone in packages:
                zone.energy_uj()
        except PermissionError:
            return Refusal("energy counters are for administrators only",
                           f"sudo chmod a+r {self._root}/{_ZONES}/energy_uj, until the next boot")
        return None

    def open(self, device: torch.device) -> "_RaplReading":
        """Begin to count."""
        return _RaplReading(self._root)


class _Zone:
    """A counter of the kernel's, which begins anew at its range."""

    def __init__(self, directory: Path) -> None:
        self._energy = directory / "energy_uj"
        self._range_uj = int((directory / "max_energy_range_uj").read_text(encoding="ascii"))
        self._last_uj: int | None = None
        self.total_uj = 0

    def energy_uj(self) -> int:
        """Where the counter stands.

        Raises:
            PermissionError: this user may not read it.
        """
        return int(self._energy.read_text(encoding="ascii"))

    def go_on(self) -> None:
        """Add what was counted since the last time; a counter that stands lower has begun anew once."""
        now_uj = self.energy_uj()
        if self._last_uj is not None:
            passed_uj = now_uj - self._last_uj
            self.total_uj += passed_uj if passed_uj >= 0 else passed_uj + self._range_uj
        self._last_uj = now_uj


class _RaplReading:
    """Joules since the opening."""

    def __init__(self, root: Path) -> None:
        self._zones = {kind: _zones(root, kind) for kind in _ENERGIES}
        self.missing: Mapping[str, str] = (
            {} if self._zones["dram"] else {"dram_energy_j": "this processor does not count its memory's energy"})
        self._go_on()
        self._begun_s = self._last_s = time.perf_counter()
        self._last_j = 0.0

    def sample(self) -> Mapping[str, float]:
        """Mean power since the sample before."""
        last_s, last_j = self._last_s, self._last_j
        self._go_on()
        self._last_s, self._last_j = time.perf_counter(), self._joules("package")
        return {"power_w": (self._last_j - last_j) / (self._last_s - last_s)}

    def close(self) -> Mapping[str, float]:
        """Energy and mean power over the whole stretch."""
        self._go_on()
        length_s = time.perf_counter() - self._begun_s
        energies = {name: self._joules(kind) for kind, name in _ENERGIES.items() if self._zones[kind]}
        return energies | {"power_w": energies["energy_j"] / length_s}

    def _go_on(self) -> None:
        try:
            for zones in self._zones.values():
                for zone in zones:
                    zone.go_on()
        except OSError as error:
            raise Refused(f"the energy counters cannot be read any more: {error.strerror}") from error

    def _joules(self, kind: str) -> float:
        return sum(zone.total_uj for zone in self._zones[kind]) / 1e6


def _zones(root: Path, kind: str) -> list[_Zone]:
    """Counters of a kind: of packages (`package-0`, ...), or of memory (`dram`), which lies below its package."""
    return [_Zone(directory) for directory in sorted(root.glob(_ZONES))
            if (directory / "name").read_text(encoding="ascii").strip().partition("-")[0] == kind]


SOURCE = RaplCounters(POWERCAP)
