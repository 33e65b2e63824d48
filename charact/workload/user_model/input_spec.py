"""Parser of `--input-spec`, which describes a model's inputs in one line.

    3xSxS                                        one input, float32, (batch, 3, S, S)
    3xSxS -> int64[1000]                         and a label from 0 to 999 for every sample
    ids=int64[30522] S, mask=int64[1:2] S        two inputs by name, both (batch, S): words, and a mask of ones

An input is `name=type[range] shape`; all but the shape is optional: without a name it is passed by position, without a
type it is float32. A shape joins numbers, S (the input size) and B (the batch) by x; the batch is first if B is not
named. For a single number per sample, write only the type. A range is as in Python: [10] is 0 to 9, [5:10] is 5 to 9;
floats without a range are normally distributed. After -> is the target that outputs are compared with.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charact.core.errors import UserError

_INTEGERS: dict[str, tuple[int, int]] = {
    "int64": (-(2**63), 2**63), "int32": (-(2**31), 2**31), "uint8": (0, 256), "bool": (0, 2),
}
"""Integer types, and the widest range of each."""
TYPES = ("float32", *_INTEGERS)

_INPUT = re.compile(rf"(?:(?P<name>\w+)\s*=\s*)?(?:(?P<type>{'|'.join(TYPES)})\b\s*(?:\[(?P<range>[^\]]*)\])?)?"
                    r"\s*(?P<shape>.*)")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_RANGE = re.compile(rf"\s*(?:(?P<low>{_NUMBER})\s*:)?\s*(?P<high>{_NUMBER})\s*", re.IGNORECASE)
_MAX_DIMENSION = 10**9
_MASK_END = 2
"""Value after the largest one of a mask, or of the types of two sentences."""


@dataclass(frozen=True)
class TensorSpec:
    """One input, or the target; an axis is its length, `S` or `B`."""

    name: str | None
    type: str
    range: tuple[float, float] | None
    """First value, and the one after the last; None for normally distributed numbers."""
    axes: tuple[int | str, ...]

    @property
    def batch_axis(self) -> int:
        """Axis along which samples are joined into a batch."""
        return self.axes.index("B")

    @property
    def is_text(self) -> bool:
        """Whether it has indices of tokens: integers of more than two values, S of them in each sample."""
        is_row = [axis for axis in self.axes if axis != "B"] == ["S"]
        return is_row and self.type in ("int64", "int32") and self.range is not None and self.range[1] > _MASK_END

    def sample(self, generator: np.random.Generator, input_size: int) -> NDArray[Any]:
        """Return synthetic values for one sample, in its shape without the batch."""
        shape = tuple(input_size if axis == "S" else int(axis) for axis in self.axes if axis != "B")
        if self.type != "float32":
            assert self.range is not None
            low, high = map(int, self.range)
            return np.asarray(generator.integers(low, high, shape, self.type))
        if self.range is None:
            return np.asarray(generator.standard_normal(shape, np.float32))
        return generator.uniform(*self.range, shape).astype(np.float32)


@dataclass(frozen=True)
class InputSpec:
    """A model's inputs, positional ones first, and the target of its outputs, if any."""

    text: str
    inputs: tuple[TensorSpec, ...]
    target: TensorSpec | None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors of a batch, in order."""
        return self.inputs if self.target is None else (*self.inputs, self.target)


def parse_input_spec(text: str) -> InputSpec:
    """Parse `--input-spec`."""
    text = " ".join(text.split())
    inputs_text, arrow, target_text = text.partition("->")
    if "->" in target_text:
        raise _wrong("has two ->: give one target")
    if not inputs_text.strip():
        raise _wrong("names no input: write its shape, as in 3xSxS")
    inputs = tuple(_tensor(part) for part in inputs_text.split(","))
    names = [one.name for one in inputs]
    if None in names[next((i for i, name in enumerate(names) if name), len(names)):]:
        raise _wrong("has an input without a name after one with a name: put it first, or name it")
    for name in names:
        if name is not None and names.count(name) > 1:
            raise _wrong(f"has the name {name} twice: remove one")
    if not any("S" in one.axes for one in inputs):
        raise _wrong("has no S: write S in place of the input size, as in 3xSxS, and its values in --input-sizes")
    target = _tensor(target_text) if arrow else None
    if target is not None and target.name is not None:
        raise _wrong(f"names the target after -> ({target.name}): leave the name out")
    return InputSpec(text, inputs, target)


def _tensor(text: str) -> TensorSpec:
    text = text.strip()
    found = _INPUT.fullmatch(text)
    if not text or found is None:
        raise _wrong("has an empty input: write a shape, as in 3xSxS")
    name, kind, shape = found["name"], found["type"] or "float32", found["shape"]
    if name is not None and not name.isidentifier():
        raise _wrong(f"has the name '{name}', which no argument can have")
    if not shape and found["type"] is None:
        raise _wrong(f"has no shape for {name}: write it, as in {name}=3xSxS")
    axes = tuple(_axis(part, text) for part in re.split("x", shape)) if shape else ()
    if axes.count("B") > 1:
        raise _wrong(f"has more than one B in '{text}': there is one batch")
    return TensorSpec(name, kind, _range(kind, found["range"], text), axes if "B" in axes else ("B", *axes))


def _axis(text: str, whole: str) -> int | str:
    text = text.strip()
    if text in ("S", "B"):
        return text
    if not re.fullmatch(r"\d{1,10}", text):
        raise _wrong(f"has '{text[:40]}' in '{whole[:80]}', which is neither a number, S nor B: write a shape as in "
                     f"3xSxS, and before it one of {', '.join(TYPES)}")
    if not 0 < int(text) <= _MAX_DIMENSION:
        raise _wrong(f"has an axis of {text} in '{whole[:80]}': it must be from 1 to {_MAX_DIMENSION:,}")
    return int(text)


def _range(kind: str, text: str | None, whole: str) -> tuple[float, float] | None:
    if text is None:
        if kind in ("float32", "bool"):
            return None if kind == "float32" else (0, 2)
        raise _wrong(f"has no range in '{whole[:80]}': write how many values there are, as in {kind}[1000]")
    found = _RANGE.fullmatch(text)
    number = float if kind == "float32" else int
    try:
        if found is None:
            raise ValueError
        low, high = number(found["low"] or 0), number(found["high"])
    except ValueError:
        raise _wrong(f"has the range [{text[:40]}]: write it as [1000] or [5:10]") from None
    smallest, largest = _INTEGERS.get(kind, (-3e38, 3e38))
    if not smallest <= low < high <= largest:
        raise _wrong(f"has the range [{text[:40]}], which no {kind} can be in: write it as [1000] or [5:10]")
    return low, high


def _wrong(what: str) -> UserError:
    return UserError(f"--input-spec {what}")
