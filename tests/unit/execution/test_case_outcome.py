"""What outcomes say in words."""

import pytest

from charact.execution.case_outcome import failure, one_line, size

ONEDNN = ("could not create a primitive descriptor for the {} primitive. Run workload with environment variable "
          "ONEDNN_VERBOSE=all to get additional diagnostic information.")


@pytest.mark.parametrize(("num_bytes", "words"), [
    (0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (300 * 2**20, "300 MiB"), (80 * 2**30, "80 GiB"),
    (1_234_567_890, "1.15 GiB"),
])
def test_bytes_in_words(num_bytes: int, words: str) -> None:
    assert size(num_bytes) == words


@pytest.mark.parametrize(("message", "precision", "words"), [
    (ONEDNN.format("LSTM forward propagation"), "bf16",
     "this CPU cannot run an LSTM in bf16 (oneDNN has no kernel for it): use --precision fp32"),
    (ONEDNN.format("matmul"), None,
     "this CPU cannot run a matmul in this precision (oneDNN has no kernel for it): use --precision fp32"),
    (ONEDNN.format("inner product weights gradient"), "fp32",
     "this CPU cannot run an inner product weights gradient in fp32 (oneDNN has no kernel for it)"),
    ("could not create a descriptor for a pooling backward propagation primitive", "fp16",
     "this CPU cannot run a pooling backward in fp16 (oneDNN has no kernel for it): use --precision fp32"),
    ("could not create a primitive", "bf16",
     "oneDNN cannot create the kernel of an operator in bf16 on this CPU: use --precision fp32"),
    ("mkldnn_matmul: bf16 path needs the cpu support avx_ne_convert or avx512bw, avx512vl and avx512dq", "bf16",
     "this CPU cannot run mkldnn_matmul in bf16 (it needs avx_ne_convert or avx512bw, avx512vl and avx512dq): "
     "use --precision fp32"),
    ("could not create a stream", "bf16", "RuntimeError: could not create a stream"),
])
def test_a_missing_kernel_in_words(message: str, precision: str | None, words: str) -> None:
    assert failure(RuntimeError(message), precision) == {"status": "error", "reason": words}
    assert one_line(ValueError(message), precision).startswith("ValueError: ")


def test_an_operator_without_a_dtype_in_words() -> None:
    error = NotImplementedError("\"avg_pool3d_out_frame\" not implemented for 'BFloat16'")
    words = "PyTorch has no kernel of avg_pool3d_out_frame for bfloat16 on this device: use --precision fp32"
    assert one_line(error, "pure-bf16") == words


def test_a_line_that_announces_the_cause_is_followed_by_the_cause() -> None:
    error = RuntimeError("backend='inductor' raised:\nCppCompileError: C++ compile error\n\nCommand:\ng++ x.cpp\n"
                         "Output:\nx.cpp: In function 'f':\nx.cpp:2:4: error: 'at' is not a name\n  2 | at")
    assert one_line(error) == ("RuntimeError: backend='inductor' raised: CppCompileError: C++ compile error: "
                               "'at' is not a name")
    assert one_line(RuntimeError("it failed:")) == "RuntimeError: it failed:"
    assert one_line(RuntimeError("")) == "RuntimeError"
