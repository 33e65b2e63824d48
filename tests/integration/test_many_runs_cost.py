"""`charact report` and `charact compare` of 300 runs: their memory and how their CPU time grows, in processes."""

import shutil
from pathlib import Path

import pytest
from many_runs import RECORD, Cost, cost, write_copies

pytestmark = pytest.mark.slow

NUM_RUNS = (100, 200, 300)
MOST_BYTES = 400_000_000


@pytest.fixture(scope="module", params=["repeats", "sweep"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_copies(RECORD, tmp_path_factory.mktemp(request.param), max(NUM_RUNS), request.param)


def check(costs: list[Cost]) -> None:
    cpu_s = [each.cpu_s for each in costs]
    print([(round(each.cpu_s, 1), each.peak_bytes // 1_000_000) for each in costs])
    assert cpu_s[1] / cpu_s[0] < 2.6
    assert cpu_s[2] / cpu_s[1] < 2.0
    assert cpu_s[2] / NUM_RUNS[2] < 1
    assert max(each.peak_bytes for each in costs) < MOST_BYTES


def test_report(runs: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check([cost(["report", *runs[:num_runs], "--to", page, "--force"]) for num_runs in NUM_RUNS])
    assert page.stat().st_size < 8_000_000
    assert "The sections of 294 of 300 runs (1,176 of 1,200 cases) are left out" in page.read_text()


def test_compare(runs: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    costs = []
    for num_runs in NUM_RUNS:
        folder = tmp_path / str(num_runs)
        for run in runs[:num_runs]:
            shutil.copytree(run, folder / run.name)
        costs.append(cost(["compare", folder, folder, "--to", page, "--force"]))
    check(costs)
    assert page.stat().st_size < 8_000_000
