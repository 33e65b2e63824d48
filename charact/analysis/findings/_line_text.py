"""What a line of source code does that costs time, and what to do about it, by patterns in its text."""

import re
from typing import NamedTuple

from charact.analysis.findings._watched_case import SampledLine


class LineAdvice(NamedTuple):
    """What a line does, as the end of "train.py:39 ...", and a remedy in the imperative."""

    does: str
    remedy: str


_VECTORIZE = ("vectorize it: index and compute on whole tensors at once (torch._foreach_... on lists of tensors, in "
              "place where possible) instead of a Python loop; compute once what does not change, and keep it")
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"torch\.(tensor|as_tensor|FloatTensor|LongTensor)\(|np\.array\(|\.tolist\(\)",
     "copies values one by one between Python and arrays",
     "keep the data in one NumPy array or tensor and convert it at once (torch.from_numpy, or indexing a tensor)"),
    (r"\btorch\.save\(|\.save\(|save_checkpoint|pickle\.dump|save_pretrained|np\.save",
     "saves", "save less often, or in a background thread or process"),
    (r"deepcopy\(", "copies whole objects", "copy only what changes, in place (torch._foreach_lerp_ or copy_)"),
    (r"\.item\(\)|float\(|\.cpu\(\)|\.numpy\(\)",
     "reads single values out of tensors",
     "collect the values as tensors, read them every 50 iterations, and compute norms of many tensors with "
     "torch._foreach_norm"),
    (r"\bsleep\(|\.wait\(|\.join\(|\.get\(|\.recv\(|requests\.|urlopen|\.post\(|\.log\(",
     "waits", "do it in a background thread, or less often"),
    (r"\bprint\(|\.write\(|logging|logger\.|\.flush\(|tqdm|\.add_(scalar|histogram|image)",
     "writes a log", "write less often"),
    (r"\bopen\(|\.read\(|np\.load|imread|Image\.open|torch\.load|json\.load|read_csv",
     "reads files", "read them once and keep the result, or read them in the DataLoader's workers"),
    (r"gc\.collect|empty_cache", "frees memory that would be reused", "remove the call"),
    (r"\bfor\b.*\bin\b|\bwhile\b|\bappend\(", "computes in a Python loop", _VECTORIZE),
    (r"shuffle\(|permutation|randperm|random\.sample", "shuffles",
     "shuffle indices as one tensor (torch.randperm) instead of a Python list"),
    (r"sorted\(|\.sort\(", "sorts", "sort once, in advance"),
)


def advice_for(line: SampledLine) -> LineAdvice:
    """Return what a sampled line does and the remedy: by its text, or by whether it waits or computes."""
    texts = [line.place.text or "", line.library or "", line.function]
    if line.waiting_frac is not None and line.waiting_frac > 0.5:
        return LineAdvice("waits (the program's thread uses no processor)",
                          "do it in a background thread, less often, or not at all")
    for text in texts:
        for pattern, does, remedy in _PATTERNS:
            if re.search(pattern, text):
                return LineAdvice(does, remedy)
    if line.library:
        return LineAdvice(f"calls {line.library}", "do it less often, or on whole tensors at once")
    if line.in_loop:
        return LineAdvice("computes in a Python loop", _VECTORIZE)
    return LineAdvice("computes outside of the model",
                      "do it less often or at the end, vectorize it (torch.bincount, indexing), or keep what does not "
                      "change")
