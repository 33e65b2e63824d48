"""The real packages of Lightning, transformers and Accelerate: what a hook finds, and that it changes nothing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import charact

SCRIPTS = Path(__file__).parents[1] / "scripts"
PACKAGES = {
    "lightning": ("lightning", "pytorch_lightning"), "transformers": ("transformers",), "accelerate": ("accelerate",),
}


def is_installed(framework: str) -> bool:
    return any(importlib.util.find_spec(package) for package in PACKAGES[framework])


@pytest.fixture(scope="module", params=PACKAGES)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the framework's script tells of itself."""
    framework = request.param
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed: pip install 'charact[{framework}]'")
    out = tmp_path_factory.mktemp(framework)
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"framework_{framework}.py"), str(out)], capture_output=True, text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
class TestAHook:
    def test_changes_nothing(self, told: dict[str, Any]) -> None:
        assert told["watched"] == told["bare"]
        assert told["raised"] == "on purpose"

    def test_counts_iterations_of_training_and_evaluation(self, told: dict[str, Any]) -> None:
        entries = charact.load_run(told["run"]).entries
        assert {entry.mode: entry.passes.timing.num_iterations + entry.passes.timing.num_warmup_iterations
                for entry in entries} == {"train": told["train"], "infer": told["infer"]}
        assert [entry.batch_size for entry in entries] == told["batch_sizes"]

    def test_finds_the_phases(self, told: dict[str, Any]) -> None:
        run = charact.load_run(told["run"])
        rows = run.iterations[run.iterations["case"] == run.entries[0].case]
        medians = rows.groupby("phase")["host_s"].median()
        assert {"data", "forward", "loss", "backward", "update", "other"} <= set(medians.index)
        num_skipped = run.entries[0].passes.timing.num_warmup_iterations
        for phase, seconds in told["times"].items():
            truth_s = median(seconds[num_skipped:])
            assert abs(medians[phase] - truth_s) <= max(0.03 * truth_s, 0.002), phase

    def test_writes_what_was_measured_until_an_error(self, told: dict[str, Any]) -> None:
        run = charact.load_run(told["failed"])
        assert told["failed"] != told["run"]
        assert run.manifest["ending"] in ("RuntimeError: on purpose", "not reported")
        assert run.entries


@pytest.mark.parametrize("framework", PACKAGES)
def test_without_its_framework_a_hook_says_what_to_install(framework: str, tmp_path: Path) -> None:
    hidden = "\n".join(f"sys.modules[{package!r}] = None" for package in PACKAGES[framework])
    code = f"""
import sys
{hidden}
from charact.core.errors import UserError
try:
    import charact.integrations.{framework}
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith(f"pip install 'charact[{framework}]'")
