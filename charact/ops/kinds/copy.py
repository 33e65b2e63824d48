"""Copies within a device's memory, or between pinned memory of the host and a CUDA device.

There are no FLOP. Bytes are those read plus those written; for a transfer between two memories, those transferred. A
copy is exact.
"""

import torch
from torch import Tensor

from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, flattened
from charact.ops.parsing import malformed, whole_numbers

_TRANSFERS = ("host_to_device", "device_to_host")
_CHECKED_ELEMENTS = 2**22


class _Copy(Kind):
    name = "copy"
    syntax = "copy:NUMBERS[:host_to_device|:device_to_host]"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `16777216`: how many numbers, of the precision that it runs in."""
        numbers, colon, transfer = sizes.partition(":")
        if colon and transfer not in _TRANSFERS:
            raise malformed(sizes, self.syntax)
        count, = whole_numbers(numbers, 1, self.syntax)
        return Problem(self.name, f"{self.name}:{count}{colon}{transfer}",
                       {"numbers": count, "way": transfer or "within"})

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        return float(itemsize * int(problem.sizes["numbers"]) * (2 if problem.sizes["way"] == "within" else 1))

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        """Return why it is not supported: transfers need a CUDA device, and two precisions cover all sizes."""
        if problem.sizes["way"] != "within" and device.type != "cuda":
            return "a transfer needs a CUDA device: use --device cuda, or copy:NUMBERS for a copy within memory"
        if precision in ("tf32", "int8"):
            return f"a copy of {precision} is one of as many bytes: use --precision fp32"
        return None

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        count, way = int(problem.sizes["numbers"]), str(problem.sizes["way"])
        generator, dtype = torch.Generator().manual_seed(0), DTYPES[precision]

        def place(on_host: bool) -> Tensor:
            if on_host and way != "within":
                return torch.empty(count, dtype=dtype, pin_memory=True)
            return torch.empty(count, dtype=dtype, device=device)

        def inputs() -> list[Tensor]:
            numbers = torch.randn(count, generator=generator).to(dtype)
            # Written first: the first write to a page is slower.
            target = place(on_host=way == "device_to_host").zero_()
            return [target, place(on_host=way == "host_to_device").copy_(numbers)]

        few = slice(_CHECKED_ELEMENTS)

        def compared(result: Tensor) -> Tensor:
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # the copy to the host may not have ended
            return flattened([result[few]])

        return Prepared(inputs, lambda target, source: target.copy_(source, non_blocking=True),
                        lambda _, source: flattened([source[few]]), compared, 0.0)


KIND = _Copy()
