"""Verdicts on workloads that were built to have each bottleneck, with the ceilings of this machine; a GEMM's rate."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from support.bound import Bound, LargeElementwise, ManyTinyOperators, Product, decode
from support.notes import Notes
from support.programs import only_record
from support.small import TwoLayers, small_case
from torch import nn

from charact import load_run
from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.efficiency.roofline import roofline
from charact.analysis.efficiency.time_bounds import time_limits
from charact.analysis.profile import core_use
from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.profile.case_summary import case_summary
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.machine.facts import machine_facts
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run
from charact.record.writer import RunWriter
from charact.workload.base import Workload

pytestmark = pytest.mark.clock

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
RULE = StopRule(max_iterations=10, max_seconds=2.0)


def profiled(out: Path, case: Case, ceilings: list[dict[str, Any]]) -> Run:
    writer = RunWriter(out, "bound", {
        "command_line": [], "machine": machine_facts(), "software": {}, "ceilings": ceilings, "ceilings_reason": None,
        "options": {"workers": case.num_workers, "compiled": False, "channels_last": False},
    })  # fmt: skip
    with Interrupt() as interrupt:
        run_cases([case], RULE, writer, Notes(), interrupt)
    writer.close("complete")
    return load_run(writer.publish())


@pytest.mark.slow_variants
@pytest.mark.parametrize(("verdict", "mode", "workload"), [
    pytest.param("data-bound", "train", Bound(per_sample=partial(time.sleep, 0.002)), id="a loader that sleeps"),
    pytest.param("data-bound", "infer", Bound(per_sample=decode), id="a loader that computes",
                 marks=pytest.mark.slow),
    pytest.param("host-bound", "infer", Bound(network=ManyTinyOperators), id="many tiny operators"),
    pytest.param("host-bound", "train", Bound(network=ManyTinyOperators), id="many tiny operators, training",
                 marks=pytest.mark.slow),
    pytest.param("compute-bound", "infer", Bound(
        default_batch_size=1024, default_input_size=1024, network=partial(nn.Linear, out_features=2048)
    ), id="a large product"),
    pytest.param("memory-bandwidth-bound", "infer", Bound(network=LargeElementwise), id="large pointwise operators",
                 marks=pytest.mark.slow),
    pytest.param("memory-bandwidth-bound", "train", Bound(
        default_batch_size=1, default_input_size=4096, network=partial(nn.Linear, out_features=4096)
    ), id="an update of many weights"),
])  # fmt: skip
def test_a_workload_has_the_bottleneck_that_it_was_built_for(
        verdict: str, mode: str, workload: Workload, tmp_path: Path, measured_ceilings: list[dict[str, Any]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_use, "UNRELIABLE_FRAC", 2.0)  # other tests may take the cores
    case = small_case(mode, batch_size=workload.default_batch_size, workload=workload)
    run = profiled(tmp_path, case, measured_ceilings)
    found = bottlenecks(run).iloc[0]
    limits = time_limits(run)
    shares = limits.set_index("limit")["share_frac"].to_dict()
    assert found["verdict"] == verdict, (shares, found["reason"])
    assert found["share_frac"] == pytest.approx(max(shares.values()))
    if verdict in ("compute-bound", "memory-bandwidth-bound"):  # 0 at a ceiling, measured when the machine was slower
        assert 0 <= found["prize_frac"] < found["share_frac"]
    else:
        assert found["prize_frac"] == pytest.approx(found["share_frac"])
    assert limits["time_s"].sum() == pytest.approx(case_summary(run)["median_s"][0])


def test_a_case_without_enough_memory_is_bound_by_it(tmp_path: Path, measured_ceilings: list[dict[str, Any]]) -> None:
    found = bottlenecks(profiled(tmp_path, small_case(workload=TwoLayers(fail_in="memory")), measured_ceilings)).iloc[0]
    assert found["verdict"] == "memory-capacity-bound"
    assert "out of memory" in found["evidence"]


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs recorded traces in ../shared/traces")
@pytest.mark.parametrize(("name", "verdict", "limit"), [
    ("mi300_resnet_ddp_train", "communication-bound", "communication"), ("h100_vit_infer", "host-bound", "host")])
def test_traces_of_devices_that_wait(
        name: str, verdict: str, limit: str, here: Callable[..., Any], tmp_path: Path) -> None:
    here("import", str(TRACES / f"{name}.json.gz"), "--quiet", cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    found = bottlenecks(run).iloc[0]
    assert found["verdict"] == verdict
    assert found["share_frac"] > 0.6
    told = time_limits(run).set_index("limit")["time_s"]
    if limit == "communication":
        exposed_s = phase_breakdown(run).set_index("phase").loc["communication", "time_s"]
        assert told[limit] == pytest.approx(exposed_s)
    else:  # what the device waited: the iteration without data, other and its kernels
        kernels_s = run.kernels.query("phase == 'forward'")["device_s"].sum()
        forward_s = phase_breakdown(run).set_index("phase").loc["forward", "time_s"]
        assert told[limit] == pytest.approx(forward_s - kernels_s, rel=0.01)


def test_the_roofline_of_a_product_is_its_rate(tmp_path: Path, measured_ceilings: list[dict[str, Any]]) -> None:
    num_rows, num_inner, num_columns = 1024, 1024, 2048
    made: list[Product] = []

    def network(num_features: int) -> Product:
        made.append(Product(num_features, num_columns))
        return made[-1]

    workload = Bound(default_batch_size=num_rows, default_input_size=num_inner, network=network)
    run = profiled(tmp_path, small_case("infer", batch_size=num_rows, workload=workload), measured_ceilings)
    timing, operators = run.entries[0].passes.timing, run.entries[0].passes.operators
    # The same products by a clock of their own: those that were timed, one to warm up, those under the profiler. The
    # operator pass counts the iterations that were quicker as a whole. If other programs took the core outside of the
    # product, these are not those with the quicker products: the mean of as many products lies between two bounds.
    first, num_timed = timing.num_warmup_iterations, timing.num_iterations
    timed_s = made[0].host_s[first : first + num_timed]
    profiled_s = made[0].host_s[first + num_timed + 1 :][: operators.num_iterations]
    ordered_s, num_counted = sorted(profiled_s), operators.num_counted_iterations
    quickest_s, slowest_s = mean(ordered_s[:num_counted]), mean(ordered_s[-num_counted:])

    by_phase = roofline(run, "phase").set_index("phase").loc["forward"]
    by_type = roofline(run, "operator_type").set_index("operator_type").loc["GEMM"]
    product_flop = 2.0 * num_rows * num_inner * num_columns
    assert by_phase["flop"] == by_type["flop"] == product_flop
    assert by_phase["flop_per_s"] == pytest.approx(product_flop / median(timed_s), rel=0.05)
    assert 0.95 * product_flop / slowest_s <= by_type["flop_per_s"] <= 1.05 * product_flop / quickest_s
    peak = next(row["value"] for row in measured_ceilings if (row["ceiling"], row["precision"]) == ("gemm", "fp32"))
    highest = max(peak, by_type["flop_per_s"])  # a workload that is faster than the measured ceiling raises it
    for row in (by_phase, by_type):
        assert (row["limit"], row["attainable_flop_per_s"]) == ("compute", pytest.approx(highest))
        assert row["share_frac"] == pytest.approx(row["flop_per_s"] / highest)
