"""Fused steps of optimizers."""

from typing import Any

import pytest
from support.remedied import PHASE_S, Trials, chosen, program, refused

from charact.analysis.findings._finding import Place

ADAM = {"class": "Adam", "implementation": "for-loop", "num_parameters": 5, "file": "train.py", "line": 9}


def test_the_largest_optimizer_that_can_be_fused() -> None:
    others: list[dict[str, Any]] = [
        ADAM | {"num_parameters": 9, "implementation": "fused"}, ADAM | {"num_parameters": 8, "class": "RMSprop"},
        ADAM | {"num_parameters": None, "line": 1}]
    (setting,) = chosen("fused", program({"optimizers": [*others, ADAM, ADAM | {"num_parameters": 4, "line": 2}]}))
    assert setting.values == {"name": "Adam", "file": "train.py", "line": 9}
    assert (setting.place, setting.added) == (Place("train.py", 9), "fused=True")
    assert setting.expected_frac == pytest.approx(0.3 * PHASE_S["update"])


def test_a_finding_knows_better_what_is_saved() -> None:
    (setting,) = chosen("fused", program({"optimizers": [ADAM]}, findings={"optimizer_loop": (0.2, 0.4, "high")}))
    assert setting.expected_frac == pytest.approx(0.3)


@pytest.mark.parametrize(("device", "implementation", "added"), [
    ("cpu", "foreach", "foreach=None, fused=True"), ("cpu", "for-loop", "fused=True"), ("cpu", None, "fused=True"),
    ("cuda:0", "foreach", "fused=True")])
def test_an_optimizer_takes_one_implementation(device: str, implementation: str | None, added: str) -> None:
    of = program({"optimizers": [ADAM | {"implementation": implementation}]}, device=device)
    assert chosen("fused", of)[0].added == added


def test_programs_without_an_optimizer_to_fuse() -> None:
    assert "no optimizer" in refused("fused", program())
    assert "no optimizer" in refused("fused", program({"optimizers": [ADAM | {"class": "LBFGS"}]}))
    assert "already" in refused("fused", program({"optimizers": [ADAM | {"implementation": "fused"}]}))


def test_the_optimizer_at_the_line_is_fused_and_no_other(trials: Trials) -> None:
    assert trials.without["fused"] == [False, False]
    assert trials.remedied["fused"] == [True, False]
