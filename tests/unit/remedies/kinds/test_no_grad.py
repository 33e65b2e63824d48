"""Inference without a graph."""

import pytest
from support.remedied import Trials, chosen, program, refused

from charact.remedies.commands.try_ import _chosen


def test_programs_that_infer_with_gradients() -> None:
    of = program({"models": [{"inference_with_grad": 0}, {"inference_with_grad": 3}]},
                 findings={"inference_graph": (0.2, 0.4, "high")})
    (setting,) = chosen("no-grad", of)
    assert setting.expected_frac == pytest.approx(0.3)
    assert "no model" in refused("no-grad", program({"models": [{"inference_with_grad": 0}, {}]}))


def test_it_is_tried_for_memory_however_little_time_it_may_save() -> None:
    settings, untried = _chosen(program({"models": [{"inference_with_grad": 3}]}, findings={}), None)
    assert "no-grad" in {each.remedy for each in settings}
    assert "fused" not in {each.remedy for each in settings}
    assert "no-grad" not in {each.remedy for each in untried}


def test_eval_mode_has_no_graph_and_training_has_one(trials: Trials) -> None:
    assert (trials.without["inference_has_graph"], trials.remedied["inference_has_graph"]) == (True, False)
    assert (trials.without["training_has_graph"], trials.remedied["training_has_graph"]) == (True, True)
