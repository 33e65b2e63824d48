"""Allowlist of bricks: ATen operators and string arguments.

Suites may come from untrusted authors, so a brick may call only the operators listed here. Each of them is a function
of tensors. None reads or writes files, takes an address, a storage or a generator, makes a non-dense tensor, or skips
the validation of an argument (as `unsafe` of `segment_reduce` does).

The list was collected with PyTorch 2.13 by `benchmarks/brick_operators.py`, which captures the workloads and models of
torchvision, timm and transformers. It also holds PyTorch's public functions of the same kinds, if their schemas have
only tensors, numbers, booleans, dtypes and short strings. Fuzzing (`tests/fuzz/test_suites.py`): no operator ended the
process in 40,000 random bricks, of which 18,449 ran. In-place operators, such as `relu_`, are listed without the
underscore.
"""

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp
    clamp_max clamp_min clip conj conj_physical copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2
    expm1 fill fix float_power floor floor_divide fmax fmin fmod frac ge greater greater_equal gt heaviside hypot imag
    isclose isfinite isinf isnan isneginf isposinf ldexp le lerp less less_equal lgamma log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mul multiply
    nan_to_num ne neg negative not_equal polar positive pow rad2deg real reciprocal remainder resolve_conj resolve_neg
    round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub subtract tan tanh true_divide trunc where
    xlogy zero
"""
_ACTIVATIONS = """
    celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax mish prelu relu relu6
    rrelu selu silu softmax softplus softshrink threshold _log_softmax _prelu_kernel _safe_softmax _softmax
"""
_PRODUCTS = """
    addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d convolution _convolution dot einsum ger inner kron linear matmul mm mv outer tensordot vdot
"""
_SHAPES = """
    adjoint alias atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat channel_shuffle chunk clone
    column_stack concat concatenate contiguous copy detach diag diag_embed diagonal dsplit dstack expand expand_as
    flatten flip fliplr flipud hsplit hstack lift_fresh lift_fresh_copy mH mT meshgrid moveaxis movedim narrow numpy_T
    matrix_H permute pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape reshape_as _reshape_alias roll
    rot90 select slice split split_with_sizes squeeze stack swapaxes swapdims t tensor_split tile to _to_copy transpose
    type_as unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes _unsafe_view unsqueeze view
    view_as view_as_complex view_as_real vsplit vstack
"""
_REDUCTIONS = """
    all amax amin aminmax any argmax argmin count_nonzero cross cummax cummin cumprod cumsum diff dist frobenius_norm
    linalg_norm linalg_vector_norm logcumsumexp logsumexp max mean median min mode nanmean nansum norm prod quantile std
    std_mean sum sum_to_size trace var var_mean
"""
_ORDER = "argsort bucketize isin kthvalue msort searchsorted sort topk"
_PLACES = """
    argwhere embedding gather index index_add index_copy index_fill index_put index_select masked_scatter
    masked_select nonzero one_hot scatter scatter_add scatter_reduce select_scatter slice_scatter take take_along_dim
    tril triu
"""
_NEW = """
    arange empty empty_like empty_permuted empty_strided eye full full_like linspace new_empty new_empty_strided
    new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zeros zeros_like
    hamming_window hann_window
"""
_RANDOM = """
    alpha_dropout bernoulli dropout exponential feature_alpha_dropout feature_dropout native_dropout normal rand
    rand_like randint randint_like randn randn_like random randperm uniform
"""
_NORMALIZATIONS = """
    batch_norm cosine_similarity group_norm instance_norm layer_norm _fused_rms_norm native_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm native_layer_norm
    pairwise_distance cdist rms_norm
"""
_POOLING = """
    adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
"""
_IMAGES = """
    affine_grid_generator col2im constant_pad_nd grid_sampler grid_sampler_2d grid_sampler_3d im2col pad
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d
"""
_ATTENTION = """
    scaled_dot_product_attention _native_multi_head_attention _transformer_encoder_layer_fwd
    _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu
"""
_RECURRENT = """
    gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell mkldnn_rnn_layer _cudnn_rnn
    _thnn_fused_gru_cell _thnn_fused_lstm_cell
"""
_LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss hinge_embedding_loss
    huber_loss kl_div l1_loss margin_ranking_loss mse_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward
    nll_loss_nd poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""
_RETURN_NUMBERS = ("_local_scalar_dense", "equal", "item", "is_nonzero", "_fused_sdp_choice")
"""Operators that return a Python number to the model's code."""

OPERATORS = frozenset(" ".join([
    _ELEMENTWISE, _ACTIVATIONS, _PRODUCTS, _SHAPES, _REDUCTIONS, _ORDER, _PLACES, _NEW, _RANDOM, _NORMALIZATIONS,
    _POOLING, _IMAGES, _ATTENTION, _RECURRENT, _LOSSES, *_RETURN_NUMBERS,
]).split())  # fmt: skip
"""Names of the allowed operators, without namespace and overload."""

STRINGS = frozenset([
    "none", "mean", "sum", "tanh", "floor", "trunc", "prod", "amax", "amin", "linear", "lower", "higher", "midpoint",
    "nearest", "ij", "xy", "fro", "nuc", "valid", "same", "constant", "reflect", "replicate", "circular", "left",
    "right", "batchmean",
])  # fmt: skip
"""Allowed string arguments, in addition to the equations of `einsum`."""

MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
LAYOUTS = ("strided",)
