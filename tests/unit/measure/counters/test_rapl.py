"""Energy counters, read from a tree of files like the kernel's."""

from pathlib import Path

import pytest
import torch

from charact.measure.counters._support.protocol import UnavailableError
from charact.measure.counters.rapl import RaplCounters

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
RANGE_UJ = 1_000_000


class Tree:
    """The kernel's zones, as files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def zone(self, directory: str, name: str) -> None:
        (self.root / directory).mkdir()
        (self.root / directory / "name").write_text(f"{name}\n")
        (self.root / directory / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        self.put(directory, 0)

    def put(self, directory: str, energy_uj: int) -> None:
        (self.root / directory / "energy_uj").write_text(f"{energy_uj}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Zones of a machine with two packages, each with its cores and its memory."""
    tree = Tree(tmp_path)
    for package in (0, 1):
        tree.zone(f"intel-rapl:{package}", f"package-{package}")
        tree.zone(f"intel-rapl:{package}:0", "core")
        tree.zone(f"intel-rapl:{package}:1", "dram")
    tree.zone("intel-rapl:2", "psys")
    tree.zone("intel-rapl-mmio:0", "package-0")
    return tree


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_energy_is_that_of_all_packages_and_power_its_mean(tree: Tree, clock: list[float]) -> None:
    source = RaplCounters(tree.root)
    assert source.available() is None
    tree.put("intel-rapl:0", 300_000)
    reading = source.open(CPU)
    clock[0] += 0.5
    tree.put("intel-rapl:0", 500_000)
    tree.put("intel-rapl:0:0", 900_000)
    assert reading.sample() == {"power_w": pytest.approx(0.4)}
    clock[0] += 1.5
    tree.put("intel-rapl:1", 600_000)
    tree.put("intel-rapl:1:1", 50_000)
    assert reading.sample() == {"power_w": pytest.approx(0.4)}
    found = reading.close()
    assert found == pytest.approx({"energy_j": 0.8, "dram_energy_j": 0.05, "power_w": 0.4})
    assert set(found) == {counter.name for counter in source.counters}


def test_a_counter_that_began_anew_goes_on(tree: Tree, clock: list[float]) -> None:
    tree.put("intel-rapl:0", RANGE_UJ - 10_000)
    reading = RaplCounters(tree.root).open(CPU)
    clock[0] += 1
    tree.put("intel-rapl:0", 20_000)
    reading.sample()
    clock[0] += 1
    tree.put("intel-rapl:0", 5_000)
    assert reading.close()["energy_j"] == pytest.approx((30_000 + RANGE_UJ - 15_000) / 1e6)


def test_a_processor_that_does_not_count_its_memory_says_so(tmp_path: Path, clock: list[float]) -> None:
    tree = Tree(tmp_path)
    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl:0:0", "core")
    reading = RaplCounters(tmp_path).open(CPU)
    clock[0] += 2
    tree.put("intel-rapl:0", 500_000)
    assert reading.close() == pytest.approx({"energy_j": 0.5, "power_w": 0.25})
    assert reading.missing == {"dram_energy_j": "this processor does not count its memory's energy"}


def test_no_counters_is_a_reason(tmp_path: Path) -> None:
    found = RaplCounters(tmp_path / "absent").available()
    assert found is not None
    assert found.reason.endswith("the processor has none, or this is a virtual machine")


def test_administrators_counters_have_a_remedy(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def refused(path: Path, *args: object, **kwargs: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refused)
    source = RaplCounters(tree.root)
    found = source.available()
    assert found is not None
    assert found.reason == "energy counters are for administrators only"
    assert found.remedy == f"sudo chmod a+r {tree.root}/intel-rapl:*/energy_uj, until the next boot"


def test_a_counter_that_goes_away_is_refused(tree: Tree) -> None:
    reading = RaplCounters(tree.root).open(CPU)
    (tree.root / "intel-rapl:1" / "energy_uj").unlink()
    with pytest.raises(UnavailableError, match="cannot be read any more"):
        reading.sample()
