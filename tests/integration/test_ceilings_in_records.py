"""Which commands measure ceilings, and what each record holds of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.programs import only_record

SMALL = ["mlp", "--input-sizes", "8", "--synthetic", "classes=4", "--batch-sizes", "8", "--threads", "1"]
QUICK = ["--max-iterations", "6", "--max-seconds", "1", "--counters", "none"]
MISSING = "ceilings of cpu: they were not measured yet; charact doctor --ceilings measures them"
CACHE_ONLY: dict[str, list[str]] = {
    "infer": ["infer", *SMALL, "--repeats", "1", "--max-batches", "2"],
    "train": ["train", "mlp", "--input-sizes", "8", "--batch-sizes", "4000", "--synthetic", "classes=4",
              "--threads", "1"],
    "memory": ["memory", *SMALL, "--mode", "infer", "--predict"],
}


@pytest.mark.slow
def test_a_profile_measures_them_once_and_the_next_takes_them_from_the_cache(
        here: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    profile = ["profile", *SMALL, *QUICK, "--mode", "infer"]
    done = here(*profile, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("Measuring the ceilings of cpu, once on this machine: a few seconds\n")
    manifest = only_record(tmp_path).manifest
    assert manifest["ceilings_reason"] is None
    assert {"gemm", "copy", "triad", "launch"} == {row["ceiling"] for row in manifest["ceilings"]}
    files = list((tmp_path / "cache" / "charact" / "ceilings").glob("*"))
    if "warning: other processes were running" in done.stderr:
        assert files == []
        pytest.skip("other processes were running: the ceilings are not kept")
    assert [path.name.endswith("-1threads-cpu.json") for path in files] == [True]
    (tmp_path / "second").mkdir()
    again = here(*profile, cwd=tmp_path / "second")
    assert (again.returncode, again.stderr) == (0, "")
    assert only_record(tmp_path / "second").manifest["ceilings"] == manifest["ceilings"]


@pytest.mark.slow
@pytest.mark.parametrize("command", CACHE_ONLY)
def test_other_commands_measure_nothing(here: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        command: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = here(*CACHE_ONLY[command], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    manifest = only_record(tmp_path).manifest
    assert (manifest["ceilings"], manifest["ceilings_reason"]) == ([], MISSING)
    assert not (tmp_path / "cache" / "charact").exists()


def test_threads_of_the_process_are_as_before(here: Callable[..., Any], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    done = here("doctor", "--ceilings", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gemm fp32" in done.stdout
    assert torch.get_num_threads() == threads
