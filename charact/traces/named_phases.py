"""Phases that programs name in their own annotations, such as `## forward ##`, `backward_pass` or `copy_batch`."""

import re
from functools import lru_cache

_MAX_LENGTH = 80
_WORDS = re.compile(r"h2d|[a-z]+")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FILLERS = frozenset([
    "a", "the", "of", "to", "for", "on", "in", "model", "net", "network", "compute", "computation", "calculate",
    "calculation", "calc", "run", "call", "do", "pass", "step", "phase", "stage", "time", "train", "training",
    "iteration", "iter", "batch", "minibatch", "microbatch", "micro", "mini", "mb",
])  # fmt: skip
"""Words that do not decide what an annotation is."""
_RULES: tuple[tuple[str, str, str], ...] = (
    # phase, words of which one is needed, others that may be next to them
    ("forward", "forward forwards fwd fprop inference", "propagation eval evaluation validation"),
    ("backward", "backward backwards bwd bprop backprop backpropagation", "loss propagation grad gradient gradients"),
    ("loss", "loss losses criterion", "function fn cross entropy bce ce mse nll total"),
    ("update", "optimizer optimiser optim opt optimization update",
     "update zero grad grads gradients weight weights param params parameter parameters adam adamw sgd"),
    ("update", "zero", "grad grads gradient gradients"),
    ("data", "data dataloader dataloading loader loading load fetch fetching prefetch h2d",
     "get next wait copy move read prepare preparation prep preprocess preprocessing transfer gpu cuda device host "
     "from input inputs"),
    ("data", "get next wait copy move read", "gpu cuda device host from"),
)
_SETS = [(phase, frozenset(needed.split()), frozenset(others.split())) for phase, needed, others in _RULES]
_DATA = next(needed for phase, needed, _ in _SETS if phase == "data")
_BATCHES = frozenset(["batch", "minibatch", "microbatch"])
_MODELS = frozenset(["model", "net", "network"])
"""With one of these, what is loaded is no batch."""


@lru_cache(maxsize=4096)
def phase_of_name(name: str) -> str | None:
    """Return the phase that an annotation of a program names; None if it names none, or several.

    A name with other words, such as `encoder.forward` or `forward_backward`, is not that of a whole phase.
    """
    if len(name) > _MAX_LENGTH or "::" in name:
        return None
    words = frozenset(_WORDS.findall(_CAPITAL.sub(" ", name).lower()))
    rest = words - _FILLERS
    for phase, needed, others in _SETS:
        if rest & needed and rest <= needed | others:
            if phase == "data" and (words & _MODELS or not (rest & _DATA or words & _BATCHES)):
                continue
            return phase
    return None
