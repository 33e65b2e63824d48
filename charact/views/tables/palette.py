"""One color for each phase, memory category and operator type, the same in every view, safe for the color-blind.

Source: the bright and muted qualitative schemes of P. Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021.
"""

import zlib

PHASES = {
    "data": "#CCBB44", "forward": "#4477AA", "loss": "#AA3377", "backward": "#EE6677", "update": "#228833",
    "communication": "#66CCEE", "other": "#BBBBBB",
}  # fmt: skip

STAGES = {"training": "#4477AA", "validation": "#66CCEE", "checkpointing": "#CCBB44"}

INFERENCE_PARTS = {"build": "#CCBB44", "read": "#EE6677", "place": "#228833", "prediction": "#4477AA"}

PERCENTILES = {"p50": "#4477AA", "p90": "#228833", "p95": "#CCBB44", "p99": "#EE6677"}

DIRECTIONS = {"forward": "#4477AA", "backward_input": "#EE6677", "backward_weight": "#CCBB44"}

LAYOUTS = {"csr": "#4477AA", "csc": "#228833", "coo": "#EE6677", "bsr": "#AA3377", "bsc": "#CCBB44"}

CASES = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE", "#332288", "#999933", "#882255", "#44AA99")
"""Colors of the cases of a run, in order; they repeat after the last."""

CATEGORIES = {
    "weights": "#4477AA", "gradients": "#EE6677", "optimizer_state": "#228833", "activations": "#66CCEE",
    "temporary": "#CCBB44", "input": "#AA3377", "workspaces": "#EE8866", "unknown": "#BBBBBB",
}  # fmt: skip

LIMITS = {
    "data": "#CCBB44", "communication": "#66CCEE", "host": "#AA3377", "compute": "#4477AA", "bandwidth": "#228833",
    "other": "#BBBBBB",
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

SLOWER, FASTER = "#EE6677", "#4477AA"
"""Colors of the slower and faster parts of a difference."""


def operator_type(name: str) -> str:
    """Return the color of an operator type; an unknown type always gets the same spare color."""
    return _TYPES.get(name) or _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def operation(name: str) -> str:
    """Return the color of a basic operation: that of its operator type."""
    return operator_type(_OPERATIONS.get(name, name))
