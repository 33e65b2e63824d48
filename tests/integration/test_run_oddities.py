"""Training programs in forms that users write: no phase is wrong unless a message says so."""

import statistics
from pathlib import Path

import pytest
from support.forked import Server
from support.marked_runs import (
    TOLERANCE_FRAC,
    TOLERANCE_S,
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

from charact.measure.script.spans.blind_spots import BETWEEN, NO_LOADER, PREDICTED
from charact.record.reader import Run

SHARE_FRAC = 0.02
"""Largest error of a phase, as a share of the iteration's wall time."""
LEARNED = slice(2, -1)
"""Iterations that are compared: methods are known from their third call on; nothing tells where the last one ends."""
PROGRAMS: dict[str, dict[str, str]] = {
    "lbfgs_then_evaluation": {},
    "lbfgs_then_evaluation_in_training_mode": {},
    "rollouts": {},
    "rollouts_by_hand": {},
    "skipped_steps": {},
    "previews_by_an_average": {},
    "zero_grad_after_evaluation": {},
    "pseudo_labels": {},
    "pseudo_labels_by_hand": {"data": NO_LOADER, "forward": PREDICTED},
    "prefetch_before_backward": {"data": BETWEEN.format("", "forward", "backward")},
    "batches_by_hand": {"data": NO_LOADER},
    "sharpness_aware": {},
    "reinforcement": {},
    "averaged_teacher": {},
    "checkpoints": {},
    "gradient_penalty": {},
    "inner_loop": {"update": BETWEEN.format("", "backward", "forward")},
    "functional_training": {},
    "alternating_tasks": {},
    "noise_by_hand": {"data": BETWEEN.format("", "data", "forward")},
    "two_views": {},
    "loss_method": {},
    "truncated_backpropagation": {},
    "two_loaders": {},
    "clipped_and_scheduled": {},
    "two_backwards": {},
    "steps_in_accumulating_hooks": {},
}
"""By program the phases of which time is missing, and the message about it."""
QUICK = {"alternating_tasks", "rollouts", "skipped_steps"}


def phases_s(parts: list[Parts]) -> list[dict[str, float]]:
    """Seconds of each phase in each compared iteration, 0 where an iteration lacks a phase of another."""
    phases = [without_parts(one) for one in parts[LEARNED]]
    names = {name for one in phases for name, _ in one}
    return [{name: one[name, None] for name in names} for one in phases]


def mean_s(parts: list[Parts]) -> dict[str, float]:
    """Seconds of each phase in the mean iteration."""
    phases = phases_s(parts)
    return {name: statistics.fmean(one[name] for one in phases) for name in phases[0]}


def check_training(run: Run, tmp_path: Path, unseen: dict[str, str]) -> None:
    """Hold the phases of training to the truth, except for missing ones of which a message tells."""
    (case,) = (entry["case"] for entry in run.manifest["cases"] if entry["mode"] == "train")
    marked, recorded = true_iterations(tmp_path, "train"), recorded_parts_s(run, case)
    assert len(recorded) == len(marked)
    record_s, true_s = mean_s(recorded), mean_s(true_parts_s(marked))
    of_each = phases_s(recorded), phases_s(true_parts_s(marked))
    wall_s = sum(record_s.values())
    spots = run.passes(case)["timing"]["blind_spots"]
    for phase in sorted({*record_s, *true_s} - {"other"}):
        tolerance_s = max(TOLERANCE_S, TOLERANCE_FRAC * true_s.get(phase, 0.0), SHARE_FRAC * wall_s)
        if phase in unseen:
            assert true_s.get(phase, 0.0) - record_s.get(phase, 0.0) > tolerance_s, phase
            assert any(unseen[phase] in spot for spot in spots), (unseen[phase], spots)
        else:
            found_s, marked_s = ([one.get(phase, 0.0) for one in sums] for sums in of_each)
            assert mostly_alike(found_s, marked_s, tolerance_s), (phase, record_s, true_s)


@pytest.mark.clock
@pytest.mark.parametrize("name", [one if one in QUICK else slow(one) for one in PROGRAMS])
def test_no_phase_is_wrong_without_a_message(name: str, tmp_path: Path, server: Server) -> None:
    alone, watched = forked_bare_and_watched(server, tmp_path, "oddities", name)
    assert alone[0] == 0, alone[2]
    assert watched[:2] == alone[:2], watched[2]
    run, unseen = only_run(tmp_path), PROGRAMS[name]
    check_training(run, tmp_path, unseen)
    if PREDICTED in unseen.values():
        return
    marked = true_iterations(tmp_path, "infer")
    cases = [entry["case"] for entry in run.manifest["cases"] if entry["mode"] == "infer"]
    assert len(cases) == bool(marked)
    for case in cases:
        recorded = recorded_parts_s(run, case)
        assert len(recorded) == len(marked)
        assert mean_s(recorded)["forward"] == pytest.approx(
            mean_s(true_parts_s(marked))["forward"], rel=TOLERANCE_FRAC, abs=TOLERANCE_S)
