"""Scripts with known sleeps under `charact run`: nothing of them changes, and the record tells what they know."""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.forked import Server
from support.marked_runs import (
    SCRIPTS,
    TOLERANCE_FRAC,
    TOLERANCE_S,
    Outcome,
    Parts,
    forked_bare_and_watched,
    mostly_alike,
    only_run,
    recorded_parts_s,
    slow,
    true_iterations,
    true_parts_s,
    without_parts,
)

from charact.record.reader import Run

pytestmark = pytest.mark.clock


def started(command: list[str], directory: Path, **environment: str) -> subprocess.Popen[str]:
    directory.mkdir()
    return subprocess.Popen(
        [sys.executable, *command], cwd=directory, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **environment})


def outcome(process: subprocess.Popen[str]) -> Outcome:
    stdout, stderr = process.communicate("a line of input", timeout=300)
    return process.returncode, stdout, stderr


def bare_and_watched(tmp_path: Path, script: str, *arguments: str, options: tuple[str, ...] = ()
                     ) -> tuple[Outcome, Outcome]:
    """Outcomes of a script, alone and under charact, in processes of their own."""
    program = [str(SCRIPTS / f"{script}.py"), *arguments]
    alone = started(program, tmp_path / "bare", TRUTH="../unread.json")
    watched = started(["-m", "charact", "run", "--skip", "0", "--passes", "timing", "--out", str(tmp_path / "runs"),
                       *options, *program], tmp_path / "watched", TRUTH=str(tmp_path / "truth.json"))
    return outcome(alone), outcome(watched)


def assert_alike(recorded: list[Parts], true: list[Parts]) -> None:
    """Hold every phase of most iterations to the truth."""
    for key in sorted({key for one in (*recorded, *true) for key in one if key[0] != "other"}, key=str):
        true_s, record_s = ([one.get(key, 0.0) for one in sums] for sums in (true, recorded))
        tolerance_s = max(TOLERANCE_S, TOLERANCE_FRAC * median(true_s))
        assert mostly_alike(record_s, true_s, tolerance_s), (key, record_s, true_s)


def check_case(run: Run, tmp_path: Path, mode: str) -> None:
    """Hold one case of a record to the truth that the script wrote."""
    true = true_iterations(tmp_path, mode)
    entries = [entry for entry in run.manifest["cases"] if entry["mode"] == mode]
    assert len(entries) == (1 if true else 0)
    if not true:
        return
    recorded = recorded_parts_s(run, entries[0]["case"])
    timing = run.passes(entries[0]["case"])["timing"]
    assert timing["num_iterations"] == len(recorded) == len(true)
    assert_alike(recorded, true_parts_s(true))
    walls_s = [one["wall_s"] for one in true]
    # Where the last iteration ends, nothing tells: the script goes on alone.
    for record, wall_s in list(zip(recorded, walls_s, strict=True))[:-1]:
        assert sum(record.values()) == pytest.approx(wall_s, rel=TOLERANCE_FRAC, abs=TOLERANCE_S)
    # Of most iterations: in the others, the process may wait for a core between two phases.
    unattributed = [(record["other", None] - parts.get(("other", None), 0.0)) / wall_s
                    for record, parts, wall_s in zip(recorded, true_parts_s(true), walls_s, strict=True)]
    assert median(unattributed) <= 0.03
    assert sum(record["other", None] for record in recorded) >= 0


CASES = {
    "plain loop": ["plain_loop"],
    "loader with workers": ["loader_workers"],
    "gradient accumulation": ["accumulation"],
    "GAN": ["gan"],
    "GAN without a loader": ["gan", "--no-loader"],
    "several critic steps a generator step": ["wgan"],
    "a scaler that skips a step": ["grad_scaler"],
    "autocast": ["autocast"],
    "a loss inside the model": ["loss_in_model"],
    "a loss by hand": ["loss_by_hand"],
    "a loss as a module": ["loss_as_module"],
    "LBFGS": ["lbfgs"],
    "evaluation between epochs": ["evaluation"],
    "evaluation without a loader": ["evaluation", "--no-loader"],
    "evaluation with gradients": ["evaluation", "--grad"],
    "a teacher": ["teacher"],
    "recomputation": ["recomputation"],
    "a call of its own": ["own_call"],
    "data parallel": ["data_parallel", "1"],
    "data parallel over two processes": ["data_parallel", "2"],
    "forks": ["forking"],
    "updated by hand": ["updated_by_hand"],
    "inference": ["inference_only"],
    "inference with gradients": ["inference_only", "--grad"],
    "steps inside the backward": ["step_in_backward"],
}


