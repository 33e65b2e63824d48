"""One color for each phase, memory category and group of operator types, the same in every view.

Colors are safe for the color-blind. No two of phases, operator groups, limits and cases have the same one.

Source: the qualitative schemes of P. Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021.
"""

import zlib

from charact.core.operator_types import OUTSIDE_OPERATORS, operator_group

PHASES = {
    "data": "#CCBB44", "forward": "#4477AA", "loss": "#AA3377", "backward": "#EE6677", "update": "#228833",
    "sample": "#553388", "communication": "#66CCEE", "other": "#BBBBBB",
}  # fmt: skip

STAGES = {"training": "#0077BB", "validation": "#33BBEE", "checkpointing": "#BBCC33"}

INFERENCE_PARTS = {"build": "#AAAA00", "read": PHASES["data"], "place": "#EE8866", "prediction": PHASES["forward"]}

PERCENTILES = {"p50": "#77AADD", "p90": "#44AA99", "p95": "#DDAA33", "p99": "#CC3311"}

DIRECTIONS = {"forward": PHASES["forward"], "backward_input": PHASES["backward"], "backward_weight": "#FFAABB"}

LAYOUTS = {"csr": "#0077BB", "csc": "#009988", "coo": "#EE7733", "bsr": "#CC3311", "bsc": "#DDAA33"}

CASES = ("#7766CC", "#CC6677", "#44AA99", "#AA4499", "#999933", "#88AACC", "#882255", "#117733", "#DDCC77", "#AA7755")
"""Colors of the cases of a run, in order; they repeat after the last. None is the color of a phase."""

CATEGORIES = {
    "weights": "#77AADD", "gradients": "#EE8866", "optimizer_state": "#44BB99", "activations": "#99DDFF",
    "temporary": "#EEDD88", "input": "#FFAABB", "workspaces": "#BBCC33", "unknown": "#DDDDDD",
    "unsharded_weights": "#AABBEE", "communication_buffers": "#CCAADD", "kv_cache": "#BBAA88",
}  # fmt: skip
"""Colors of memory categories: pale, as those of phases are saturated. None is the color of a phase."""

LIMITS = {
    "data": "#997700", "communication": "#6699CC", "host": "#BB5566", "compute": "#004488", "bandwidth": "#DDAA33",
    "not known": "#CCCCCC",
}  # fmt: skip
"""What bounds a part of an iteration's time."""

GROUPS = {
    "convolution": "#0077BB", "GEMM": "#33BBEE", "attention and recurrent": "#EE3377", "normalization": "#009988",
    "elementwise": "#AAAA00", "data movement": "#EE7733", "optimizer": "#225522", "communication": "#663333",
    "other": "#777777",
}  # fmt: skip
"""Colors of groups of operator types."""

KERNEL_KINDS = {
    "GEMM": GROUPS["GEMM"], "attention": GROUPS["attention and recurrent"], "normalization": GROUPS["normalization"],
    "communication": GROUPS["communication"], "copy": GROUPS["data movement"], "other": GROUPS["other"],
}  # fmt: skip
"""Colors of kinds of kernels: those of the groups of operator types."""

GAP_CAUSES = {"launch": "#BB5566", "queue": "#DDAA33", "copy": "#EE7733", "host": "#997700", "kernel": "#777777"}
"""Colors of what the time between an inference server's steps is for."""
_OUTSIDE = "#DDDDDD"
"""Color of a phase's time outside of operators."""

_OPERATIONS = {
    "gemm": "#33BBEE", "sparse_gemm": "#997700", "convolution": "#0077BB", "rnn": "#882255", "attention": "#EE3377",
    "softmax": "#DDAA33", "normalization": "#009988", "embedding": "#BB5566", "copy": "#EE7733",
    "optimizer": "#225522", "all_reduce": "#663333",
}  # fmt: skip
_SPARE = ("#BBCC33", "#FFAABB", "#6699CC", "#AAAA00")

REMAINDER = "#EFEFEF"

SLOWER, FASTER = "#CC3311", "#009988"
"""Colors of the slower and faster parts of a difference."""


def operator_type(name: str) -> str:
    """Return the color of an operator type: that of its group."""
    return _OUTSIDE if name == OUTSIDE_OPERATORS else GROUPS[operator_group(name)]


def operation(name: str) -> str:
    """Return the color of a basic operation; an unknown one always gets the same spare color."""
    return _OPERATIONS.get(name) or _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]
