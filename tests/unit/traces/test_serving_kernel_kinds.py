"""Kinds of kernels in inference servers, by names that libraries give them and by operators."""

import pytest

from charact.record.schema import KERNEL_KINDS
from charact.traces.serving.kernel_kinds import is_of_generation, kernel_kind

NAMES: dict[str, list[str]] = {
    "GEMM": [
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8>(Params)",
        "nvjet_tst_128x64_64x8_2x1_v_bz_TNT",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV",
        "Cijk_MI16",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
        "void marlin::Marlin<__nv_bfloat16, 256, 1>",
        "void marlin_moe_wna16::Marlin<x>",
        "void gemv2T_kernel_val<int>",
        "void cublasLt::splitKreduce_kernel<32>",
        "triton_tem_fused_mm_12",
        "fused_moe_kernel",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<1u>",
        "void ck::kernel_gemm_xdl_cshuffle_v3<x>",
        "fmoe_bf16_blockscaleFp8_g1u1",
        "void wvSplitK_hf_sml_<x>",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x512",
        "_w8a8_block_fp8_matmul",
        "decode_gemm",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<x>>",
        "triton_mm_kernel",
        "machete_mm",
    ],
    "attention": [
        "void flash::flash_fwd_kernel<x>",
        "void flash::flash_fwd_splitkv_combine_kernel<x>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<x>>>",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<x>",
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<x>",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<x>",
        "void vllm::paged_attention_v1_kernel<x>",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<x>",
        "kernel_unified_attention_2d",
        "_fwd_kernel_stage1",
        "_fwd_grouped_kernel_stage1",
        "fmha_v2_flash_attention_bf16_64",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        "void pytorch_flash::flash_fwd_kernel<x>",
        "mla_dec_stage1_bf16_a16w16_subQ16",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma",
        "_attn_fwd",
        "void mmha::masked_multihead_attention_kernel<x>",
        "decode_attention",
        "kernel_mha",
        "void flash_fwd_splitkv_mla_kernel<x>",
        "_fwd_kernel_stage2",
        "void ck_tile::kentry<FmhaFwdKernel>",
    ],
    "normalization": [
        "void vllm::rms_norm_kernel<x>",
        "void vllm::fused_add_rms_norm_kernel<x>",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<x>",
        "add_rmsnorm_quant_kernel",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2",
        "triton_per_fused_native_layer_norm_3",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
        "void vllm::cross_device_reduce_1stage<x>",
        "void sglang::cross_device_reduce_2stage<x>",
        "multimem_all_reduce_kernel",
    ],
    "copy": [
        "void vllm::reshape_and_cache_flash_kernel<x>",
        "void vllm::concat_and_cache_mla_kernel<x>",
        "set_mla_kv_buffer_kernel",
        "store_kvcache",
        "void flashinfer::AppendPagedKVCacheKernel<x>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<x>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::x>",
        "copy_kernel",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(x)>",
        "void vllm::copy_blocks_kernel<x>",
    ],
    "other": [
        "void vllm::act_and_mul_kernel<x>",
        "void flashinfer::activation::act_and_mul_kernel<x>",
        "void vllm::rotary_embedding_kernel<x>",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<x>",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<x>",
        "argmax_kernel",
        "arange_kernel",
        "triton_poi_fused_mm_add_silu_3",
        "void vllm::moe::topkGatingSoftmax<x>",
        "void vllm::moe::moe_align_block_size_kernel<int>",
        "void vllm::scaled_fp8_quant_kernel<x>",
        "per_token_group_quant_8bit_kernel",
        "void at::native::elementwise_kernel<128, 2, at::native::BinaryFunctor<float>>",
        "Memset (Device)",
        "uniformlayout_kernel",
        "_compute_slot_mapping_kernel",
        "triton_poi_fused_silu_mul_1",
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_kinds_by_names(kind: str, name: str) -> None:
    assert kernel_kind(name, "kernel", None) == kind


def test_every_kind_has_names() -> None:
    assert set(NAMES) == set(KERNEL_KINDS)


@pytest.mark.parametrize(("operator", "kernel", "kind"), [
    ("aten::mm", "strange", "GEMM"), ("aten::scaled_dot_product_attention", "x", "attention"),
    ("_C::rms_norm", "x", "normalization"), ("aten::copy_", "x", "copy"), ("aten::index_put_", "x", "copy"),
    ("aten::softmax", "gemm_like", "other"), ("vllm::moe_forward", "fused_moe_kernel", "GEMM"),
    ("CompiledFxGraph", "triton_poi_fused_mm_1", "other"), ("aten::mm", "ncclDevKernel_AllReduce", "communication"),
])  # fmt: skip
def test_the_operator_decides_where_its_type_is_a_kind(operator: str, kernel: str, kind: str) -> None:
    assert kernel_kind(kernel, "kernel", operator) == kind


def test_copies_are_copies_whatever_launched_them() -> None:
    assert kernel_kind("Memcpy HtoD", "gpu_memcpy", "aten::mm") == "copy"
    assert kernel_kind("Memset (Device)", "gpu_memset", None) == "other"


def test_signs_of_generation() -> None:
    signs = [name for names in NAMES.values() for name in names if is_of_generation(name)]
    assert "void vllm::reshape_and_cache_flash_kernel<x>" in signs
    assert not {"void flash::flash_fwd_kernel<x>", "nvjet_tst_128x64_64x8_2x1_v_bz_TNT"} & set(signs)
    assert not is_of_generation("upsample_bilinear2d_kernel")
