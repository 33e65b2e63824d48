"""Kinds of the device's work in an inference server: by the operator that launched it, else by the kernel's name."""

import re
from functools import cache

from charact.core.operator_types import own_operator_type
from charact.traces.collective_names import is_collective

_RULES: tuple[tuple[str, str, str], ...] = (
    # kind, pattern of a kernel's name in lower case, origin of such names; the first match decides
    ("normalization", r"^triton_(poi|red|per)\w*_(rsqrt|\w*_norm)", "torch.compile: Inductor names what it fused"),
    ("other", r"^triton_(poi|red|per)_", "torch.compile: pointwise code and reductions"),
    ("copy", r"(reshape|concat)_and_cache|append_?paged_?kv|(copy|swap)_blocks|catarraybatched|copy_device_to_device|"
             r"(set|store|write|copy|append|update|gather)_?(mla_?|flashmla_?)?(kv_?)?(cache|buffer)|"
             r"(^|[^a-z])(direct|float\w*|bfloat16|half)?_?copy_kernel",
     "cache writes of vLLM, SGLang and FlashInfer; PyTorch’s copies and concatenations"),
    ("attention", r"flash_?(fwd|bwd|attn|attention|decod|mla|fprop)|fmha|attention|splitkv|sdpa|mmha|kernel_mha|"
                  r"(^|[^a-z])(m?sa_|flex_)?attn(?![a-z])|(^|[^a-z])mla(?![a-z])|(^|[^a-z])xqa|paged_?kv|"
                  r"(batch|single)_?(prefill|decode)with|mergestate|merge_attn|_fwd_(grouped_)?kernel_stage",
     "FlashAttention, FlashInfer, FlashMLA, xFormers, cuDNN, TensorRT-LLM (fmha, mmha, xqa), vLLM, Triton, AITER"),
    ("normalization", r"(rms|layer|group|batch|instance|l2|qk)_?norm|(^|[^a-z])ln_fwd", "vLLM, FlashInfer, PyTorch"),
    ("GEMM", r"gemm|gemv|matmul|mul_mat|cutlass|xmma|wgmma|nvjet|^cijk_|marlin|machete|splitk|w\d+a\d+|exllama|"
             r"(^|[^a-z])(b|add|scaled_)?mm(?![a-z])|moe_?kernel|(^|[^a-z])fmoe",
     "cuBLAS, CUTLASS, xmma, nvjet, Tensile (Cijk), Composable Kernel, Marlin, DeepGEMM, Triton’s mm, fused experts"),
)
_PATTERNS = [(kind, re.compile(pattern)) for kind, pattern, _ in _RULES]
_OF_OPERATORS = ("GEMM", "attention", "normalization", "communication")
_UNDECIDED = (None, "compiled", "data movement")
"""Operator types, or none, whose kernels have kinds by their own names."""
_COPIES = re.compile(
    r"::(copy_?|clone|contiguous|_to_copy|cat|_foreach_copy_|index_copy_|index_put_|_index_put_impl_)$")
"""Operators that copy, also into a cache."""
_GENERATES = re.compile(
    r"decode|paged|kv_?cache|_and_cache|splitkv|(^|[^a-z])mla(?![a-z])|flashmla|sampling|gumbel|top_?k_?top_?p|"
    r"unified_attention|_kernel_stage|mmha|(^|[^a-z])xqa")


def kernel_kind(kernel: str, category: str, operator: str | None) -> str:
    """Return the kind of a kernel, copy or fill, one of `schema.KERNEL_KINDS`; a fill is `other` without an operator.

    Args:
        kernel: its name.
        category: its category in the trace, such as kernel or gpu_memcpy.
        operator: name of the operator that launched it; None without one.
    """
    return "copy" if "memcpy" in category else _kind(kernel, operator)


@cache
def _kind(kernel: str, operator: str | None) -> str:
    if is_collective(kernel):
        return "communication"
    if operator is not None:
        of_operator = own_operator_type(operator)
        if of_operator in _OF_OPERATORS:
            return of_operator
        if _COPIES.search(operator):
            return "copy"
        if of_operator not in _UNDECIDED:
            return "other"
    name = kernel.lower()
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


@cache
def is_of_generation(kernel: str) -> bool:
    """Return whether a kernel, by its name, caches keys and values, attends to a cache, or samples tokens."""
    return _GENERATES.search(kernel.lower()) is not None