SLOW = {
    "GAN without a loader", "several critic steps a generator step", "autocast", "evaluation without a loader",
    "evaluation with gradients", "a call of its own", "data parallel", "data parallel over two processes",
    "inference with gradients", "a loss as a module", "recomputation", "steps inside the backward",
    "a scaler that skips a step", "a loss inside the model", "LBFGS", "a teacher", "updated by hand",
    "forks",
}


@pytest.mark.clock
@pytest.mark.parametrize("program", [slow(one) if name in SLOW else one for name, one in CASES.items()], ids=CASES)
def test_a_script_stays_as_it_is_and_its_phases_are_the_true_ones(
        program: list[str], tmp_path: Path, server: Server) -> None:
    alone, watched = forked_bare_and_watched(server, tmp_path, *program, draws_views=False)
    assert alone[2] == ""
    assert watched[:2] == alone[:2], watched[2]
    assert alone[1].count("\n") > 1
    run = only_run(tmp_path)
    for mode in ("train", "infer"):
        check_case(run, tmp_path, mode)
    assert not [path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]


def test_methods_that_are_called_by_themselves_are_forwards(tmp_path: Path, server: Server) -> None:
    alone, watched = forked_bare_and_watched(server, tmp_path, "methods", draws_views=False)
    assert watched[:2] == alone[:2], watched[2]
    run = only_run(tmp_path)
    recorded, true = recorded_parts_s(run, "methods-train"), true_parts_s(true_iterations(tmp_path, "train"))
    assert len(recorded) == len(true)
    # `forward` is known from its second call on; any other method is observed in its second. Until then the
    # submodules are models of their own, which is why forwards have parts.
    assert_alike([without_parts(one) for one in recorded[3:]], true[3:])
    assert run.manifest["cases"][0]["num_parameters"] == 4 * 8 + 8 + 8 * 8 + 8 + 8 * 4 + 4


def check_compiled(tmp_path: Path, *how: str) -> tuple[list[Parts], dict[str, Any]]:
    """Hold a compiled script to what its compiler does without charact; its recorded parts, and facts of its timing."""
    alone, watched = bare_and_watched(tmp_path, "compiled", *how)
    assert alone[0] == 0, alone[2]
    assert watched[:2] == alone[:2]
    run = only_run(tmp_path)
    recorded = recorded_parts_s(run, "compiled-train")
    assert len(recorded) == len(true_iterations(tmp_path, "train")) == 8
    return recorded, run.passes("compiled-train")["timing"]


@pytest.mark.parametrize("how", [slow(["model"]), slow(["method"]), slow(["function"]), slow(["function", "break"])],
                         ids=" with a ".join)
def test_the_compiler_does_what_it_does_without(how: list[str], tmp_path: Path) -> None:
    recorded, timing = check_compiled(tmp_path, *how)
    true = true_parts_s(true_iterations(tmp_path, "train"))
    num_graphs = 4 if "break" in how else 2  # one size of batch, and any size; the backend sleeps over each
    assert timing["compile_s"] >= 0.03 * num_graphs
    assert timing["compile_s"] <= sum(one["other", None] for one in recorded)
    # Nothing is compiled any more: the forward, which holds the loss, is all there is of it.
    assert_alike(recorded[3:], true[3:])


@pytest.mark.slow
def test_the_compiler_does_what_it_does_without_in_earnest(tmp_path: Path) -> None:
    recorded, timing = check_compiled(tmp_path, "model", "inductor")
    true = true_parts_s(true_iterations(tmp_path, "train"))
    assert timing["compile_s"] > 0.5 * (true[0]["forward", None] + true[2]["forward", None])
    assert_alike(recorded[3:], true[3:])


@pytest.mark.slow
def test_a_script_is_given_what_it_would_be_given(tmp_path: Path) -> None:
    alone, watched = bare_and_watched(tmp_path, "reads_its_surroundings", "--quiet", "-x", "two words")
    assert alone[0] == 1
    assert "a line of input" in alone[1]
    assert "'--quiet', '-x', 'two words'" in alone[1]
    assert watched[:2] == (alone[0], alone[1].replace("/bare", "/watched"))
    assert watched[2].startswith(alone[2])


def test_a_script_without_torch_runs_without_it(tmp_path: Path) -> None:
    alone, watched = bare_and_watched(tmp_path, "without_torch")
    assert alone == (7, "45 False\n", "")
    assert watched[:2] == alone[:2]
    assert len(watched[2].splitlines()) == 1
    assert "nothing was measured" in watched[2]
    assert not list((tmp_path / "runs").iterdir())
