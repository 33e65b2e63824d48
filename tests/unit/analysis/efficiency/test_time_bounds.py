"""What limits the time of an iteration: parts worked out by hand, and that they sum to it whatever the record holds."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judged import CEILINGS, ceilings_of, counted, judged, operator

from charact.analysis.efficiency.time_bounds import CALLING, LIMITS, limited_parts, time_limits
from charact.record.reader import Run
from charact.record.schema import PHASES


def limits(run: Run) -> dict[str, float]:
    return time_limits(run).set_index("limit")["time_s"].to_dict()


class TestOnACpu:
    def test_phases_that_wait_are_limits_of_their_own(self, tmp_path: Path) -> None:
        run = judged(tmp_path, {"data": 0.01, "forward": 0.05, "communication": 0.02, "other": 0.02})
        assert limits(run) == pytest.approx({"data": 0.01, "communication": 0.02, "other": 0.07})
        assert time_limits(run)["share_frac"].sum() == pytest.approx(1)
        assert time_limits(run)["limit"].tolist() == ["data", "communication", "other"]
        run = judged(tmp_path, {"forward": 0.04}, [operator("forward", "GEMM", 0.03, flop=1e10)], ceilings=[])
        assert limits(run) == pytest.approx({"host": 0.01, "other": 0.03})
        operators = [operator("backward", "communication", 0.01), operator("backward", "GEMM", 0.02, num_calls=0)]
        assert limits(judged(tmp_path, {"backward": 0.04}, operators)) == pytest.approx(
            {"communication": 0.01, "host": 0.01, "other": 0.02})  # fmt: skip
        operators = [operator("forward", "GEMM", 0.02, flop=1e10, num_calls=0)]
        run = judged(tmp_path, {"forward": 0.02, "update": 0.01}, operators, profiled={"forward": 0.02})
        assert limits(run) == pytest.approx({"compute": 0.02, "other": 0.01})

    def test_operators_are_scaled_to_the_timing_pass(self, tmp_path: Path) -> None:
        # Under the profiler forward takes 80 ms, twice as long, of which 60 ms in an operator of one call.
        operators = [operator("forward", "GEMM", 0.06, flop=1e10, num_bytes=1e6)]
        run = judged(tmp_path, {"forward": 0.04}, operators, profiled={"forward": 0.08})
        assert limits(run) == pytest.approx({"host": 0.01 + 1e-5, "compute": 0.03 - 1e-5})
        operators = [operator("backward", "GEMM", 0.06, flop=1e10, num_bytes=1e6, num_calls=0)]
        assert limits(judged(tmp_path, {"backward": 0.04}, operators)) == pytest.approx({"compute": 0.04})
        operators = [operator("forward", "elementwise", 0.03, num_bytes=1e6, num_calls=0),
                     operator("forward", "elementwise", 0.01, num_calls=0)]  # fmt: skip
        assert limits(judged(tmp_path, {"forward": 0.04}, operators)) == pytest.approx({"bandwidth": 0.04})

    def test_each_call_costs_the_ceiling_of_a_launch_but_no_more_than_it_took(self, tmp_path: Path) -> None:
        operators = [operator("forward", "elementwise", 0.02, num_bytes=1e6, num_calls=500),
                     operator("forward", "activation", 0.02, num_bytes=1e6, num_calls=5000)]  # fmt: skip
        run = judged(tmp_path, {"forward": 0.04}, operators)
        assert limits(run) == pytest.approx({"host": 0.005 + 0.02, "bandwidth": 0.015})
        parts = limited_parts(run)
        assert parts[parts["limit"] == "host"]["operator_type"].tolist() == [CALLING]

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["view", "autograd", "host sync"])
    def test_what_moves_no_data_is_the_hosts(self, tmp_path: Path, kind: str) -> None:
        assert limits(judged(tmp_path, {"forward": 0.04}, [operator("forward", kind, 0.04)])) == {"host": 0.04}

    def test_work_is_limited_by_the_ceiling_that_is_nearer(self, tmp_path: Path) -> None:
        operators = [
            operator("forward", "GEMM", 0.02, flop=1e10, num_bytes=9e8, num_calls=0),  # 10 ms against 9 ms
            operator("backward", "GEMM", 0.03, flop=1e10, num_bytes=2e9, num_calls=0),  # 10 ms against 20 ms
            operator("update", "optimizer", 0.005, num_bytes=1e8, num_calls=0),
            operator("loss", "loss", 0.001, num_calls=0),
        ]  # fmt: skip
        run = judged(tmp_path, {"forward": 0.02, "loss": 0.001, "backward": 0.03, "update": 0.005}, operators)
        assert limits(run) == pytest.approx({"compute": 0.02, "bandwidth": 0.035, "other": 0.001})
        bounds = limited_parts(run).set_index("phase")["bound_s"].dropna().to_dict()
        assert bounds == pytest.approx({"forward": 0.01, "backward": 0.02, "update": 0.001})

ON_DEVICE = {"data": 0.01, "forward": 0.03, "backward": 0.06}


class TestOnADevice:
    def judged(self, tmp_path: Path, operators: list[dict[str, Any]], **told: Any) -> Run:
        return judged(tmp_path, ON_DEVICE, operators, on_device=True, entry={"device": "cuda:0"},
                      ceilings=ceilings_of("cuda:0"), **told)

    def test_the_time_without_kernels_is_the_hosts(self, tmp_path: Path) -> None:
        operators = [operator("forward", "GEMM", 0.5, device_s=0.02, flop=1e10, num_calls=1000),
                     operator("backward", "GEMM", 0.5, device_s=0.05, flop=1e10)]
        # No share of the kernels' time is for calling, and none is scaled by what the profiler cost the host.
        run = self.judged(tmp_path, operators, profiled={"forward": 5.0, "backward": 5.0})
        assert limits(run) == pytest.approx({"data": 0.01, "host": 0.02, "compute": 0.07})
        operators = [operator("forward", "GEMM", 0.0, device_s=0.04, flop=1e10),
                     operator("backward", "GEMM", 0.0, device_s=0.06, flop=1e10)]
        assert limits(self.judged(tmp_path, operators)) == pytest.approx({"data": 0.01, "compute": 0.09})

    @pytest.mark.parametrize(("counters", "exchange_s"), [
        ([], 0.02),  # as much as fits beside the work
        ([counted("kineto", "communication_s", 2.0), counted("kineto", "exposed_communication_s", 0.5)], 0.0075),
        ([counted("kineto", "communication_s", 0.0), counted("kineto", "exposed_communication_s", 0.0)], 0.02),
    ])
    def test_exchanging_counts_where_nothing_hides_it(
            self, tmp_path: Path, counters: list[dict[str, Any]], exchange_s: float) -> None:
        operators = [operator("backward", "GEMM", 0.0, device_s=0.04, flop=1e10),
                     operator("backward", "communication", 0.0, device_s=0.03)]
        assert limits(self.judged(tmp_path, operators, counters=counters)) == pytest.approx({
            key: time_s for key, time_s in {"data": 0.01, "communication": exchange_s, "compute": 0.04, "other": 0.03,
                                            "host": 0.02 - exchange_s}.items() if time_s})  # fmt: skip


KINDS = ["GEMM", "elementwise", "view", "communication", "other"]
SECONDS = st.floats(0, 1, allow_subnormal=False)
AMOUNTS = st.none() | st.floats(0, 1e12)


@st.composite
def operators(draw: st.DrawFn) -> list[dict[str, Any]]:
    on_device = draw(st.booleans())
    drawn = draw(st.lists(st.tuples(
        st.sampled_from(PHASES), st.sampled_from(KINDS), SECONDS, AMOUNTS, AMOUNTS, st.floats(0, 1e5),
        st.sampled_from([None, "a", "b"]), SECONDS), max_size=8))
    return [operator(phase, kind, time_s, flop=flop, num_bytes=num_bytes, num_calls=num_calls, layer=layer,
                     device_s=device_s if on_device else None)
            for phase, kind, time_s, flop, num_bytes, num_calls, layer, device_s in drawn]


@given(phases=st.dictionaries(st.sampled_from(PHASES), SECONDS, min_size=1),
       profiled=st.dictionaries(st.sampled_from(PHASES), SECONDS), rows=operators(), has_ceilings=st.booleans())
def test_the_limits_sum_to_the_median_iteration(
        phases: dict[str, float], profiled: dict[str, float], rows: list[dict[str, Any]], has_ceilings: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = judged(Path(directory), phases, rows, profiled=profiled, ceilings=CEILINGS if has_ceilings else [])
        found = time_limits(run)
    assert found["time_s"].sum() == pytest.approx(sum(phases.values()), rel=1e-9)
    assert (found["time_s"] > 0).all()
    assert set(found["limit"]) <= set(LIMITS)
    if len(found):
        assert found["share_frac"].sum() == pytest.approx(1)
