"""Scripts in the shape of PyTorch's public examples run as they are, and what is told of them is right."""

import json
from pathlib import Path

import pytest
from support.forked import Server
from support.programs import OURS, num_iterations, only_record

from charact.measure.script.spans.blind_spots import NO_LOADER

SCRIPTS = Path(__file__).parents[1] / "scripts"
TOLERANCE_S, TOLERANCE_FRAC = 0.002, 0.03
"""Of an iteration's mean."""



@pytest.mark.clock
@pytest.mark.parametrize("name", [  # of one model with an evaluation, and of two models
    "mnist", "dcgan", pytest.param("word_language_model", marks=pytest.mark.slow)])
def test_a_public_example_runs_as_it_is_and_its_iterations_are_right(
        tmp_path_factory: pytest.TempPathFactory, server: Server, name: str) -> None:
    tmp_path = tmp_path_factory.mktemp(name) / "place"  # anew in each try
    tmp_path.mkdir()
    command = [str(SCRIPTS / f"yardstick_{name}.py")]
    bare = server.charact(*command, cwd=tmp_path, TRUTH="truth.json")
    # Without passes: on a slow machine they would take some of the few iterations.
    watched = server.charact("run", "--quiet", "--skip", "0", "--passes", "timing", *command, cwd=tmp_path,
                             TRUTH="truth.json")
    assert bare.returncode == 0
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout)
    assert [line for line in watched.stderr.splitlines() if not line.startswith(OURS)] == bare.stderr.splitlines()
    run, true = only_record(tmp_path), json.loads((tmp_path / "truth.json").read_text())
    assert {entry.mode: num_iterations(run, entry.mode) for entry in run.entries} == true["num_iterations"]

    (entry,) = (entry for entry in run.entries if entry.mode == "train")
    rows = run.iterations[run.iterations["case"] == entry.case]
    phases_s = rows.pivot_table(values="host_s", index="iteration", columns="phase", aggfunc="sum")
    iteration_s = phases_s.sum(axis=1)
    no_loader = NO_LOADER in entry.passes.timing.blind_spots
    # Of the typical iteration: in the others much else may happen between two phases on a machine that is busy.
    assert phases_s["other"].median() <= max((0.1 if no_loader else 0.03) * iteration_s.median(), TOLERANCE_S)
    recorded = rows.groupby("phase")["host_s"].sum() / true["num_iterations"]["train"]
    seconds = {phase: total / true["num_iterations"]["train"] for phase, total in true["seconds"].items()}
    if name == "word_language_model":  # it makes its batches by hand
        assert no_loader
    for phase, expected in seconds.items():
        assert recorded[phase] == pytest.approx(expected, rel=TOLERANCE_FRAC, abs=TOLERANCE_S), phase
    assert (recorded >= 0).all()
    parts = {part for part in rows["part"] if isinstance(part, str)}
    assert parts == ({"netG", "netD", "for netG's update", "for netD's update"} if name == "dcgan" else set())
