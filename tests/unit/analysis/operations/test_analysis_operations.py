"""Basic operations: times, rates and shares worked out by hand, totals of suites, and where sparse products pay."""

import math
from pathlib import Path

import pytest
from support import operation_records as made
from support.judged import CEILINGS, ceiling
from support.operation_records import Operations
from support.records import run_of

from charact.analysis.operations.sparsity import sparse_crossover, sparse_speeds
from charact.analysis.operations.timings import operation_cases, operation_shares, operation_times, suite_totals
from charact.analysis.profile.case_summary import case_summary


def test_a_suite_takes_as_long_and_counts_as_much_as_its_problems(tmp_path: Path) -> None:
    (total,) = suite_totals(made.vo(tmp_path)).to_dict("records")
    assert total["flop"] == made.VO_FLOP == 244_379_762_688
    assert total["total_s"] == pytest.approx(made.VO_FLOP / 1e11)
    assert total["flop_per_s"] == pytest.approx(1e11)
    assert (total["suite"], total["set"], total["num_problems"], total["num_failed"]) == ("vo", "DMM", 5, 0)
    assert math.isnan(total["published_flop"])


def test_time_rates_and_share_of_the_nearer_ceiling(tmp_path: Path) -> None:
    # 1 TFLOP/s and 100 GB/s: 1 GFLOP needs 1 ms and 50 MB need 0.5 ms; the operation took 4 ms.
    run = Operations(tmp_path).add("gemm:1x2x3", {"forward": 0.004}, flop=1e9, bytes=5e7).run()
    (row,) = operation_times(run).to_dict("records")
    assert (row["median_s"], row["low_s"], row["high_s"]) == pytest.approx((0.004, 0.98 * 0.004, 1.02 * 0.004))
    assert (row["flop_per_s"], row["bytes_per_s"], row["flop_per_byte"]) == pytest.approx((2.5e11, 1.25e10, 20))
    assert row["share_frac"] == pytest.approx(0.25)
    assert (row["limit"], row["ended_by"], row["num_repetitions"]) == ("compute", "precision", 7)
    run = Operations(tmp_path).add("copy:1", {"forward": 0.001}, flop=None, bytes=2e8).run()
    (row,) = operation_times(run).to_dict("records")
    assert row["share_frac"] == pytest.approx(2.0)  # from a cache: it stays as it is
    assert row["limit"] == "bandwidth"
    assert math.isnan(row["flop_per_s"])


def test_transfers_are_held_against_the_link_and_exchanges_against_nothing(tmp_path: Path) -> None:
    link = ceiling("host_to_device", 1e10, device="cuda:0")
    memory = ceiling("copy", 1e12, device="cuda:0", level="memory", working_set_bytes=10**9)
    record = Operations(tmp_path, ceilings=[link, memory, ceiling("gemm", 1e13, "fp32", device="cuda:0")])
    place = {"device": "cuda:0"}
    record.add("copy:9:host_to_device", {"forward": 0.02}, flop=None, bytes=1e8, entry_of=place, on_device=True)
    record.add("all_reduce:9x2", {"forward": 0.02}, flop=None, bytes=1e8, entry_of=place)
    rows = operation_times(record.run()).set_index("operation")
    assert rows.loc["copy", "share_frac"] == pytest.approx(0.5)
    assert rows.loc["copy", "median_s"] == pytest.approx(0.02)  # the host's clock reads a tenth of it
    assert math.isnan(rows.loc["all_reduce", "share_frac"])
    assert "communication" in rows.loc["all_reduce", "share_reason"]


@pytest.mark.parametrize(("ceilings", "reason"), [
    ([], "charact doctor --ceilings"), (CEILINGS[1:], "no ceiling of products in fp32"),
])  # fmt: skip
def test_without_a_ceiling_the_reason_stands_there(tmp_path: Path, ceilings: list[dict], reason: str) -> None:
    run = Operations(tmp_path, ceilings=ceilings).add("gemm:1x2x3", {"forward": 0.004}).run()
    (row,) = operation_times(run).to_dict("records")
    assert math.isnan(row["share_frac"])
    assert reason in row["share_reason"]


