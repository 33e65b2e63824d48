"""Descriptions and remedies of costly source lines, by patterns in their text."""

import re
from typing import NamedTuple

from charact.analysis.findings._watched_case import SampledLine


class LineAdvice(NamedTuple):
    """What a line does, as a verb phrase such as "reads files", and a remedy in the imperative."""

    does: str
    remedy: str


_VECTORIZE = ("vectorize the Python loop: index and compute whole tensors at once (torch._foreach_... for lists of "
              "tensors, in place where possible); compute values that do not change once, before the loop")
CREATORS = r"arange|zeros|ones|eye|tril|triu|full|linspace|meshgrid|sparse_\w+"
"""Functions of PyTorch that create tensors from few numbers, as a pattern."""
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"torch\.(tensor|as_tensor|FloatTensor|LongTensor)\(|np\.array\(|\.tolist\(\)",
     "converts between Python objects and tensors value by value",
     "keep the data in one NumPy array or tensor, and convert it at once: torch.from_numpy(array) or indexing"),
    (r"\btorch\.save\(|\.save\(|save_checkpoint|pickle\.dump|save_pretrained|np\.save",
     "saves to disk", "save less often, or in a background thread or process"),
    (r"(\S+) = (torch\.(cat|vstack|hstack|concat)|np\.(append|concatenate|vstack|hstack))\(.*\1",
     "adds to a tensor by copying all of it",
     "append to a list, and call torch.cat or torch.stack once, after the loop; or write into a tensor that is large "
     "enough from the start"),
    (rf"torch\.({CREATORS})\(",
     "creates tensors",
     "if they do not depend on the batch, create them once, before the loop, and keep them (register_buffer)"),
    (r"deepcopy\(", "makes deep copies",
     "copy only values that change, in place: tensor.copy_(other), or torch._foreach_lerp_ for averages of weights"),
    (r"\.item\(\)|(?<![.\w])float\(|\.cpu\(\)|\.numpy\(\)",
     "reads single values out of tensors",
     "collect the values as tensors and read them every 50 iterations; compute the norm of many tensors by "
     "torch.nn.utils.get_total_norm(tensors)"),
    (r"\bsleep\(|\.wait\(|\.join\(|\.get\(|\.recv\(|requests\.|urlopen|\.post\(|\.log\(",
     "waits", "do this in a background thread, or less often"),
    (r"\bprint\(|\.write\(|logging|logger\.|\.flush\(|tqdm|\.add_(scalar|histogram|image)",
     "writes a log", "log less often, such as every 50 iterations"),
    (r"Image\.open|imread|imdecode|decode_(jpeg|png|webp|gif|image)|\bPIL\.",
     "decodes images",
     "decode each image once, in advance, and keep the arrays; or decode in more of the DataLoader's workers"),
    (r"\bopen\(|\.read\(|np\.load|torch\.load|json\.load|read_csv",
     "reads files", "read each file once and keep its content in memory, or read in the DataLoader's workers"),
    (r"gc\.collect|empty_cache", "forces Python or PyTorch to free memory",
     "remove the call of gc.collect() or torch.cuda.empty_cache(): memory is freed and reused without it"),
    (r"\bfor\b.*\bin\b|\bwhile\b|\bappend\(", "computes in a Python loop", _VECTORIZE),
    (r"shuffle\(|permutation|randperm|random\.sample", "shuffles data",
     "shuffle a tensor of indices, torch.randperm(n), instead of a Python list"),
    (r"sorted\(|\.sort\(", "sorts data", "sort once, in advance"),
)


def advice_for(line: SampledLine) -> LineAdvice:
    """Return what a sampled line does and its remedy, by its text, or else by whether it waits."""
    texts = [line.place.text or "", line.library or "", line.function]
    if line.waits:
        return LineAdvice("waits (it uses no processor time)",
                          "do this in a background thread, less often, or not at all")
    for text in texts:
        for pattern, does, remedy in _PATTERNS:
            if re.search(pattern, text):
                return LineAdvice(does, remedy)
    if line.library:
        return LineAdvice(f"calls {line.library}", "call it less often, or on whole tensors at once")
    if line.in_loop:
        return LineAdvice("computes in a Python loop", _VECTORIZE)
    return LineAdvice("computes outside of the model's layers",
                      "do this less often or at the end of the epoch, vectorize it (torch.bincount, indexing), or "
                      "compute values that do not change once")
