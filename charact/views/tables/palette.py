"""One color for each phase, memory category and operator type, the same in every view, safe for the color-blind.

Source: the bright, light, muted and vibrant qualitative schemes of P. Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021.
"""

import zlib

PHASES = {
    "data": "#CCBB44", "forward": "#4477AA", "loss": "#AA3377", "backward": "#EE6677", "update": "#228833",
    "communication": "#66CCEE", "other": "#BBBBBB",
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
    "unsharded_weights": "#AABBEE", "communication_buffers": "#CCAADD",
}  # fmt: skip
"""Colors of memory categories: pale, as those of phases are saturated. None is the color of a phase."""

LIMITS = {
    "data": PHASES["data"], "communication": PHASES["communication"], "host": "#BB5566", "compute": "#004488",
    "bandwidth": "#44AA99", "not known": PHASES["other"],
}  # fmt: skip
"""What bounds a part of an iteration's time."""

_TYPES = {
    "convolution": "#0077BB", "GEMM": "#33BBEE", "attention": "#AA4499", "recurrent": "#882255",
    "normalization": "#44AA99", "activation": "#DDAA33", "pooling": "#999933", "elementwise": "#CC6677",
    "data movement": "#EE7733", "optimizer": "#228833", "loss": "#AA3377", "reduction": "#7788CC",
    "softmax": "#CCBB44", "embedding": "#117733", "dropout": "#DDCC77", "random": "#994455", "allocation": "#997700",
    "view": "#99DDFF", "host sync": "#CC3311", "autograd": "#BBAADD", "communication": "#66CCEE", "other": "#777777",
    "outside operators": "#DDDDDD",
}  # fmt: skip
_SPARE = ("#BBCC33", "#FFAABB", "#6699CC", "#AAAA00")

_OPERATIONS = {"gemm": "GEMM", "rnn": "recurrent", "copy": "data movement", "all_reduce": "communication"}
"""Basic operations whose operator type has another name."""

REMAINDER = "#EFEFEF"

SLOWER, FASTER = "#CC3311", "#009988"
"""Colors of the slower and faster parts of a difference."""


def operator_type(name: str) -> str:
    """Return the color of an operator type; an unknown type always gets the same spare color."""
    return _TYPES.get(name) or _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def operation(name: str) -> str:
    """Return the color of a basic operation: that of its operator type."""
    return operator_type(_OPERATIONS.get(name, name))