def test_few_repetitions_have_no_interval(tmp_path: Path) -> None:
    run = run_of(tmp_path, (made.entry("gemm:1x1x1"), {
        "problems": [made.problem_row("gemm:1x1x1")], "repetitions": made.repetition_rows(1.0, times=(0.9, 1.0, 1.1))}))
    (row,) = operation_times(run).to_dict("records")
    assert row["median_s"] == 1.0
    assert math.isnan(row["low_s"])


def test_published_counts(tmp_path: Path) -> None:
    work = {"forward": {"published_flop": 3e9, "convention": "without the input"}}
    record = Operations(tmp_path).add("rnn:lstm:8x1x1", {"forward": 1.0, "backward_input": 2.0}, work=work, suite="s")
    (case,) = operation_cases(record.run()).to_dict("records")
    assert (case["time_s"], case["flop"], case["published_flop"]) == pytest.approx((3.0, 2e9, 4e9))
    assert (case["num_directions"], case["convention"]) == (2, "without the input")
    run = Operations(tmp_path).add("gemm:1x1x1", {"forward": 1.0}, suite="s", convention="K is the inner size").run()
    assert operation_cases(run)["published_flop"].isna().all()
    assert suite_totals(run)["published_flop"].isna().all()


def test_failed_problems_and_those_of_no_suite(tmp_path: Path) -> None:
    totals = suite_totals(made.suite(tmp_path, 4)).set_index("operation")
    assert totals.loc["gemm", ["num_problems", "num_failed"]].tolist() == [3, 1]
    assert totals.loc["gemm", "flop"] == 1e8 + round(1e8 * 1.06**2)
    assert totals.loc["convolution", "num_failed"] == 0
    assert totals.loc["convolution", "published_flop"] == pytest.approx(4 / 3 * totals.loc["convolution", "flop"])
    row = made.problem_row("gemm:1x1x1", suite="s")
    run = Operations(tmp_path).fail("gemm:1x1x1", "error", "it broke", [row], suite="s").run()
    (total,) = suite_totals(run).to_dict("records")
    assert math.isnan(total["total_s"])
    assert (total["num_problems"], total["num_failed"]) == (1, 1)
    (times,) = operation_times(run).to_dict("records")
    assert times["time_reason"] == times["share_reason"] == "error"
    run = Operations(tmp_path).add("gemm:1x1x1", {"forward": 1.0}).run()
    assert suite_totals(run).empty
    assert case_summary(run)["kind"].tolist() == ["operation"]


def test_shares_by_operation_are_the_median_and_the_best(tmp_path: Path) -> None:
    record = Operations(tmp_path)
    for number, time_s in enumerate([0.002, 0.004, 0.010]):  # 1 GFLOP needs 1 ms
        record.add(f"gemm:{number + 1}x1x1", {"forward": time_s})
    (row,) = operation_shares(record.run()).to_dict("records")
    assert (row["median_share_frac"], row["best_share_frac"]) == pytest.approx((0.25, 0.5))
    assert (row["num_problems"], row["flop_per_s"]) == (3, pytest.approx(5e11))


def test_sparse_products_and_the_dense_one_of_their_size(tmp_path: Path) -> None:
    speeds = sparse_speeds(made.sparse(tmp_path, {0.5: 2.0, 0.01: 0.1}))
    assert speeds["density_frac"].tolist() == pytest.approx([0.01, 0.5])
    assert speeds["ratio"].tolist() == pytest.approx([0.1, 2.0])
    assert speeds["dense_s"].tolist() == [0.01, 0.01]  # not the transposed one, which takes a second
    assert set(speeds["size"]) == {"512x64x512"}
    record = Operations(tmp_path).add("sparse_gemm:8x8x8:s0.9:csr", {"forward": 0.5}, sparsity_frac=0.9, layout="csr")
    record.add("gemm:8x8x8", {"forward": 1.0}).add("sparse_gemm:8x8x8:s0.9:dense", {"forward": 1.2}, layout="dense")
    (found,) = sparse_speeds(record.run()).to_dict("records")
    assert found["ratio"] == pytest.approx(0.5 / 1.1)
    assert (found["low"], found["high"]) == pytest.approx((0.5 * 0.98 / (1.2 * 1.02), 0.5 * 1.02 / (1.0 * 0.98)))


