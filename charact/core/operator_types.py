"""Operator types: classification of operators by name.

A new type or rule is one row. Names are compared in lower case without underscores, so that one rule matches
`aten::native_batch_norm`, `NativeBatchNormBackward0` and `aten::cudnn_batch_norm_backward`.
"""

import re
from functools import cache

_RULES: tuple[tuple[str, str, str], ...] = (
    # type, meaning, pattern; the first match decides
    ("communication", "collectives and point-to-point between ranks", r"c10d|nccl|gloo|allreduce|allgather|"
                      r"reducescatter|alltoall|multimem"),
    ("compiled", "code that torch.compile generated, and its checks",
     r"^compiledf|^torch-compiledregion|^torchdynamo|^triton(poi|red|per|tem)|cppfused|^aotautograd"),
    ("optimizer", "multi-tensor and fused parameter updates",
     r"^foreach|^amp(foreach|update)|^fused(adam|sgd|adagrad)"),
    ("attention", "scaled dot-product attention", r"scaleddotproduct|flashattention|efficientattention|multiheadatt"),
    ("recurrent", "RNN, LSTM and GRU cells and layers", r"lstm|gru|rnn"),
    ("loss", "loss functions", r"nllloss|crossentropy|mseloss|l1loss|kldiv|huberloss|marginloss|ctcloss"),
    ("embedding", "table look-ups", r"embedding"),
    ("convolution", "convolutions and their gradients", r"conv(olution|\d|transpose|depthwise|tbc)|slowconv|thnnconv"),
    ("GEMM", "matrix products", r"^(t?addmm|mm|bmm|baddbmm|addbmm|matmul|linear|mkldnnlinear|einsum|dot|vdot|mv|addmv|"
                                r"outer|addr|bilinear|int.*mm|scaledmm)(backward)?$|gemm"),
    ("normalization", "batch, layer, group and other norms", r"(batch|layer|group|instance|rms|weight)norm|renorm"),
    ("pooling", "pooling and resampling", r"pool|upsample|interpolat|gridsample"),
    ("softmax", "softmax and log-softmax", r"softmax|logsumexp"),
    ("dropout", "dropout masks and their use", r"dropout|bernoulli"),
    ("activation", "pointwise non-linearities", r"^(p|r|c|s)?(re|e|ge|se|ce)lu\d?|silu|mish|glu|sigmoid|hardtanh|"
                                                r"hardswish|softplus|softsign|leakyrelu|threshold|^clampmin|^tanh"),
    ("random", "random numbers", r"^(rand|uniform|normal|exponential|multinomial|randperm|randint)"),
    ("allocation", "allocating and filling memory", r"^(empty|zeros?|ones?|full|fill|newempty|newzeros|newfull|newones|"
                                                    r"resize|arange|scalartensor|lift|liftfresh|eye|linspace|set)"),
    ("view", "new shapes over the same memory", r"^(view|asview|reshape|t|transpose|permute|asstrided|expand|slice|"
                                                r"select|detach|squeeze|unsqueeze|alias|split|chunk|unbind|narrow|flatten|"
                                                r"unflatten|numpyt|movedim|swapaxes|resolve(conj|neg)|conj|unsafe(view|split|"
                                                r"chunk)|diagonal|unfold|real|viewas|expandas|reshapealias|"
                                                r"unsafesplitwithsizes|splitwithsizes)(with.*|copy|dim|int|backward)?$"),
    ("data movement", "copies, joins, gathers and dtype or layout changes",
     r"copy|clone|contiguous|^to$|^tocopy|todense|tomkldnn|^cat|^stack|^concat|^pad|constantpad|reflectionpad|"
     r"replicationpad|^gather|^scatter|index|^roll|^flip|^repeat|^tile|^take|tril|triu|pinmemory|memcpy|memset|"
     r"^maskedselect|^onehot|reorder|todevice"),
    ("reduction", "sums, means, extrema, norms, sorts",
     r"^(sum|mean|prod|max|min|amax|amin|aminmax|argmax|argmin|norm|linalgvectornorm|cumsum|cumprod|std|var|any|all|"
     r"topk|sort|argsort|unique|nonzero|bincount|histc|countnonzero|median|mode|isfinite|segmentreduce)"),
    ("elementwise", "pointwise arithmetic and comparison",
     r"^(i?(add|sub|mul|div|rsub|pow|sqrt|rsqrt|exp|expm1|log|log1p|abs|neg|sign|sgn|square|reciprocal|sin|cos|erf|"
     r"floor|ceil|round|frac|clamp|where|maskedfill|eq|ne|lt|le|gt|ge|logical.*|bitwise.*|maximum|minimum|lerp|addcmul|"
     r"addcdiv|fmod|remainder|nantonum|isnan|isinf|truedivide|floordivide|clip|not|and|or|xor|atan.*|cross))"
     r"(scalar|tensor)?(backward)?$"),
    ("host sync", "values read back to the host", r"^(item|localscalardense|isnonzero|equal|allclose)"),
    ("autograd", "bookkeeping of the backward pass", r"accumulategrad|^(graphroot|error|undefinedgrad|notimplemented)|"
                                                     r"runbackward|evaluatefunction|graddsum|autograd"),
)

WITHOUT_OPERATOR = "kernels without an operator"
"""Stands where an operator type does for kernels that no operator of a trace launched."""
OPERATOR_TYPES: dict[str, str] = {name: meaning for name, meaning, _ in _RULES} | {
    "other": "no rule matches the operator's name",
    WITHOUT_OPERATOR: "kernels of a trace that no operator launched, such as those of replayed graphs",
}
OPERATOR_GROUPS: dict[str, tuple[str, ...]] = {
    "convolution": ("convolution",),
    "GEMM": ("GEMM",),
    "attention and recurrent": ("attention", "recurrent", "softmax"),
    "normalization": ("normalization",),
    "elementwise": ("elementwise", "activation", "dropout", "random", "reduction", "pooling", "loss", "compiled"),
    "data movement": ("data movement", "view", "allocation", "embedding", "host sync"),
    "optimizer": ("optimizer",),
    "communication": ("communication",),
}
"""Types that a figure shows in one color; a type in none of them is in the group "other"."""
_GROUP_OF = {kind: group for group, kinds in OPERATOR_GROUPS.items() for kind in kinds}
OUTSIDE_OPERATORS = "outside operators"
"""Stands where an operator type does for the time of a phase outside of any operator."""
_PATTERNS = [(name, re.compile(pattern)) for name, _, pattern in _RULES]
_ENGINE = "autograd::engine::evaluate_function: "


@cache
def own_operator_type(operator: str) -> str | None:
    """Return the type of an operator by its name; None if no rule matches."""
    name = operator.removeprefix(_ENGINE).rpartition("::")[2]
    name = re.sub(r"Backward\d*$", "Backward", name).replace("_", "").replace(" ", "").lower()
    name = name.removeprefix("mps").removeprefix("xpu").removeprefix("cudnn").removeprefix("native")
    if operator.startswith("c10d"):
        return "communication"
    if operator.startswith(_ENGINE) and "AccumulateGrad" in operator:
        return "autograd"
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), None)


def operator_type(operator: str, ancestor_type: str | None = None) -> str:
    """Return the type of an operator: by its name, else its nearest classified ancestor's, else 'other'."""
    return own_operator_type(operator) or ancestor_type or "other"


def operator_group(kind: str) -> str:
    """Return the group of an operator type in `OPERATOR_GROUPS`, or 'other'."""
    return _GROUP_OF.get(kind, "other")
