"""Programs with known sleeps under `charact run`: nothing of them changes, and their phases are the true ones.

`tests/scripts/oddities.py` has programs in forms that users write: no phase is wrong unless a message says so.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.forked import Server
from support.programs import only_record

from charact.measure.script.spans.blind_spots import BETWEEN, NO_LOADER, PREDICTED
from charact.record.reader import Run

pytestmark = pytest.mark.clock

SCRIPTS = Path(__file__).parents[1] / "scripts"
TOLERANCE_S, TOLERANCE_FRAC = 0.002, 0.03
SHARE_FRAC = 0.02
"""Largest error of a phase of an oddity, as a share of the iteration's wall time."""
Outcome = tuple[int, str, str]
Parts = dict[tuple[str, str | None], float]


def watched_command(tmp_path: Path, script: str, *arguments: str) -> tuple[list[str], list[str]]:
    """A script's command alone, and under charact."""
    program = [str(SCRIPTS / f"{script}.py"), *arguments]
    return program, ["run", "--skip", "0", "--passes", "timing", "--out", str(tmp_path / "runs"), *program]


def run_both(server: Server, tmp_path: Path, *program: str) -> Run:
    """The record of a script that does under charact what it does alone; both run at once."""
    children = []
    for place, command, truth in zip(("bare", "watched"), watched_command(tmp_path, *program),
                                     ("../unread.json", str(tmp_path / "truth.json")), strict=True):
        (tmp_path / place).mkdir()
        children.append(server.start(*command, cwd=tmp_path / place, TRUTH=truth))
    alone, watched = (child.wait() for child in children)
    assert (alone.status, alone.error) == (0, "")
    assert (watched.status, watched.output) == (0, alone.output), watched.error
    assert alone.output.count("\n") > 1
    return only_record(tmp_path)


def true_iterations(tmp_path: Path, mode: str) -> list[dict[str, Any]]:
    return [iteration for iteration in json.loads((tmp_path / "truth.json").read_text()) if iteration["mode"] == mode]


def true_parts_s(iterations: list[dict[str, Any]]) -> list[Parts]:
    """Seconds of each phase and part, by iteration."""
    sums: list[Parts] = []
    for iteration in iterations:
        sums.append(defaultdict(float))
        for part in iteration["parts"]:
            sums[-1][part["phase"], part["part"]] += part["seconds"]
    return sums


def recorded_parts_s(run: Run, case: str) -> list[Parts]:
    rows = run.iterations[run.iterations["case"] == case]
    sums: list[Parts] = [defaultdict(float) for _ in range(rows["iteration"].nunique())]
    for row in rows.to_dict("records"):
        part = row["part"] if isinstance(row["part"], str) else None
        for addition in ("for ", "'s update", " without gradients"):  # scripts mark only the model
            part = part and part.removeprefix(addition).removesuffix(addition)
        sums[row["iteration"]][row["phase"], part] += row["host_s"]
    return sums


def without_parts(parts: Parts) -> Parts:
    phases: Parts = defaultdict(float)
    for (phase, _), seconds in parts.items():
        phases[phase, None] += seconds
    return phases


def mostly_alike(recorded_s: Sequence[float], true_s: Sequence[float], tolerance_s: float) -> bool:
    """Whether 2 of 3 iterations agree, or 3 of 5: in some, another program takes the core between the clocks.

    Charact starts to count the use of the cores in the first one, which takes up to 6 ms.
    """
    far = sum(abs(recorded - true) > tolerance_s for recorded, true in zip(recorded_s, true_s, strict=True))
    return far <= (math.ceil(len(true_s) / 3) if len(true_s) > 2 else 0)


def assert_alike(recorded: list[Parts], true: list[Parts]) -> None:
    """Hold every phase of most iterations to the truth."""
    for key in sorted({key for parts in (*recorded, *true) for key in parts if key[0] != "other"}, key=str):
        true_s, record_s = ([parts.get(key, 0.0) for parts in sums] for sums in (true, recorded))
        tolerance_s = max(TOLERANCE_S, TOLERANCE_FRAC * median(true_s))
        assert mostly_alike(record_s, true_s, tolerance_s), (key, record_s, true_s)


