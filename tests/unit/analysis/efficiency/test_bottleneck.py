"""Every verdict at both sides of its threshold, its prize and its advice, and the reasons where there is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import records
from support.judged import ceiling, ceilings_of, judged, operator

from charact.analysis.efficiency.bottleneck import BOUND_FRAC, MEMORY_FRAC, WORK_FRAC, bottlenecks
from charact.analysis.profile.core_use import UNRELIABLE_FRAC
from charact.record.reader import Run, load_run

CASE = "net-32-b8-train-fp32-cpu"
GPU = {"machine": {"gpus": [{"index": 0, "memory_bytes": 80e9}, {"index": 1, "memory_bytes": 40e9}]}}


def judge(run: Run) -> dict[str, Any]:
    found = bottlenecks(run)
    assert len(found) == 1
    return dict(found.iloc[0])


def shared(tmp_path: Path, *, data: float = 0.0, host: float = 0.0, compute: float = 0.0, bandwidth: float = 0.0,
           communication: float = 0.0, **told: Any) -> Run:
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
    return judged(tmp_path, phases, operators, **told)


class TestVerdict:
    @pytest.mark.parametrize(("limit", "verdict", "threshold_frac"), [
        ("data", "data-bound", BOUND_FRAC), ("communication", "communication-bound", BOUND_FRAC),
        ("host", "host-bound", BOUND_FRAC), ("compute", "compute-bound", WORK_FRAC),
        ("bandwidth", "memory-bandwidth-bound", WORK_FRAC),
    ])  # fmt: skip
    def test_is_given_from_its_threshold_on(
            self, tmp_path: Path, limit: str, verdict: str, threshold_frac: float) -> None:
        fill = "bandwidth" if limit == "compute" else "compute"
        filled = min(1 - threshold_frac, WORK_FRAC) - 0.02  # too little to bound itself
        above = judge(shared(tmp_path, **{limit: threshold_frac + 0.001, fill: filled}))
        assert (above["verdict"], above["threshold_frac"]) == (verdict, threshold_frac)
        assert above["share_frac"] == pytest.approx(threshold_frac + 0.001)
        assert above["reason"] is None
        below = judge(shared(tmp_path, **{limit: threshold_frac - 0.001, fill: filled}))
        assert below["verdict"] is None
        assert below["reason"].startswith("no limit takes most of the median iteration of ")
        assert np.isnan([below[name] for name in ("share_frac", "threshold_frac", "prize_s", "prize_frac")]).all()

    def test_of_two_that_wait_the_larger_bounds(self, tmp_path: Path) -> None:
        assert judge(shared(tmp_path, data=0.31, host=0.35, compute=0.34))["verdict"] == "host-bound"
        assert judge(shared(tmp_path, data=0.35, communication=0.31, compute=0.34))["verdict"] == "data-bound"

    def test_what_waits_comes_before_what_works(self, tmp_path: Path) -> None:
        assert judge(shared(tmp_path, data=0.31, compute=0.69))["verdict"] == "data-bound"

    def test_evidence_names_numbers_and_the_threshold(self, tmp_path: Path) -> None:
        assert judge(shared(tmp_path, data=0.4, compute=0.6))["evidence"] == (
            "of the median iteration of 100 ms: compute 60.0 %, data 40.0 %; data counts as a bottleneck if it takes "
            "30.0 % of the iteration or more; it is the time in which the loop waited for batches, with 0 loader "
            "processes")
        assert judge(shared(tmp_path, compute=0.8, bandwidth=0.2))["evidence"] == (
            "of the median iteration of 100 ms: compute 80.0 %, bandwidth 20.0 %; compute counts as a bottleneck if it "
            "takes 50.0 % of the iteration or more; it runs at 50.0 % of the fp32 ceiling of 1.00 TFLOP/s, by type "
            "most in convolution, by phase in forward")

    @pytest.mark.parametrize(("cores_frac", "is_said"), [(0.6, True), (0.95, False)])
    def test_ceilings_that_were_measured_beside_other_load_are_said_to_be(
            self, tmp_path: Path, cores_frac: float, is_said: bool) -> None:
        rows = [row | {"cores_frac": cores_frac if row["ceiling"] == "gemm" else None} for row in ceilings_of("cpu")]
        evidence = judge(shared(tmp_path, compute=0.8, ceilings=rows))["evidence"]
        assert ("1.00 TFLOP/s (too low, measured under other load), by" in evidence) == is_said

    def test_every_case_has_a_row(self, tmp_path: Path) -> None:
        run = load_run(records.write_record(tmp_path, oom=True))
        assert bottlenecks(run)["case"].tolist() == [entry["case"] for entry in run.manifest["cases"]]


class TestPrize:
    @pytest.mark.parametrize(("shares", "prize_frac"), [
        ({"data": 0.4, "compute": 0.6}, 0.4), ({"data": 0.7, "compute": 0.3}, 0.7),
        ({"communication": 0.4, "compute": 0.6}, 0.4), ({"host": 0.4, "compute": 0.6}, 0.4),
        ({"compute": 0.8}, 0.4), ({"bandwidth": 0.8}, 0.6),
    ])
    def test_is_the_most_that_could_be_saved(
            self, tmp_path: Path, shares: dict[str, float], prize_frac: float) -> None:
        found = judge(shared(tmp_path, **shares))
        assert found["prize_frac"] == pytest.approx(prize_frac)
        assert found["prize_s"] == pytest.approx(0.1 * prize_frac)
        assert f"could save at most {100 * prize_frac:.1f} % of the iteration" in found["prize"]

    def test_of_work_above_its_ceiling_is_nothing(self, tmp_path: Path) -> None:
        operators = [operator("forward", "GEMM", 0.06, flop=12e10, num_calls=0),
                     operator("forward", "GEMM", 0.04, flop=1e10, num_calls=0, layer="slow")]  # fmt: skip
        found = judge(judged(tmp_path, {"forward": 0.1}, operators))
        assert found["prize_s"] == pytest.approx(0.04 - 1e10 / 2e12)  # the faster layer is the ceiling
        assert "at 65.0 % of the fp32 ceiling of 2.00 TFLOP/s (reached by GEMM " in found["evidence"]

    def test_of_a_case_above_its_ceiling_is_not_known(self, tmp_path: Path) -> None:
        operators = [operator("forward", "GEMM", 0.1, flop=1e11, num_calls=0)]  # as fast as the ceiling
        found = judge(judged(tmp_path, {"forward": 0.08}, operators))  # and faster without the profiler
        assert found["verdict"] == "compute-bound"
        assert (found["prize"], found["prize_s"]) == (None, pytest.approx(float("nan"), nan_ok=True))
        assert "at 125.0 % of the fp32 ceiling of 1.00 TFLOP/s (above 100 %: the ceiling is too" in found["evidence"]


class TestMemory:
    def of_cpu(self, tmp_path: Path, held_frac: float, **shares: float) -> dict[str, Any]:
        memory = {"memory": {"status": "ok", "reason": None, "process_peak_bytes": held_frac * 1e10}}
        return judge(shared(tmp_path, entry={"passes": memory},
                            manifest={"machine": {"memory_bytes": 1e11, "memory_limit_bytes": 1e10}}, **shares))

    @pytest.mark.parametrize(("shares", "else_verdict"), [
        ({"host": 0.4, "compute": 0.4}, "host-bound"), ({"compute": 0.45, "bandwidth": 0.45}, None),
        ({"host": 0.4}, "host-bound"),
    ])
    def test_that_is_full_bounds_where_a_larger_batch_would_help(
            self, tmp_path: Path, shares: dict[str, float], else_verdict: str) -> None:
        full = self.of_cpu(tmp_path, MEMORY_FRAC + 0.01, **shares)
        assert (full["verdict"], full["threshold_frac"]) == ("memory-capacity-bound", MEMORY_FRAC)
        assert full["evidence"].startswith("the peak of 8.48 GiB is 91.0 % of the memory’s 9.31 GiB; from 90.0 % on")
        assert full["prize"] is None
        assert self.of_cpu(tmp_path, MEMORY_FRAC - 0.01, **shares)["verdict"] == else_verdict

    @pytest.mark.parametrize("limit", ["data", "communication", "compute", "bandwidth"])
    def test_that_is_full_does_not_hide_what_else_bounds(self, tmp_path: Path, limit: str) -> None:
        assert str(self.of_cpu(tmp_path, 0.99, **{limit: 0.9})["verdict"]).endswith(f"{limit}-bound")

    @pytest.mark.parametrize(("held_bytes", "verdict"), [(39e9, "memory-capacity-bound"), (30e9, "host-bound")])
    def test_of_a_device_is_its_own(self, tmp_path: Path, held_bytes: float, verdict: str) -> None:
        memory = {"memory": {"status": "ok", "reason": None, "reserved_peak_bytes": held_bytes,
                             "process_peak_bytes": 25e9}}
        run = judged(tmp_path, {"forward": 0.1}, [operator("forward", "GEMM", 0.1, device_s=0.01)], on_device=True,
                     entry={"device": "cuda:1", "passes": memory}, manifest=GPU)
        assert judge(run)["verdict"] == verdict

    def test_that_ran_out_bounds(self, tmp_path: Path) -> None:
        run = judged(tmp_path, {}, entry={"status": "oom", "reason": "out of memory: asked for 64.0 GB",
                                          "out_of_memory": {"limit_bytes": 2e9, "fits": {"batch_size": 3}}})
        found = judge(run)
        assert found["verdict"] == "memory-capacity-bound"
        assert found["evidence"] == "the case did not fit into the memory of 1.86 GiB: out of memory: asked for 64.0 GB"
        assert found["advice"].startswith("use --batch-sizes 3 and --accumulate 3, which makes the same update")

    @pytest.mark.parametrize(("entry", "advice"), [
        ({}, "use --batch-sizes 4 and --accumulate 2"),
        ({"mode": "infer"}, "use --batch-sizes 4; or a lower precision"),
        ({"batch_size": 1}, "recompute activations (torch.utils.checkpoint), or a smaller input"),
        ({"batch_size": None}, "recompute activations (torch.utils.checkpoint), or a smaller batch"),
    ])
    def test_advice(self, tmp_path: Path, entry: dict[str, Any], advice: str) -> None:
        told = {"status": "oom", "reason": "out of memory"} | entry
        assert judge(judged(tmp_path, {}, entry=told))["advice"].startswith(advice)


class TestNoVerdict:
    @pytest.mark.parametrize(("told", "reason"), [
        ({"ceilings": []}, "no ceilings were measured before this run: run charact doctor --ceilings"),
        ({"entry": {"passes": {"flop": {"status": "failed", "reason": "RuntimeError: no"}}}}, "RuntimeError: no"),
        ({}, "neither FLOP nor bytes of these operators are available"),
        ({"manifest": {"options": {"traces": ["a"]}}}, "a trace has no FLOP"),
    ])
    def test_where_the_limit_of_much_of_the_time_is_not_known(
            self, tmp_path: Path, told: dict[str, Any], reason: str) -> None:
        found = judge(shared(tmp_path, data=0.2, **told))
        assert found["verdict"] is None
        assert found["reason"].startswith(f"the limit of 80.0 % of the iteration is unknown: {reason}")

    @pytest.mark.parametrize(("options", "reason"), [
        ({}, "operators: RuntimeError: busy (charact profile measures them)"),
        ({"script": "a.py"}, "operators: RuntimeError: busy (charact run --passes operators measures them)"),
        ({"traces": ["a"]}, "operators: RuntimeError: busy"),
    ])
    def test_without_operators(self, tmp_path: Path, options: dict[str, Any], reason: str) -> None:
        failed = {"operators": {"status": "failed", "reason": "RuntimeError: busy"}}
        run = judged(tmp_path, {"data": 0.02, "forward": 0.08}, entry={"passes": failed}, manifest={"options": options})
        assert judge(run)["reason"] == f"the limit of 80.0 % of the iteration is unknown: {reason}"

    @pytest.mark.parametrize(("options", "remedy"), [
        ({}, ""), ({"script": "a.py"}, ": charact run --sample shows where")])
    def test_where_most_lies_in_no_phase(self, tmp_path: Path, options: dict[str, Any], remedy: str) -> None:
        run = judged(tmp_path, {"data": 0.02, "other": 0.08}, manifest={"options": options})
        assert judge(run)["reason"].endswith(f"most of it is in no phase{remedy}")

    def test_but_what_bounds_all_the_same_is_told(self, tmp_path: Path) -> None:
        failed = {"operators": {"status": "failed", "reason": "RuntimeError: busy"}}
        run = judged(tmp_path, {"data": 0.04, "forward": 0.06}, entry={"passes": failed}, ceilings=[])
        assert judge(run)["verdict"] == "data-bound"

    @pytest.mark.parametrize(("entry", "reason"), [
        ({"status": "error", "reason": "ValueError: broken"}, "ValueError: broken"),
        ({"passes": {"timing": {"status": "failed", "reason": "killed"}}}, "killed"),
        ({}, "no iteration was recorded"),
    ])
    def test_without_times(self, tmp_path: Path, entry: dict[str, Any], reason: str) -> None:
        assert judge(judged(tmp_path, {}, entry=entry))["reason"] == reason

    def test_of_a_training(self, tmp_path: Path) -> None:
        reasons = bottlenecks(load_run(records.write_training(tmp_path)))["reason"].tolist()
        assert reasons[0] == "its iterations were not timed by phase: run charact profile"
        assert reasons[-1] == "the loss was nan in iteration 17 of epoch 3"


class TestAdvice:
    @pytest.mark.parametrize(("data", "options", "advice"), [
        (0.4, {}, "load batches in parallel processes: --workers 1"),
        (0.7, {}, "load batches in parallel processes: --workers 2"),  # 3 would help: there are 2 cores
        (0.6, {"workers": 1}, "load batches in parallel processes: --workers 2"),
        (0.6, {"workers": 2}, "make samples cheaper to load"),
        (0.6, {"script": "a.py"}, "load batches in parallel processes: num_workers of the DataLoader"),
        (0.6, {"traces": ["a"]}, "load batches in parallel processes: num_workers of the DataLoader"),
    ])
    def test_where_data_binds(self, tmp_path: Path, data: float, options: dict[str, Any], advice: str) -> None:
        found = judge(shared(tmp_path, data=data, compute=1 - data, manifest={"options": options}))
        assert advice in found["advice"]

    @pytest.mark.parametrize(("data", "bound"), [(0.7, True), (0.4, False)])
    def test_cores_bound_what_loading_in_parallel_saves(self, tmp_path: Path, data: float, bound: bool) -> None:
        found = judge(shared(tmp_path, data=data, compute=1 - data, **_busy(0.0, 0.0)))
        # Two cores need at least half of the iteration for its work.
        assert found["prize_frac"] == pytest.approx(data)
        assert found["prize"].endswith("; loading in parallel, on 2 cores, at most 50.0 %") == bound
        assert "which take cores from the operators" in found["advice"]

    def test_cores_do_not_bound_what_waits(self, tmp_path: Path) -> None:
        found = judge(shared(tmp_path, data=0.7, compute=0.3, **_busy(0.0, 0.0, used_s=3.0)))
        assert found["prize"].endswith("could save at most 70.0 % of the iteration, 70.0 ms")

    def test_processes_on_all_cores_do_not_load_faster(self, tmp_path: Path) -> None:
        busy = _busy(0.0, 0.0)
        busy["manifest"] = {"options": {"workers": 2}}
        found = judge(shared(tmp_path, data=0.6, compute=0.4, **busy))
        assert found["prize"].startswith("making all samples free to load could save at most 60.0 %")
        assert found["prize"].endswith("more loader processes save nothing: all cores load already")

    @pytest.mark.parametrize(("num_workers", "evidence", "advice"), [
        (0, "waited for batches, with 0 loader processes; 75 % (41–93 %) of it in data.py:7, Images.__getitem__",
         "make samples cheaper to load (data.py:7 takes most); or load batches in parallel processes: num_workers=2 of "
         "the DataLoader"),
        (1, "waited for batches, with 1 loader process",
         "make samples cheaper to load; or load batches in parallel processes: num_workers=2"),
        (2, "waited for batches, with 2 loader processes", "make samples cheaper to load"),
    ])
    def test_where_a_program_waits_for_data(
            self, tmp_path: Path, num_workers: int, evidence: str, advice: str) -> None:
        frame = {"place": "data.py:7", "function": "Images.__getitem__", "library": None, "num_samples": 6}
        run = shared(tmp_path, data=0.6, manifest={"options": {"script": "a.py"}})
        passes = run.manifest["cases"][0]["passes"]
        passes["timing"]["num_loader_workers"] = num_workers
        passes["frames"] = {"status": "ok", "num_data_samples": 8, "data_frames": [frame]}
        found = judge(run)
        assert found["evidence"].endswith(evidence)
        assert found["advice"].startswith(advice)

    @pytest.mark.parametrize(("entry", "options", "advice"), [
        ({}, {}, "give each operator more to do: --batch-sizes 16, or fewer operators: --compile"),
        ({}, {"compiled": True}, "give each operator more to do: --batch-sizes 16"),
        ({}, {"script": "a"}, "give each operator more to do: a larger batch, or fewer operators: torch.compile"),
        ({"device": "cuda:0"}, {}, "give each operator more to do: --batch-sizes 16, or fewer operators: --compile, or "
                                   "CUDA graphs (torch.compile with mode='reduce-overhead')"),
        ({"device": "cuda:0"}, {"compiled": True}, "give each operator more to do: --batch-sizes 16, or CUDA graphs"),
    ])
    def test_where_the_host_binds(
            self, tmp_path: Path, entry: dict[str, Any], options: dict[str, Any], advice: str) -> None:
        found = judge(shared(tmp_path, host=0.9, entry=entry, manifest={"options": options}))
        assert found["advice"] == advice

    def test_a_program_that_compiles_is_not_told_to_compile(self, tmp_path: Path) -> None:
        run = shared(tmp_path, host=0.9, manifest={"options": {"script": "a.py"}})
        run.manifest["cases"][0]["passes"]["timing"]["compile_s"] = 3.7
        assert judge(run)["advice"] == "give each operator more to do: a larger batch"

    def test_the_function_in_which_the_host_binds(self, tmp_path: Path) -> None:
        def frame(place: str, function: str, num_samples: int, library: str | None = None) -> dict[str, Any]:
            return {"place": place, "function": function, "num_samples": num_samples, "library": library}

        run = shared(tmp_path, host=0.9, manifest={"options": {"script": "a.py"}})
        run.manifest["cases"][0]["passes"]["frames"] = {"status": "ok", "num_forward_samples": 20, "forward_frames": [
            frame("a.py:9", "Net.forward", 8, "torch.nn.modules.linear.Linear.forward"), frame("a.py:7", "where", 5),
            frame("a.py:3", "mask", 3), frame("a.py:4", "mask", 4)]}
        found = judge(run)
        assert found["evidence"].endswith(
            "most of it in forward, where mask takes 35 % (18–57 %) (a.py:3, 4)")
        assert found["advice"].startswith(
            "do less in Python in mask (a.py:3, 4), which takes 35.0 ms, 35 % (18–57 %) of forward: ")
        assert found["advice"].endswith('charact compare --ab "charact run a.py" "charact run changed.py"`')

    @pytest.mark.parametrize(("reached_frac", "kind", "told", "advice"), [
        (0.71, "GEMM", {}, "use --precision bf16: its ceiling is 2 times that of fp32"),
        (0.71, "GEMM", {"entry": {"precision": "bf16"}}, "make matrix products larger"),
        (0.71, "GEMM", {"ceilings": [ceiling("gemm", 1e12, "fp32")]}, "products run near the ceiling: leave out work"),
        (0.69, "GEMM", {},
         "make matrix products larger, which get closer to the ceiling: --batch-sizes 16, or --compile"),
        (0.69, "GEMM", {"manifest": {"options": {"compiled": True}}},
         "make matrix products larger, which get closer to the ceiling: --batch-sizes 16"),
        (0.69, "convolution", {}, "store images as NHWC (--channels-last)"),
        (0.69, "convolution", {"manifest": {"options": {"channels_last": True}}}, "make matrix products larger"),
    ])  # fmt: skip
    def test_where_products_bind(
            self, tmp_path: Path, reached_frac: float, kind: str, told: dict[str, Any], advice: str) -> None:
        operators = [operator("forward", kind, 0.1, flop=1e11 * reached_frac, num_calls=0)]
        assert judge(judged(tmp_path, {"forward": 0.1}, operators, **told))["advice"].startswith(advice)

    @pytest.mark.parametrize(("phase", "kind", "told", "advice"), [
        ("update", "elementwise", {}, "use an optimizer that reads and writes once (fused=True)"),
        ("forward", "GEMM", {}, "read each weight for more samples at once: --batch-sizes 16"),
        ("forward", "elementwise", {}, "fuse operators (--compile)"),
        ("forward", "elementwise", {"manifest": {"options": {"compiled": True}}},
         "halve the bytes (--precision pure-bf16)"),
        ("forward", "elementwise", {"manifest": {"options": {"compiled": True}}, "entry": {"precision": "pure-bf16"}},
         "fuse operators by hand"),
    ])
    def test_where_bytes_bind(
            self, tmp_path: Path, phase: str, kind: str, told: dict[str, Any], advice: str) -> None:
        operators = [operator(phase, kind, 0.1, num_bytes=5e9, num_calls=0)]
        assert judge(judged(tmp_path, {phase: 0.1}, operators, **told))["advice"].startswith(advice)

    def test_where_ranks_wait_for_each_other(self, tmp_path: Path) -> None:
        assert judge(shared(tmp_path, communication=0.5))["advice"].startswith("communicate less often")

    def test_where_nothing_bounds(self, tmp_path: Path) -> None:
        found = judge(shared(tmp_path, compute=0.45, bandwidth=0.40, data=0.15))
        assert found["advice"].startswith(
            "compute takes 45.0 %, mostly convolution in forward, at 50.0 % of "
            "its ceiling; layer net takes 100.0 % of the operators’ time; to begin with, store images as NHWC")

    @pytest.mark.parametrize("reached_frac", [0.3, 0.1])
    def test_where_nothing_bounds_the_ceiling_is_told(self, tmp_path: Path, reached_frac: float) -> None:
        operators = [operator("forward", "elementwise", 0.045, num_bytes=0.045 * 1e11 * reached_frac, num_calls=0),
                     operator("forward", "other", 0.027, num_calls=0)]
        advice = judge(judged(tmp_path, {"data": 0.028, "forward": 0.072}, operators))["advice"]
        assert "bandwidth takes 45.0 %, mostly elementwise in forward" in advice
        assert f"at {100 * reached_frac:.1f} % of its ceiling" in advice


@pytest.mark.parametrize(("reached_frac", "is_far"), [(0.24, True), (0.26, False)])
def test_evidence_says_where_work_is_far_below_the_ceiling_that_is_nearest(
        tmp_path: Path, reached_frac: float, is_far: bool) -> None:
    operators = [operator("forward", "GEMM", 0.1, flop=1e11 * reached_frac, num_calls=0)]
    assert ("far below the ceiling" in judge(judged(tmp_path, {"forward": 0.1}, operators))["evidence"]) == is_far


def test_the_device_that_waited_is_evidence(tmp_path: Path) -> None:
    operators = [operator("forward", "GEMM", 0.1, device_s=0.04, flop=1e10, num_bytes=1.0)]
    run = judged(tmp_path, {"forward": 0.1}, operators, on_device=True, entry={"device": "cuda:0"},
                 ceilings=ceilings_of("cuda:0"))
    assert judge(run)["evidence"].endswith("for 60.0 ms the device had no kernel to run")


def _busy(others_cores: float, waiting_s: float, used_s: float = 10.0) -> dict[str, Any]:
    """10 s with 2 cores, of which the program used one."""
    use = {"length_s": 10.0, "num_usable_cores": 2, "processor_s": used_s, "others_s": 10 * others_cores,
           "waiting_s": waiting_s, "stolen_s": 0.0}
    return {"entry": {"passes": {"timing": {"status": "ok", "reason": None, "core_use": use}}}}


@pytest.mark.parametrize(("others_cores", "waiting_s", "is_reliable"), [
    (1.4, 10 * UNRELIABLE_FRAC / (1 - UNRELIABLE_FRAC) + 0.01, False),
    (1.4, 10 * UNRELIABLE_FRAC / (1 - UNRELIABLE_FRAC) - 0.01, True),
    (0.0, 10.0, True),  # its own threads wait for each other
])
def test_a_busy_machine_has_no_verdict(
        tmp_path: Path, others_cores: float, waiting_s: float, is_reliable: bool) -> None:
    found = judge(shared(tmp_path, data=0.5, **_busy(others_cores, waiting_s)))
    assert found["verdict"] == ("data-bound" if is_reliable else None)
    assert found["reason"] == (None if is_reliable else "unreliable: other programs held 1.4 of 2 cores")
    assert ("measure again when no other program runs, or with OMP_NUM_THREADS=1" in found["advice"]) != is_reliable


def test_other_programs_do_not_change_what_a_gpu_computes(tmp_path: Path) -> None:
    operators = [operator("forward", "GEMM", 0.1, device_s=0.1, flop=9e10, num_bytes=1.0)]
    told = _busy(1.4, 20.0)
    told["entry"]["device"] = "cuda:0"
    run = judged(tmp_path, {"forward": 0.1}, operators, on_device=True, ceilings=ceilings_of("cuda:0"), **told)
    assert judge(run)["verdict"] == "compute-bound"
