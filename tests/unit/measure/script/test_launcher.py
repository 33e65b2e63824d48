"""Starting a program on several ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.ranks import SCRIPT, only_record

from charact.core.errors import UserError
from charact.measure.script.ranks.launcher import divide_threads, launch, without_option


@pytest.mark.parametrize(("num_ranks", "num_cores", "given", "threads", "warns"), [
    (2, 8, {}, "4", False), (2, 2, {}, "1", False), (3, 2, {}, "1", True), (2, 8, {"OMP_NUM_THREADS": "3"}, "3", False),
])  # fmt: skip
def test_threads_are_divided(num_ranks: int, num_cores: int, given: dict[str, str], threads: str, warns: bool,
                             capsys: pytest.CaptureFixture[str]) -> None:
    environment = dict(given)
    divide_threads(num_ranks, num_cores, environment)
    assert environment == {"OMP_NUM_THREADS": threads}
    assert ("3 ranks share 2 cores" in capsys.readouterr().err) is warns


@pytest.mark.parametrize("option", [["--nproc", "2"], ["--nproc=2"]])
def test_ranks_get_the_arguments_without_the_option(option: list[str]) -> None:
    given = ["run", "--skip", "1", *option, "train.py", "--nproc", "7"]
    assert without_option(given) == ["run", "--skip", "1", "train.py", "--nproc", "7"]


def test_a_rank_starts_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"this process is rank 1 of 4 already .*: leave out --nproc"):
        launch(2, ["run", "train.py"])


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--fail-at", "8"), 1)])
def test_nproc_starts_the_ranks_and_makes_one_record(arguments: tuple[str, ...], status: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "charact", "run", "--nproc", "2", "--quiet", str(SCRIPT), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
                          capture_output=True, check=False, timeout=300)
    assert done.returncode == status, done.stderr
    run = only_record(tmp_path, done.stderr)
    assert [case["rank"] for case in run.manifest["cases"]] == [0, 1]
    assert ("ValueError: bad batch" in done.stderr) is bool(status)
    if status:
        assert run.manifest["ending"] == "rank 1: ValueError: bad batch"