def check_case(run: Run, tmp_path: Path, mode: str) -> None:
    """Hold one case of a record to the truth that the script wrote."""
    true = true_iterations(tmp_path, mode)
    cases = [entry.case for entry in run.entries if entry.mode == mode]
    assert len(cases) == bool(true)
    if not true:
        return
    recorded = recorded_parts_s(run, cases[0])
    assert run.entry(cases[0]).passes.timing.num_iterations == len(recorded) == len(true)
    assert_alike(recorded, true_parts_s(true))
    walls_s = [iteration["wall_s"] for iteration in true]
    # Where the last iteration ends, nothing tells: the script goes on alone.
    for record, wall_s in list(zip(recorded, walls_s, strict=True))[:-1]:
        assert sum(record.values()) == pytest.approx(wall_s, rel=TOLERANCE_FRAC, abs=TOLERANCE_S)
    # Of most iterations: in the others, the process may wait for a core between two phases.
    unattributed = [(record["other", None] - parts.get(("other", None), 0.0)) / wall_s
                    for record, parts, wall_s in zip(recorded, true_parts_s(true), walls_s, strict=True)]
    assert median(unattributed) <= 0.03
    assert sum(record["other", None] for record in recorded) >= 0


def slow_but(names: dict[str, Any], *quick: str) -> list[Any]:
    """Parameters by name, of which all but a few are left to the slow tests: others show nearly the same."""
    return [pytest.param(value, id=name, marks=[] if name in quick else pytest.mark.slow)
            for name, value in names.items()]


PROGRAMS = {
    "plain loop": ["plain_loop"], "loader with workers": ["oddities", "loader_workers"],
    "gradient accumulation": ["oddities", "accumulation"], "GAN": ["gan"],
    "GAN without a loader": ["gan", "--no-loader"],
    "several critic steps a generator step": ["oddities", "critic_steps"],
    "a scaler that skips a step": ["oddities", "scaled_gradients"],
    "a loss inside the model": ["oddities", "loss_in_model"], "a loss by hand": ["oddities", "loss_by_operations"],
    "a loss as a module": ["oddities", "loss_as_module"], "evaluation between epochs": ["evaluation"],
    "evaluation without a loader": ["evaluation", "--no-loader"], "evaluation with gradients": ["evaluation", "--grad"],
    "recomputation": ["oddities", "recomputation"], "a call of its own": ["oddities", "own_call"],
    "data parallel": ["data_parallel", "1"], "data parallel over two processes": ["data_parallel", "2"],
    "forks": ["forking"], "updated by hand": ["updated_by_hand"], "inference": ["inference_only"],
    "inference with gradients": ["inference_only", "--grad"],
}


@pytest.mark.parametrize("program", slow_but(
    PROGRAMS, "plain loop", "loader with workers", "gradient accumulation", "GAN", "a loss by hand",
    "evaluation between epochs", "inference"))
def test_a_script_stays_as_it_is_and_its_phases_are_the_true_ones(
        program: list[str], tmp_path: Path, server: Server) -> None:
    run = run_both(server, tmp_path, *program)
    for mode in ("train", "infer"):
        check_case(run, tmp_path, mode)


def test_methods_that_are_called_by_themselves_are_forwards(tmp_path: Path, server: Server) -> None:
    run = run_both(server, tmp_path, "methods")
    recorded, true = recorded_parts_s(run, "methods-train"), true_parts_s(true_iterations(tmp_path, "train"))
    assert len(recorded) == len(true)
    # `forward` is known from its second call on; any other method is observed in its second. Until then the
    # submodules are models of their own, which is why forwards have parts.
    assert_alike([without_parts(parts) for parts in recorded[3:]], true[3:])
    assert run.entries[0].num_parameters == 4 * 8 + 8 + 8 * 8 + 8 + 8 * 4 + 4


@pytest.mark.slow
@pytest.mark.parametrize("how", [["model"], ["method"], ["function"], ["function", "break"], ["model", "inductor"]],
                         ids=" with a ".join)
