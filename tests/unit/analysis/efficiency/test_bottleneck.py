"""Every verdict at both sides of its threshold, its prize and its advice, and the reasons where there is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import records
from support.judged import busy, ceiling, ceilings_of, judged, operator

from charact.analysis.efficiency.bottleneck import BOUND_FRAC, MEMORY_FRAC, bottlenecks
from charact.analysis.profile.core_use import UNRELIABLE_FRAC
from charact.record.reader import Run, load_run

GPU = {"machine": {"gpus": [{"index": 0, "memory_bytes": 80e9}, {"index": 1, "memory_bytes": 40e9}]}}
SCRIPT = {"manifest": {"options": {"script": "a.py"}}}
COMPILED = {"manifest": {"options": {"compiled": True}}}


def judge(run: Run) -> dict[str, Any]:
    rows = bottlenecks(run)
    assert len(rows) == 1
    return dict(rows.iloc[0])


def shared(tmp_path: Path, *, data: float = 0.0, host: float = 0.0, compute: float = 0.0, bandwidth: float = 0.0,
           communication: float = 0.0, **changes: Any) -> Run:
    """An iteration of 100 ms with these shares, and for the rest operators of unknown work.

    Products run at half their ceiling, bytes at a quarter of theirs.
    """
    rest = 1 - data - host - compute - bandwidth - communication
    operators = [
        operator("forward", "convolution", 0.1 * compute, flop=5e10 * compute, num_bytes=1.0, num_calls=0),
        operator("forward", "elementwise", 0.1 * bandwidth, num_bytes=2.5e9 * bandwidth, num_calls=0),
        operator("forward", "other", 0.1 * rest, num_calls=0),
    ]  # fmt: skip
    phases = {"data": 0.1 * data, "communication": 0.1 * communication, "forward": 0.1 * (1 - data - communication)}
    return judged(tmp_path, phases, operators, **changes)


@pytest.mark.parametrize(("limit", "verdict"), [
    ("data", "data-bound"), ("communication", "communication-bound"), ("host", "host-bound"),
    ("compute", "compute-bound"), ("bandwidth", "memory-bandwidth-bound"),
])  # fmt: skip
def test_a_verdict_is_given_from_its_threshold_on(tmp_path: Path, limit: str, verdict: str) -> None:
    others = [other for other in ("compute", "bandwidth", "host") if other != limit][:2]
    fill = dict.fromkeys(others, BOUND_FRAC - 0.02)
    above = judge(shared(tmp_path, **fill, **{limit: BOUND_FRAC + 0.001}))
    assert (above["verdict"], above["threshold_frac"], above["reason"]) == (verdict, BOUND_FRAC, None)
    assert above["share_frac"] == pytest.approx(BOUND_FRAC + 0.001)
    below = judge(shared(tmp_path, **fill, **{limit: BOUND_FRAC - 0.001}))
    assert below["verdict"] is None
    assert below["reason"].startswith("no limit takes 30.0 % of the median iteration of ")
    assert np.isnan([below[name] for name in ("share_frac", "threshold_frac", "prize_s", "prize_frac")]).all()


@pytest.mark.parametrize(("shares", "verdict"), [
    ({"compute": 0.45}, None), ({"compute": 0.55}, "compute-bound"),
    ({"bandwidth": 0.4, "host": 0.25}, "memory-bandwidth-bound"), ({"data": 0.4}, "data-bound"),
    ({"host": 0.31}, "host-bound"),
])
def test_work_is_the_largest_limit_only_if_no_more_time_has_an_unknown_limit(
        tmp_path: Path, shares: dict[str, float], verdict: str | None) -> None:
    row = judge(shared(tmp_path, **shares))
    assert row["verdict"] == verdict
    assert (row["reason"] or "").startswith("" if verdict else "the limit of 55.0 % of the iteration is unknown: ")


@pytest.mark.parametrize(("shares", "verdict", "prize_frac"), [
    ({"data": 0.31, "host": 0.35, "compute": 0.34}, "host-bound", 0.35),  # the largest of three
    ({"data": 0.35, "communication": 0.31, "compute": 0.34}, "data-bound", 0.35),
    ({"data": 0.31, "compute": 0.69}, "compute-bound", 0.345), ({"data": 0.7, "compute": 0.3}, "data-bound", 0.7),
    ({"communication": 0.4, "compute": 0.3}, "communication-bound", 0.4),
    ({"host": 0.43, "bandwidth": 0.52}, "memory-bandwidth-bound", 0.39),
    ({"host": 0.43, "bandwidth": 0.42}, "host-bound", 0.43), ({"compute": 0.8}, "compute-bound", 0.4),
    ({"bandwidth": 0.8}, "memory-bandwidth-bound", 0.6),
])
def test_the_prize_is_the_most_that_could_be_saved(tmp_path: Path, shares: dict[str, float], verdict: str,
                                                   prize_frac: float) -> None:
    row = judge(shared(tmp_path, **shares))
    assert row["verdict"] == verdict
    assert row["prize_frac"] == pytest.approx(prize_frac)
    assert row["prize_s"] == pytest.approx(0.1 * prize_frac)
    assert f"could save at most {100 * prize_frac:.1f} % of the iteration" in row["prize"]


def test_evidence_has_numbers_and_the_threshold(tmp_path: Path) -> None:
    assert judge(shared(tmp_path, data=0.6, compute=0.4))["evidence"] == (
        "of the median iteration of 100 ms: data 60.0 %, compute 40.0 %; data, the largest known limit, counts as a "
        "bottleneck if it takes 30.0 % of the iteration or more; it is the time in which the loop waited for batches, "
        "with 0 loader processes")
    assert judge(shared(tmp_path, compute=0.8, bandwidth=0.2))["evidence"] == (
        "of the median iteration of 100 ms: compute 80.0 %, bandwidth 20.0 %; compute, the largest known limit, "
        "counts as a bottleneck if it takes 30.0 % of the iteration or more; it runs at 50.0 % of the fp32 ceiling of "
        "1.00 TFLOP/s, by type most in convolution, by phase in forward")
    for cores_frac, is_disturbed in ((0.6, True), (0.95, False)):
        rows = [row | {"cores_frac": cores_frac if row["ceiling"] == "gemm" else None} for row in ceilings_of("cpu")]
        evidence = judge(shared(tmp_path, compute=0.8, ceilings=rows))["evidence"]
        assert ("1.00 TFLOP/s (too low, measured under other load), by" in evidence) == is_disturbed
    waiting = judged(tmp_path, {"forward": 0.1}, [operator("forward", "GEMM", 0.1, device_s=0.04, flop=1e10)],
                     on_device=True, entry={"device": "cuda:0"}, ceilings=ceilings_of("cuda:0"))
    assert judge(waiting)["evidence"].endswith("for 60.0 ms the device had no kernel to run")


@pytest.mark.parametrize(("shares", "verdict", "advice"), [
    ({"bandwidth": 0.6, "data": 0.4}, "memory-bandwidth-bound", "data: make samples cheaper to load; or load "),
    ({"bandwidth": 0.45, "host": 0.43}, "memory-bandwidth-bound", "host: give each operator more to do: "),
    ({"compute": 0.52, "communication": 0.3}, "compute-bound", "communication: communicate less often: "),
])
def test_a_wait_that_is_not_the_largest_limit_has_advice_too(tmp_path: Path, shares: dict[str, float],
                                                             verdict: str, advice: str) -> None:
    row = judge(shared(tmp_path, **shares))
    assert row["verdict"] == verdict
    assert f"; for {advice}" in row["advice"]
    less = {limit: min(part, BOUND_FRAC - 0.01) if f"{limit}: " in advice else part for limit, part in shares.items()}
    assert "; for " not in judge(shared(tmp_path, **less))["advice"]


@pytest.mark.parametrize(("operators", "forward_s", "prize_s", "evidence"), [
    ([operator("forward", "GEMM", 0.06, flop=12e10, num_calls=0),
      operator("forward", "GEMM", 0.04, flop=1e10, num_calls=0, layer="slow")], 0.1, 0.04 - 1e10 / 2e12,
     "at 65.0 % of the fp32 ceiling of 2.00 TFLOP/s, by type "),  # the faster layer is the ceiling
    ([operator("forward", "GEMM", 0.1, flop=1e11, num_calls=0)], 0.08, None,  # faster without the profiler
     "at 125.0 % of the fp32 ceiling of 1.00 TFLOP/s (above 100 %: the ceiling is too"),
    ([operator("forward", "GEMM", 0.1, flop=2.4e10, num_calls=0)], 0.1, 0.076, "far below the ceiling"),
])
def test_work_above_and_far_below_its_ceiling(tmp_path: Path, operators: list[dict[str, Any]], forward_s: float,
                                              prize_s: float | None, evidence: str) -> None:
    row = judge(judged(tmp_path, {"forward": forward_s}, operators))
    assert row["verdict"] == "compute-bound"
    assert evidence in row["evidence"]
    assert row["limit_evidence"] in row["evidence"]
    assert ("; that ceiling was reached by GEMM" in row["evidence"]) == (evidence.startswith("at 65.0 %"))
    assert ("far below" in row["evidence"]) == (evidence == "far below the ceiling")
    assert row["prize_s"] == pytest.approx(float("nan") if prize_s is None else prize_s, nan_ok=True)
    assert (row["prize"] is None) == (prize_s is None)


class TestMemory:
    def of_cpu(self, tmp_path: Path, held_frac: float, **shares: float) -> dict[str, Any]:
        memory = {"memory": {"status": "ok", "reason": None, "process_peak_bytes": held_frac * 1e10}}
        return judge(shared(tmp_path, entry={"passes": memory},
                            manifest={"machine": {"memory_bytes": 1e11, "memory_limit_bytes": 1e10}}, **shares))

    @pytest.mark.parametrize(("shares", "else_verdict"), [
        ({"host": 0.4, "compute": 0.38}, "host-bound"), ({"compute": 0.28, "bandwidth": 0.28, "data": 0.2}, None),
        ({"host": 0.4}, "host-bound"),
    ])
    def test_full_memory_bounds_where_a_larger_batch_would_help(self, tmp_path: Path, shares: dict[str, float],
                                                                else_verdict: str) -> None:
        full = self.of_cpu(tmp_path, MEMORY_FRAC + 0.01, **shares)
        assert (full["verdict"], full["threshold_frac"]) == ("memory-capacity-bound", MEMORY_FRAC)
        assert full["evidence"].startswith("the peak of 8.48 GiB is 91.0 % of the memory’s 9.31 GiB; from 90.0 % on")
        assert full["prize"] is None
        assert self.of_cpu(tmp_path, MEMORY_FRAC - 0.01, **shares)["verdict"] == else_verdict

    @pytest.mark.parametrize("limit", ["data", "communication", "compute", "bandwidth"])
    def test_full_memory_hides_no_other_limit(self, tmp_path: Path, limit: str) -> None:
        assert str(self.of_cpu(tmp_path, 0.99, **{limit: 0.9})["verdict"]).endswith(f"{limit}-bound")

    @pytest.mark.parametrize(("held_bytes", "verdict"), [(39e9, "memory-capacity-bound"), (30e9, "host-bound")])
    def test_a_device_has_its_own_memory(self, tmp_path: Path, held_bytes: float, verdict: str) -> None:
        memory = {"memory": {"status": "ok", "reason": None, "reserved_peak_bytes": held_bytes,
                             "process_peak_bytes": 25e9}}
        run = judged(tmp_path, {"forward": 0.1}, [operator("forward", "GEMM", 0.1, device_s=0.01)], on_device=True,
                     entry={"device": "cuda:1", "passes": memory}, manifest=GPU)
        assert judge(run)["verdict"] == verdict

    @pytest.mark.parametrize(("entry", "advice"), [
        ({"out_of_memory": {"limit_bytes": 2e9, "fits": {"batch_size": 3}}},
         "use --batch-sizes 3 and --accumulate 3, which makes the same update"),
        ({}, "use --batch-sizes 4 and --accumulate 2"),
        ({"mode": "infer"}, "use --batch-sizes 4; or a lower precision"),
        ({"batch_size": 1}, "recompute activations (torch.utils.checkpoint), or a smaller input"),
        ({"batch_size": None}, "recompute activations (torch.utils.checkpoint), or a smaller batch"),
    ])
    def test_a_case_that_ran_out_of_memory(self, tmp_path: Path, entry: dict[str, Any], advice: str) -> None:
        row = judge(judged(tmp_path, {}, entry={"status": "oom", "reason": "asked for 64.0 GB"} | entry))
        of = " of 1.86 GiB" if "out_of_memory" in entry else ""
        assert (row["verdict"], row["evidence"]) == (
            "memory-capacity-bound", f"the case did not fit into the memory{of}: asked for 64.0 GB")
        assert row["advice"].startswith(advice)


FAILED = {"operators": {"status": "failed", "reason": "RuntimeError: busy"}}
UNKNOWN = "the limit of 80.0 % of the iteration is unknown: "


@pytest.mark.parametrize(("phases", "changes", "reason"), [
    (None, {"ceilings": []}, "no ceilings were measured before this run: run charact doctor --ceilings"),
    (None, {"entry": {"passes": {"flop": {"status": "failed", "reason": "RuntimeError: no"}}}}, "RuntimeError: no"),
    (None, {}, "neither FLOP nor bytes of these operators are available"),
    (None, {"manifest": {"options": {"traces": ["a"]}}}, "a trace has no FLOP"),
    ({"forward": 0.08}, {"entry": {"passes": FAILED}},
     "operators: RuntimeError: busy (charact profile measures them)"),
    ({"forward": 0.08}, {"entry": {"passes": FAILED}} | SCRIPT,
     "operators: RuntimeError: busy (charact run --passes operators measures them)"),
    ({"forward": 0.08}, {"entry": {"passes": FAILED}, "manifest": {"options": {"traces": ["a"]}}},
     "operators: RuntimeError: busy"),
    ({"other": 0.08}, {}, "most of it is in no phase"),
    ({"other": 0.08}, SCRIPT, "most of it is in no phase: charact run --sample shows where"),
    ({"other": 0.041, "forward": 0.039}, {}, "most of it is in no phase"),
])
def test_much_time_with_an_unknown_limit(tmp_path: Path, phases: dict[str, float] | None, changes: dict[str, Any],
                                         reason: str) -> None:
    run = shared(tmp_path, data=0.2, **changes) if phases is None else judged(
        tmp_path, {"data": 0.02} | phases, **changes)
    row = judge(run)
    assert row["verdict"] is None
    assert row["reason"].startswith(UNKNOWN + reason) if phases is None else row["reason"] == UNKNOWN + reason


@pytest.mark.parametrize(("entry", "reason"), [
    ({"status": "error", "reason": "ValueError: broken"}, "ValueError: broken"),
    ({"passes": {"timing": {"status": "failed", "reason": "killed"}}}, "killed"), ({}, "no iteration was recorded"),
])
def test_without_times_there_is_a_reason(tmp_path: Path, entry: dict[str, Any], reason: str) -> None:
    assert judge(judged(tmp_path, {}, entry=entry))["reason"] == reason


def test_every_case_has_a_row_and_a_known_limit_a_verdict(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path, oom=True))
    assert bottlenecks(run)["case"].tolist() == [entry["case"] for entry in run.manifest["cases"]]
    reasons = bottlenecks(load_run(records.write_training(tmp_path)))["reason"].tolist()
    assert reasons[0] == "its iterations were not timed by phase: run charact profile"
    assert reasons[-1] == "the loss was nan in iteration 17 of epoch 3"
    run = judged(tmp_path, {"data": 0.04, "forward": 0.06}, entry={"passes": FAILED}, ceilings=[])
    assert judge(run)["verdict"] == "data-bound"


@pytest.mark.parametrize(("shares", "changes", "advice"), [
    ({"data": 0.4}, {}, "load batches in parallel processes: --workers 1"),
    ({"data": 0.7}, {}, "load batches in parallel processes: --workers 2"),  # 3 would help: there are 2 cores
    ({"data": 0.6}, {"manifest": {"options": {"workers": 1}}}, "load batches in parallel processes: --workers 2"),
    ({"data": 0.6}, {"manifest": {"options": {"workers": 2}}}, "make samples cheaper to load"),
    ({"data": 0.6}, SCRIPT, "load batches in parallel processes: num_workers of the DataLoader"),
    ({"data": 0.6}, {"manifest": {"options": {"traces": ["a"]}}},
     "load batches in parallel processes: num_workers of the DataLoader"),
    ({"data": 0.7}, busy(0.0, 0.0), "which take cores from the operators; check each change with charact compare --ab"),
    ({"host": 0.9}, {}, "give each operator more to do: --batch-sizes 16, or fewer operators: --compile"),
    ({"host": 0.9}, COMPILED, "give each operator more to do: --batch-sizes 16"),
    ({"host": 0.9}, {"manifest": {"options": {"script": "a"}}},
     "give each operator more to do: a larger batch, or fewer operators: torch.compile"),
    ({"host": 0.9}, {"entry": {"device": "cuda:0"}},
     "give each operator more to do: --batch-sizes 16, or fewer operators: --compile, or CUDA graphs (torch.compile "
     "with mode='reduce-overhead')"),
    ({"host": 0.9}, {"entry": {"device": "cuda:0"}} | COMPILED,
     "give each operator more to do: --batch-sizes 16, or CUDA graphs"),
    ({"communication": 0.5}, {}, "communicate less often"),
    ({"compute": 0.29, "bandwidth": 0.28, "data": 0.28}, {},
     "compute takes 29.0 %, mostly convolution in forward, at 50.0 % of its ceiling; layer net takes 100.0 % of the "
     "operators’ time; to begin with, store images as NHWC"),
])
def test_advice(tmp_path: Path, shares: dict[str, float], changes: dict[str, Any], advice: str) -> None:
    fill = {} if len(shares) > 1 or "data" not in shares else {"compute": min(1 - shares["data"], 0.38)}
    row = judge(shared(tmp_path, **shares, **fill, **changes))
    assert row["advice"] == advice if "host" in shares else advice in row["advice"]


@pytest.mark.parametrize(("phase", "kind", "work", "changes", "advice"), [
    ("forward", "GEMM", 0.71, {}, "use --precision bf16: its ceiling is 2 times that of fp32"),
    ("forward", "GEMM", 0.71, {"entry": {"precision": "bf16"}}, "make matrix products larger"),
    ("forward", "GEMM", 0.71, {"ceilings": [ceiling("gemm", 1e12, "fp32")]},
     "products run near the ceiling: leave out work"),
    ("forward", "GEMM", 0.69, {},
     "make matrix products larger, which get closer to the ceiling: --batch-sizes 16, or --compile"),
    ("forward", "GEMM", 0.69, COMPILED,
     "make matrix products larger, which get closer to the ceiling: --batch-sizes 16"),
    ("forward", "convolution", 0.69, {}, "store images as NHWC (--channels-last)"),
    ("forward", "convolution", 0.69, {"manifest": {"options": {"channels_last": True}}}, "make matrix products larger"),
    ("update", "elementwise", None, {}, "use an optimizer that reads and writes once (fused=True)"),
    ("forward", "GEMM", None, {}, "read each weight for more samples at once: --batch-sizes 16"),
    ("forward", "elementwise", None, {}, "fuse operators (--compile)"),
    ("forward", "elementwise", None, COMPILED, "halve the bytes (--precision pure-bf16)"),
    ("forward", "elementwise", None, {"entry": {"precision": "pure-bf16"}} | COMPILED, "fuse operators by hand"),
])  # fmt: skip
def test_advice_where_work_binds(tmp_path: Path, phase: str, kind: str, work: float | None, changes: dict[str, Any],
                                 advice: str) -> None:
    operators = [operator(phase, kind, 0.1, flop=work and 1e11 * work, num_bytes=None if work else 5e9, num_calls=0)]
    assert judge(judged(tmp_path, {phase: 0.1}, operators, **changes))["advice"].startswith(advice)


@pytest.mark.parametrize("reached_frac", [0.3, 0.1])
def test_where_nothing_bounds_the_ceiling_is_named(tmp_path: Path, reached_frac: float) -> None:
    operators = [operator("forward", "elementwise", 0.029, num_bytes=0.029 * 1e11 * reached_frac, num_calls=0),
                 operator("forward", "other", 0.016, num_calls=0)]
    advice = judge(judged(tmp_path, {"data": 0.028, "forward": 0.072}, operators))["advice"]
    assert "bandwidth takes 29.0 %, mostly elementwise in forward" in advice
    assert f"at {100 * reached_frac:.1f} % of its ceiling" in advice


@pytest.mark.parametrize(("data", "workers", "use", "prize"), [
    # Two cores need at least half of the iteration for its work.
    (0.7, 0, busy(0.0, 0.0), "; loading in parallel, on 2 cores, at most 50.0 %"),
    (0.4, 0, busy(0.0, 0.0), "could save at most 40.0 % of the iteration, 40.0 ms"),
    (0.7, 0, busy(0.0, 0.0, used_s=3.0), "could save at most 70.0 % of the iteration, 70.0 ms"),  # it waits for a disk
    (0.6, 2, busy(0.0, 0.0), "; more loader processes save nothing: all cores load already"),
])
def test_cores_bound_what_loading_in_parallel_saves(tmp_path: Path, data: float, workers: int, use: dict[str, Any],
                                                    prize: str) -> None:
    options = {"manifest": {"options": {"workers": workers}}}
    row = judge(shared(tmp_path, data=data, compute=min(1 - data, 0.38), **use, **options))
    assert row["prize_frac"] == pytest.approx(data)
    assert row["prize"].endswith(prize)


def frame(place: str, function: str, num_samples: int, library: str | None = None) -> dict[str, Any]:
    return {"place": place, "function": function, "num_samples": num_samples, "library": library}


@pytest.mark.parametrize(("num_workers", "evidence", "advice"), [
    (0, "waited for batches, with 0 loader processes; 75 % (41–93 %) of it in data.py:7, Images.__getitem__",
     "make samples cheaper to load (data.py:7 takes most); or load batches in parallel processes: num_workers=2 of "
     "the DataLoader"),
    (1, "waited for batches, with 1 loader process",
     "make samples cheaper to load; or load batches in parallel processes: num_workers=2"),
    (2, "waited for batches, with 2 loader processes", "make samples cheaper to load"),
])
def test_a_program_that_waits_for_data(tmp_path: Path, num_workers: int, evidence: str, advice: str) -> None:
    run = shared(tmp_path, data=0.6, **SCRIPT)
    passes = run.manifest["cases"][0]["passes"]
    passes["timing"]["num_loader_workers"] = num_workers
    passes["frames"] = {"status": "ok", "num_data_samples": 8,
                        "data_frames": [frame("data.py:7", "Images.__getitem__", 6)]}
    row = judge(run)
    assert row["evidence"].endswith(evidence)
    assert row["advice"].startswith(advice)


def test_the_function_in_which_a_program_spends_its_time(tmp_path: Path) -> None:
    run = shared(tmp_path, host=0.9, **SCRIPT)
    run.manifest["cases"][0]["passes"]["frames"] = {"status": "ok", "num_forward_samples": 20, "forward_frames": [
        frame("a.py:9", "Net.forward", 8, "torch.nn.modules.linear.Linear.forward"), frame("a.py:7", "where", 5),
        frame("a.py:3", "mask", 3), frame("a.py:4", "mask", 4)]}
    row = judge(run)
    assert row["evidence"].endswith("most of it in forward, where mask takes 35 % (18–57 %) (a.py:3, 4)")
    assert row["advice"].startswith(
        "do less in Python in mask (a.py:3, 4), which takes 35.0 ms, 35 % (18–57 %) of forward: ")
    assert row["advice"].endswith('charact compare --ab "charact run a.py" "charact run changed.py"`')
    compiled = shared(tmp_path, host=0.9, **SCRIPT)
    compiled.manifest["cases"][0]["passes"]["timing"]["compile_s"] = 3.7
    assert judge(compiled)["advice"] == "give each operator more to do: a larger batch"


@pytest.mark.parametrize(("num_calls", "is_named"), [(100, True), (99, False)])
def test_an_operator_that_is_called_in_a_loop(tmp_path: Path, num_calls: int, is_named: bool) -> None:
    operators = [operator("forward", "GEMM", 0.01, flop=1e10, num_calls=num_calls),
                 operator("forward", "copy", 0.02, num_bytes=1.0, num_calls=num_calls / 2 - 1)]
    evidence = judge(judged(tmp_path, {"forward": 0.1}, operators))["evidence"]
    assert (f"aten::GEMM runs {num_calls} times in forward" in evidence) == is_named
    assert "aten::copy runs" not in evidence


@pytest.mark.parametrize(("others_cores", "waiting_s", "is_reliable"), [
    (1.4, 10 * UNRELIABLE_FRAC / (1 - UNRELIABLE_FRAC) + 0.01, False),
    (1.4, 10 * UNRELIABLE_FRAC / (1 - UNRELIABLE_FRAC) - 0.01, True),
    (0.0, 10.0, True),  # its own threads wait for each other
])
def test_a_busy_machine_has_no_verdict(tmp_path: Path, others_cores: float, waiting_s: float, is_reliable: bool
                                       ) -> None:
    row = judge(shared(tmp_path, data=0.5, **busy(others_cores, waiting_s)))
    assert row["verdict"] == ("data-bound" if is_reliable else None)
    assert row["reason"] == (None if is_reliable else "unreliable: other programs held 1.4 of 2 cores")
    assert ("measure again when no other program runs, or with OMP_NUM_THREADS=1" in row["advice"]) != is_reliable


@pytest.mark.parametrize(("were_set", "advice"), [
    ({"OMP_NUM_THREADS": "1"}, "measure again when no other program runs, or with OMP_WAIT_POLICY=PASSIVE"),
    ({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}, "measure again when no other program runs"),
])
def test_variables_that_were_set_are_not_advised(tmp_path: Path, were_set: dict[str, str], advice: str) -> None:
    run = shared(tmp_path, data=0.5, manifest={"software": {"environment": were_set}}, **busy(1.4, 10.0))
    assert judge(run)["advice"] == advice


def test_other_programs_do_not_change_what_a_gpu_computes(tmp_path: Path) -> None:
    operators = [operator("forward", "GEMM", 0.1, device_s=0.1, flop=9e10, num_bytes=1.0)]
    use = busy(1.4, 20.0)
    use["entry"]["device"] = "cuda:0"
    run = judged(tmp_path, {"forward": 0.1}, operators, on_device=True, ceilings=ceilings_of("cuda:0"), **use)
    assert judge(run)["verdict"] == "compute-bound"
