"""What kind of work an operator does, by its name."""

import pytest

from charact.core.operator_types import OPERATOR_TYPES, operator_type


@pytest.mark.parametrize(("name", "kind"), [
    ("aten::mkldnn_convolution", "convolution"), ("ConvolutionBackward0", "convolution"),
    ("autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
    ("aten::cudnn_convolution", "convolution"), ("aten::addmm", "GEMM"), ("aten::mm", "GEMM"),
    ("aten::native_batch_norm_backward", "normalization"), ("aten::clamp_min_", "activation"),
    ("aten::threshold_backward", "activation"), ("aten::max_pool2d_with_indices", "pooling"),
    ("aten::_log_softmax_backward_data", "softmax"), ("aten::nll_loss_forward", "loss"),
    ("aten::_foreach_add_", "optimizer"), ("aten::_fused_adamw_", "optimizer"), ("aten::add_", "elementwise"),
    ("aten::rand", "random"), ("aten::empty_strided", "allocation"), ("TBackward0", "view"),
    ("aten::copy_", "data movement"), ("aten::cat", "data movement"), ("aten::mean", "reduction"),
    ("aten::_scaled_dot_product_flash_attention", "attention"), ("aten::lstm", "recurrent"),
    ("aten::mkldnn_rnn_layer", "recurrent"), ("aten::embedding_dense_backward", "embedding"),
    ("aten::_local_scalar_dense", "host sync"), ("torch::autograd::AccumulateGrad", "autograd"),
    ("c10d::allreduce_", "communication"), ("c10d::odd", "communication"), ("CopyAccumulateGrad", "data movement"),
    ("autograd::engine::evaluate_function: torch::autograd::CopyAccumulateGrad", "autograd"),
    ("aten::native_dropout", "dropout"), ("mine::strange", "other"),
])
def test_operator_types(name: str, kind: str) -> None:
    assert operator_type(name) == kind
    assert kind in OPERATOR_TYPES


def test_an_unknown_operator_inherits_the_type_around_it() -> None:
    assert operator_type("mine::strange", "GEMM") == "GEMM"
