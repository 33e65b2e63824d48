"""Recognition of kernels that use tensor cores (NVIDIA) or matrix cores (AMD), by their names.

A new kind of kernel is one row. Generated kernels (Triton) have no such names and count as not using them, as do
kernels whose names exclude it: `sgemm`, `simt`, xmma's in float32.
"""

import re
from functools import cache

_RULES: tuple[tuple[str, str], ...] = (
    # pattern (case-sensitive: MIOpen's SubTensorOp is elementwise), origin of such names
    (r"tensorop", "CUTLASS, operator class TensorOp (include/cutlass/library); also in cuBLAS and cuDNN"),
    (r"(?<![0-9A-Za-z])[hsdib](884|1688|16816|161616|8816|16832|16864|168256)(?!\d)",
     "cuBLAS, cuDNN, CUTLASS: accumulator's type and the instruction's shape m, n, k, Volta to Ada, as in s16816gemm"),
    (r"(?<![A-Za-z])[hidbqo]mma(?![a-z])", "the instructions in machine code: HMMA, IMMA, DMMA, BMMA, QMMA, OMMA"),
    (r"gmma", "Hopper's instructions for groups of warps: GMMA in machine code, wgmma in PTX"),
    (r"wmma", "the warp matrix interface of CUDA C++, and of AMD's graphics cards from RDNA 3 on"),
    (r"xmma_.*(bf16|f16|tf32|i8|e4m3|e5m2)", "cuBLAS and cuDNN: xmma's kernels name the types that they multiply"),
    (r"(^|[^a-z])nvjet_", "cuBLAS from CUDA 12.8 on, Hopper and later"),
    (r"flash_(fwd|bwd)(?!.*(combine|dot_do_o|convert_d|clear_d))|FlashAttn(Fwd|Bwd)Sm(80|90|100)",
     "FlashAttention (csrc/flash_attn/src, hopper/): all but its preparing and combining kernels"),
    (r"_flash_(fprop|bprop)", "cuDNN's attention"),
    (r"fmha_cutlass[FB]_(b?f16\w*_sm[789]|f32\w*_sm80)",
     "PyTorch's memory-efficient attention: from Volta on in 16 bits, from Ampere on in float32, too"),
    (r"^Cijk_.*_MI\d", "rocBLAS, hipBLASLt (Tensile): MI and the matrix instruction's shape"),
    (r"mfma|xdl", "AMD: the instruction's name, and what Composable Kernel and MIOpen call it"),
    (r"^igemm_\w+_gtcx", "MIOpen's implicit GEMM in assembly: x for xdlops"),
    (r"Fmha(Fwd|BwdDQDKDV)Kernel", "Composable Kernel's attention (include/ck_tile/ops/fmha)"),
)
_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _RULES))


@cache
def uses_tensor_cores(kernel: str) -> bool:
    """Return whether a kernel, by its name, uses tensor cores or matrix cores."""
    return _PATTERN.search(kernel) is not None