@pytest.mark.parametrize(("ratios", "density", "between"), [
    ({0.01: 0.1, 0.1: 1.0, 0.5: 5.0}, 0.1, (0.01, 0.5)),  # at 10 % noise hides which is faster
    ({0.01: 0.5, 0.04: 2.0}, 0.02, (0.01, 0.04)),  # halfway of both logarithms
    ({0.01: 0.5, 0.02: 0.98, 0.04: 1.02, 0.08: 2.0}, 0.02838, (0.01, 0.08)),
    ({0.01: 0.5, 0.1: 2.0, 0.2: 0.5, 0.4: 2.0}, 10**-1.5, (0.01, 0.1)),
    ({0.005: 2.0, 0.01: 0.5, 0.04: 2.0}, 0.02, (0.01, 0.04)),
])  # fmt: skip
def test_the_density_at_which_both_take_as_long(tmp_path: Path, ratios: dict[float, float], density: float,
                                                between: tuple[float, float]) -> None:
    (found,) = sparse_crossover(made.sparse(tmp_path, ratios)).to_dict("records")
    assert found["crossover_density_frac"] == pytest.approx(density, rel=1e-3)
    assert (found["from_density_frac"], found["to_density_frac"]) == pytest.approx(between)
    assert found["reason"] is None
    assert found["num_densities"] == len(ratios)
    assert found["low_density_frac"] == pytest.approx(min(ratios))


@pytest.mark.parametrize(("ratios", "reason"), [
    ({0.01: 0.1, 0.1: 0.5}, "between 1.0 % and 10.0 %: sparse is faster at all 2 densities"),
    ({0.01: 1.5, 0.1: 5.0}, "between 1.0 % and 10.0 %: dense is faster at all 2 densities"),
    ({0.01: 1.5, 0.1: 0.5}, "between 1.0 % and 10.0 %: sparse is faster at 1 of 2 densities, "
                            "dense is faster at 1 of 2 densities"),
    ({0.01: 0.98, 0.1: 1.02}, "between 1.0 % and 10.0 %: noise hides which is faster at all 2 densities"),
    ({0.01: 0.98, 0.1: 1.5}, "between 1.0 % and 10.0 %: dense is faster at 1 of 2 densities, "
                             "noise hides which is faster at 1 of 2 densities"),
    ({0.05: 0.5}, ": at 5.0 %, the only density measured, sparse is faster"),
    ({0.05: 1.0}, ": at 5.0 %, the only density measured, noise hides which is faster"),
])  # fmt: skip
def test_where_none_is_certain_there_is_no_crossover(tmp_path: Path, ratios: dict[float, float], reason: str) -> None:
    (found,) = sparse_crossover(made.sparse(tmp_path, ratios)).to_dict("records")
    assert found["reason"].removeprefix("no crossover found").strip() == reason
    assert math.isnan(found["crossover_density_frac"])
    assert math.isnan(found["from_density_frac"])


def test_what_makes_no_crossover_certain(tmp_path: Path) -> None:
    cases = []
    for name, layout, sparsity, time_s in [("s0.99:csr", "csr", 0.99, 0.1), ("s0.5:csr", "csr", 0.5, 9.0),
                                           ("s0.5:dense", "dense", 0.5, 1.0)]:
        problem = f"sparse_gemm:8x8x8:{name}"
        rows = [made.problem_row(problem, layout=layout, sparsity_frac=sparsity)]
        repetitions = made.repetition_rows(time_s, times=(1.0, 1.0, 1.0))
        cases.append((made.entry(problem), {"problems": rows, "repetitions": repetitions}))
    (found,) = sparse_crossover(run_of(tmp_path, *cases)).to_dict("records")
    assert found["reason"].endswith("too few repetitions hide which is faster at all 2 densities")
    (found,) = sparse_crossover(made.sparse(tmp_path, {0.1: 1.0, 0.2: 2.0}, dense_s=None)).to_dict("records")
    assert found["reason"] == "no dense product of this size was measured"
