"""The shell completes names, without importing what takes long."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from charact.analysis.compare.metrics import all_metrics
from charact.cli import build_command
from charact.commands._shared import completion
from charact.commands.export import MERGED_FORMAT
from charact.datasets._common.registry import all_datasets
from charact.views.export.tables import FORMATS
from charact.views.export.tracker import all_trackers
from charact.workload import metrics
from charact.workload.registry import all_workloads

TAKEN = {
    "workload", "workloads", "models", "data", "device", "device_like", "until", "fail_if", "run", "runs", "sides",
    "partial", "what", "logdir", "resume", "form", "mode", "precision",
}
"""Names of the parameters whose values are completed."""
NOT_COMPLETED = {*((name, "partial") for name in ("export", "figures", "report", "show")), ("ops", "precision")}
"""Switches, and the formats of `ops`, which are others."""
CHILD = """
import atexit, json, os, sys
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) & {"torch", "numpy", "pandas", "rich", "psutil"})),
                              file=sys.stderr))
sys.argv = ["charact"]
from charact.cli import main
main()
"""


def completed(words: str, place: Path) -> tuple[list[str], list[str]]:
    """Completions of the last word, as bash gets them, and heavy modules that were imported for them."""
    environment = os.environ | {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
                                "_CHARACT_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, cwd=place, capture_output=True, text=True,
                          check=False)
    return done.stdout.split(), json.loads(done.stderr.splitlines()[-1])


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for inner, one in command.commands.items():
            yield from leaves(one, f"{name} {inner}".strip())
    else:
        yield name, command


def record(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")


def test_every_parameter_that_takes_a_name_completes_it() -> None:
    found = {(name, parameter.name): parameter._custom_shell_complete is not None
             for name, command in leaves(build_command()) for parameter in command.params if parameter.name in TAKEN}
    assert {name for _, name in found} == TAKEN
    expected = {key for key in found if key not in NOT_COMPLETED}
    assert {key for key, completes in found.items() if completes} == expected


@pytest.mark.parametrize(("words", "expected"), [
    ("charact profile re", [name for name in sorted([*all_workloads(), "resnet"]) if name.startswith("re")]),
    ("charact profile mlp,xc", ["mlp,xception"]), ("charact train mlp --data cif", ["cifar10"]),
    ("charact profile mlp --device c", ["cpu"]), ("charact train --until ac", ["accuracy="]),
    ("charact compare --fail-if thr", ["throughput"]), ("charact report runs/a", ["runs/a-run"]),
    ("charact bricks construct al", ["all"]), ("charact export --format pro", ["prometheus"]),
    ("charact data fetch m", ["mnist"]),
])
def test_the_shell_gets_names_without_heavy_imports(words: str, expected: list[str], tmp_path: Path) -> None:
    record(tmp_path / "runs" / "a-run")
    found, imported = completed(words, tmp_path)
    assert [name for name in found if not name.startswith("cuda")] == expected
    assert imported == []


def test_names_are_those_of_the_registries() -> None:
    workloads = all_workloads()
    assert set(completion.workload_names("")) == {*workloads, *(a for one in workloads.values() for a in one.aliases)}
    assert set(completion.datasets("")) == set(all_datasets())
    assert set(completion.stored_datasets("")) == set(all_datasets()) - {"synthetic"}
    assert set(completion.export_formats("")) == {*FORMATS, MERGED_FORMAT, *all_trackers()}
    assert set(all_metrics()) < set(completion.compared_metrics(""))


def test_metrics_are_those_of_trainings() -> None:
    classes = [one for _, one in inspect.getmembers(metrics, inspect.isclass)
               if issubclass(one, metrics.Metric) and not inspect.isabstract(one) and not one.__name__.startswith("_")]
    names = {getattr(one, "name", None) or inspect.signature(one).parameters["name"].default for one in classes}
    assert len(names) > 3
    assert set(completion.training_metrics("")) == {f"{name}=" for name in names | {"loss"}}


def test_runs_are_directories_with_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completion.runs("") == completion.partial_runs("") == []
    for name in ("runs/b", "runs/a", "runs/.partial-c", "elsewhere/d"):
        record(tmp_path / name)
    (tmp_path / "runs" / "empty").mkdir()
    assert completion.runs("") == ["runs/a", "runs/b"]
    assert completion.runs("elsewhere/") == ["elsewhere/d"]
    assert completion.runs(f"{tmp_path}/elsewhere/d") == [f"{tmp_path}/elsewhere/d"]
    assert completion.runs("nowhere/") == []
    assert completion.partial_runs("runs/.p") == ["runs/.partial-c"]


def test_devices_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda path: ["nvidia10", "nvidia2", "nvidiactl", "null"])
    assert completion.devices("") == ["auto", "cpu", "cuda", "cuda:2", "cuda:10"]

    def absent(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", absent)
    assert completion.devices("") == ["auto", "cpu"]


@pytest.mark.parametrize(("complete", "incomplete", "expected"), [
    (completion.modes, "", ["train", "infer", "prefill", "decode", "generate"]),
    (completion.modes, "train,in", [
        f"train,{mode}" for mode in ("train", "infer", "prefill", "decode", "generate")]),
])
def test_lists_complete_their_last_item(
    complete: Callable[[str], list[str]], incomplete: str, expected: list[str]
) -> None:
    assert complete(incomplete) == expected