def test_the_compiler_does_what_it_does_without(how: list[str], tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    for place, command in zip(("bare", "watched"), watched_command(tmp_path, "compiled", *how), strict=True):
        (tmp_path / place).mkdir()
        done = subprocess.run(
            [sys.executable, *(["-m", "charact"] if place == "watched" else []), *command], cwd=tmp_path / place,
            text=True, capture_output=True, timeout=300, check=False, env=os.environ | {
                "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TRUTH": str(tmp_path / f"{place}.json")})
        outcomes.append((done.returncode, done.stdout, done.stderr))
    assert outcomes[0][0] == 0, outcomes
    assert outcomes[1][:2] == outcomes[0][:2]
    (tmp_path / "watched.json").rename(tmp_path / "truth.json")
    run = only_record(tmp_path)
    recorded, true = recorded_parts_s(run, "compiled-train"), true_parts_s(true_iterations(tmp_path, "train"))
    assert len(recorded) == len(true) == 8
    compile_s = run.entry("compiled-train").passes.timing.compile_s
    if "inductor" in how:
        assert compile_s > 0.5 * (true[0]["forward", None] + true[2]["forward", None])
    else:
        num_graphs = 4 if "break" in how else 2  # one size of batch, and any size; the backend sleeps over each
        assert 0.03 * num_graphs <= compile_s <= sum(parts["other", None] for parts in recorded)
    # Nothing is compiled any more: the forward, which holds the loss, is all there is of it.
    assert_alike(recorded[3:], true[3:])


LEARNED = slice(2, -1)
"""Iterations that are compared: methods are known from their third call on; nothing tells where the last one ends."""
MISSING: dict[str, dict[str, str]] = {
    "pseudo_labels_by_hand": {"data": NO_LOADER, "forward": PREDICTED},
    "prefetch_before_backward": {"data": BETWEEN.format("", "forward", "backward")},
    "batches_by_hand": {"data": NO_LOADER},
    "inner_loop": {"update": BETWEEN.format("", "backward", "forward")},
    "noise_by_hand": {"data": BETWEEN.format("", "data", "forward")},
}
"""By program the phases of which time is missing, and the message about it."""
ODDITIES = {name: name for name in (
    "lbfgs_then_evaluation", "lbfgs_then_evaluation_in_training_mode", "rollouts", "skipped_steps",
    "previews_by_an_average", "zero_grad_after_evaluation", "pseudo_labels", "sharpness_aware", "reinforcement",
    "averaged_teacher", "gradient_penalty", "functional_training", "alternating_tasks", "two_views",
    "loss_method", "two_loaders", "steps_in_accumulating_hooks", *MISSING)}


def phases_s(parts: list[Parts]) -> list[dict[str, float]]:
    """Seconds of each phase in each compared iteration, 0 where an iteration lacks a phase of another."""
    phases = [without_parts(iteration) for iteration in parts[LEARNED]]
    names = {name for iteration in phases for name, _ in iteration}
    return [{name: iteration[name, None] for name in names} for iteration in phases]


def mean_s(phases: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(iteration[name] for iteration in phases) for name in phases[0]}


@pytest.mark.parametrize("name", slow_but(ODDITIES, "alternating_tasks", "rollouts", "skipped_steps"))
def test_no_phase_is_wrong_without_a_message(name: str, tmp_path: Path, server: Server) -> None:
    run, unseen = run_both(server, tmp_path, "oddities", name), MISSING.get(name, {})
    (entry,) = (entry for entry in run.entries if entry.mode == "train")
    marked, recorded = true_iterations(tmp_path, "train"), recorded_parts_s(run, entry.case)
    assert len(recorded) == len(marked)
    recorded_s, marked_s = phases_s(recorded), phases_s(true_parts_s(marked))
    record_s, true_s = mean_s(recorded_s), mean_s(marked_s)
    for phase in sorted({*record_s, *true_s} - {"other"}):
        tolerance_s = max(TOLERANCE_S, TOLERANCE_FRAC * true_s.get(phase, 0.0), SHARE_FRAC * sum(record_s.values()))
        if phase in unseen:
            assert true_s.get(phase, 0.0) - record_s.get(phase, 0.0) > tolerance_s, phase
            assert any(unseen[phase] in spot for spot in entry.passes.timing.blind_spots), unseen[phase]
        else:
            assert mostly_alike([iteration.get(phase, 0.0) for iteration in recorded_s],
                                [iteration.get(phase, 0.0) for iteration in marked_s], tolerance_s), (
                                    phase, record_s, true_s)
    if PREDICTED in unseen.values():
        return
    marked = true_iterations(tmp_path, "infer")
    cases = [entry.case for entry in run.entries if entry.mode == "infer"]
    assert len(cases) == bool(marked)
    for case in cases:
        recorded = recorded_parts_s(run, case)
        assert len(recorded) == len(marked)
        assert mean_s(phases_s(recorded))["forward"] == pytest.approx(
            mean_s(phases_s(true_parts_s(marked)))["forward"], rel=TOLERANCE_FRAC, abs=TOLERANCE_S)
