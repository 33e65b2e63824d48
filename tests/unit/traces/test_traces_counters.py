"""Counters that a trace holds: made traces with known numbers, and recorded ones whose kernels are known."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import TraceMaker, training

from charact.record.schema import column_names
from charact.traces.counters import DEFINITIONS, NO_KERNELS, counter_rows, described, outcome, uses_tensor_cores
from charact.traces.device_events import find_launches
from charact.traces.events import DeviceEvent, TraceEvents
from charact.traces.reader import read_trace

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"


def rows_of(tmp_path: Path, *made: TraceMaker) -> list[dict[str, Any]]:
    read = []
    for number, one in enumerate(made):
        kept = read_trace(one.write(tmp_path / f"{number}.json")).events
        find_launches(kept)
        read.append(kept)
    return counter_rows(read, rank=None)


def values(tmp_path: Path, *made: TraceMaker) -> dict[str, float]:
    return {row["counter"]: row["value"] for row in rows_of(tmp_path, *made)}


def two_kernels() -> TraceMaker:
    """A kernel of 100 µs and one of 300, 40 after it, with a copy of 10 in between; launched 20 and 60 before."""
    made = TraceMaker()
    made.kernel("cutlass_80_tensorop_s16816gemm", 80, 100, 100, **{"est. achieved occupancy %": 20})
    made.kernel("Memcpy HtoD", 150, 210, 10, cat="gpu_memcpy")
    made.kernel("elementwise_kernel", 180, 240, 300, **{"est. achieved occupancy %": 60})
    return made


def test_gaps_delay_tensor_cores_and_occupancy(tmp_path: Path) -> None:
    found = values(tmp_path, two_kernels())
    expected = {"num_gaps": 1, "gap_s": 40e-6, "launch_delay_s": 40e-6, "tensor_core_frac": 0.25,
                "warp_occupancy_frac": (100 * 0.2 + 300 * 0.6) / 400, "span_s": 440e-6, "busy_s": 410e-6,
                "idle_s": 30e-6, "utilization_frac": 410 / 440, "copy_s": 10e-6}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert set(found) == set(DEFINITIONS)
    alone = TraceMaker()
    alone.kernel("elementwise_kernel", 0, 1000, 400)
    found = values(tmp_path, two_kernels(), alone)
    expected = {"num_gaps": 1, "gap_s": 40e-6, "launch_delay_s": 60e-6, "tensor_core_frac": 100 / 800,
                "span_s": 840e-6, "busy_s": 810e-6, "utilization_frac": 810 / 840}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    made = two_kernels()
    made.kernel("ncclDevKernel_AllReduce", 0, 600, 1000)
    assert values(tmp_path, made)["tensor_core_frac"] == pytest.approx(0.25)
    found = values(tmp_path, training(5))
    assert found["gap_s"] + found["computation_s"] + found["exposed_communication_s"] == pytest.approx(found["span_s"])


def test_each_device_has_rows_of_the_table(tmp_path: Path) -> None:
    made = two_kernels()
    made.event("kernel", "elementwise_kernel", 0, 50, device=1, stream=7)
    rows = rows_of(tmp_path, made)
    assert {row["device"] for row in rows} == {"cuda:0", "cuda:1"}
    assert all(set(row) == set(column_names("counters")) - {"case"} for row in rows)
    busy_s = {row["device"]: row["value"] for row in rows if row["counter"] == "busy_s"}
    assert busy_s == pytest.approx({"cuda:0": 410e-6, "cuda:1": 50e-6})


def test_what_is_missing_has_a_reason(tmp_path: Path) -> None:
    made = TraceMaker()
    made.event("kernel", "ncclDevKernel_AllReduce", 0, 50, device=0, stream=7)
    rows = rows_of(tmp_path, made)
    ended = outcome(rows)
    assert (ended["status"], ended["reason"]) == ("ok", None)
    assert set(ended["missing"]) == set(DEFINITIONS) - {row["counter"] for row in rows}
    assert set(ended["missing"]) == {"launch_delay_s", "tensor_core_frac", "warp_occupancy_frac"}
    made = TraceMaker()
    made.operator("aten::mm", 0, 10)
    rows = rows_of(tmp_path, made)
    assert rows == []
    assert outcome(rows) == {"status": "n/a", "reason": NO_KERNELS, "remedy": None, "missing": {}}
    assert outcome(rows, "failed", "mend it")["remedy"] == "mend it"


KERNELS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from(["gemm", "s16816gemm", "nccl"]),
                             st.one_of(st.none(), st.floats(0, 1))), min_size=1, max_size=12)


@given(KERNELS)
def test_gaps_fill_what_kernels_leave_and_shares_are_shares(kernels: list[tuple[int, int, str, float | None]]) -> None:
    device = [DeviceEvent(start, start + length, name, "kernel", "0", "7", None, None, (None,) * 4 + (occupancy,))
              for start, length, name, occupancy in kernels]
    found = {row["counter"]: row["value"] for row in counter_rows([TraceEvents(device=device)], 0)}
    assert found["gap_s"] == pytest.approx(found["idle_s"])
    assert found["num_gaps"] < len(kernels)
    assert (found["num_gaps"] == 0) == (found["gap_s"] == 0)
    assert all(0 <= value <= 1 + 1e-12 for name, value in found.items() if name.endswith("_frac"))
    assert "launch_delay_s" not in found


def test_every_counter_is_described() -> None:
    for name, told in described()["kineto"].items():
        assert told["definition"]
        assert told["method"] in ("measured", "estimated")
        assert name.startswith("num_") or name.endswith(("_s", "_frac"))


@pytest.mark.parametrize("name", [
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "turing_h1688gemm_128x128_ldg8_stages_32x1_tn", "volta_h884gemm_64x64_ldg8_nn",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4>(Params)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16_128x128x64_1x2x1",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32_kernel_cudnn",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "nvjet_hsh_64x8_64x16_4x1_v_bz_TNN",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>(Params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)", "fmha_cutlassB_f32_aligned_64x64_k64_sm80(Params)",
    "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_gmma_kernel", "kernel_hmma_f16",
    "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0", "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", "ck_tile::FmhaFwdKernel<Pipeline>",
])
def test_a_kernel_on_tensor_cores(name: str) -> None:
    assert uses_tensor_cores(name)


@pytest.mark.parametrize("name", [
    "ampere_sgemm_128x64_tn", "volta_sgemm_32x32_sliced1x4_nn", "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64>",
    "sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_kernel_cudnn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "SubTensorOpWithScalar1d",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true>(Flash_bwd_params)", "triton_poi_fused_add_relu_0",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>", "Memcpy DtoH (Device -> Pageable)",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm75(Params)", "Cijk_Ailk_Bljk_SB_MT64x64x8_SE_TT4_4",
    "void at::native::lgamma_kernel", "void gemv2T_kernel_val<int, int, float>", "gemma_rms_norm_kernel",
    "cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "batched_transpose_16x32_half",
    "ck_tile::FmhaBwdOGradDotOKernel<Pipeline>", "cask__5x_cudnn::computeOffsetsKernel(ComputeOffsetsParams)",
])
def test_a_kernel_without(name: str) -> None:
    assert not uses_tensor_cores(name)


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs recorded traces in ../shared/traces")
class TestRecorded:
    @pytest.mark.parametrize("name", ["h100_bert_small_infer", "h100_vit_infer", "h100_timesformer_infer"])
    def test_gemms_convolutions_and_flash_attention_are_all_that_uses_tensor_cores(self, name: str) -> None:
        kept = read_trace(TRACES / f"{name}.json.gz").events
        find_launches(kept)
        kernels = [event for event in kept.device if event.kind == "kernel"]
        multiplying = [event for event in kernels
                       if any(word in event.name for word in ("gemm_", "flash_fwd", "fprop"))]
        expected = sum(event.end_ns - event.start_ns for event in multiplying) / sum(
            event.end_ns - event.start_ns for event in kernels)
        found = {row["counter"]: row["value"] for row in counter_rows([kept], None)}
        assert found["tensor_core_frac"] == pytest.approx(expected)
        assert 0 < found["warp_occupancy_frac"] < 1
        assert found["launch_delay_s"] > 0

    def test_amd_tells_no_occupancy_and_is_not_taken_for_0(self) -> None:
        kept = read_trace(TRACES / "mi300_resnet_ddp_train.json.gz").events
        find_launches(kept)
        rows = counter_rows([kept], 0)
        found = {row["counter"]: row["value"] for row in rows}
        assert "warp_occupancy_frac" not in found
        assert outcome(rows)["missing"] == {"warp_occupancy_frac": "the trace lacks the kernels’ occupancy"}
        assert 0.1 < found["tensor_core_frac"] < 0.9
