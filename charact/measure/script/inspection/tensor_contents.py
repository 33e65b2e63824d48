"""Contents of tensors: used rows of a gradient, denormal numbers, padding, and repeated rows."""

from collections.abc import Sequence

import torch

_CHUNK_ELEMENTS = 1 << 22
"""Number of elements that are read at once, which limits temporary memory."""
_MOST_ELEMENTS = 1 << 28
"""Maximum number of elements of a gradient that are read; of a larger gradient, evenly spaced rows are read."""
_SAMPLED_ELEMENTS = 1 << 20
"""Number of elements of an optimizer state that are read."""
_MOST_PADDING_ELEMENTS = 1 << 24
"""Maximum number of elements of an input that is searched for padding or repeated rows."""
_FEWEST_ROWS, _FEWEST_COLUMNS = 4, 8
"""Minimum numbers of an input's rows that are compared, and of values in each: short rows are alike by chance."""


def num_used_rows(gradient: torch.Tensor) -> int:
    """Return the number of rows with a nonzero element.

    *Error*: exact up to 2^28 elements; extrapolated from evenly spaced rows beyond.
    """
    if gradient.is_sparse:
        return int(torch.unique(gradient._indices()[0]).numel())
    step = -(-gradient.numel() // _MOST_ELEMENTS) or 1
    rows = gradient.detach()[::step]
    num_rows = max(1, _CHUNK_ELEMENTS // max(1, gradient[:1].numel()))
    used = sum(torch.linalg.vector_norm(chunk, float("inf"), dim=1).count_nonzero()
               for chunk in torch.split(rows, num_rows))
    return min(int(used) * step, gradient.shape[0])


def gradient_bytes(gradient: torch.Tensor) -> int:
    """Return the bytes of a dense or sparse gradient."""
    parts = [gradient._indices(), gradient._values()] if gradient.is_sparse else [gradient]
    return sum(part.numel() * part.element_size() for part in parts)


def denormal_frac(tensors: Sequence[torch.Tensor]) -> float:
    """Return the share of nonzero elements below the smallest normal number, in at most some million of them.

    The result is 0 if the processor treats such numbers as zero.
    """
    step = -(-sum(tensor.numel() for tensor in tensors) // _SAMPLED_ELEMENTS) or 1
    num_denormal = num_elements = 0
    for tensor in tensors:
        sample = tensor.detach().reshape(-1)[::step].abs()
        num_denormal += int(((sample > 0) & (sample < torch.finfo(sample.dtype).tiny)).sum())
        num_elements += sample.numel()
    return num_denormal / num_elements if num_elements else 0.0


def padding_frac(name: str, tensor: torch.Tensor) -> float | None:
    """Return the padded share of a mask or of padded identifiers [..., sequence]; None if the tensor is neither.

    The name of the argument, if it is a mask, contains "mask".
    """
    rows = tensor.detach().squeeze()
    rows = rows[None] if rows.dim() == 1 else rows
    if rows.dim() != 2 or rows.shape[1] < 2 or not 0 < rows.numel() <= _MOST_PADDING_ELEMENTS:
        return None
    if "mask" in name.lower():
        return _masked_frac(name, rows)
    if rows.dtype in (torch.int64, torch.int32):
        return max(_padded_frac(rows), _padded_frac(rows.flip(1))) or None
    return None


def _masked_frac(name: str, rows: torch.Tensor) -> float | None:
    """Return the padded share of a mask; None if a row changes its value more than once, or if the mask is causal."""
    if rows.is_floating_point():  # an additive mask, negative where it masks
        rows = rows >= 0 if bool((rows < 0).any()) else rows != 0
    elif rows.dtype is not torch.bool and not bool(((rows == 0) | (rows == 1)).all()):
        return None
    rows = rows.bool()
    if bool(((rows[:, 1:] != rows[:, :-1]).sum(1) > 1).any()):
        return None
    lengths = rows.sum(1)
    if len(rows) == rows.shape[1] > 1 and bool((lengths.sort().values.diff() == 1).all()):
        return None  # causal
    first, last = rows[:, 0], rows[:, -1]
    if bool((rows[:, :1] == rows).all()):
        token = "padding" not in name.lower()
    elif bool((first == first[0]).all()):
        token = bool(first[0])
    elif bool((last == last[0]).all()):
        token = bool(last[0])
    else:
        token = "padding" not in name.lower()
    return float((rows != token).double().mean())


def _padded_frac(rows: torch.Tensor) -> float:
    """Return the share of elements at the ends of rows that repeat one identifier which occurs nowhere else."""
    pad = rows[:, -1].mode().values
    is_pad = rows == pad
    trailing = is_pad.flip(1).long().cumprod(1).sum(1)
    if int(is_pad.sum()) != int(trailing.sum()) or int(trailing.max()) < 2 or bool(is_pad.all()):
        return 0.0
    return float(trailing.sum()) / rows.numel()


def num_repeated_rows(tensors: Sequence[torch.Tensor]) -> int | None:
    """Return the number of rows that equal an earlier row in every input of a call; None if rows cannot be compared.

    Boolean masks, tensors of fewer than two dimensions, very large tensors, and tensors expanded along the rows are
    left out. Rows cannot be compared if the inputs differ in their number of rows, if there are fewer than 4 rows or 8
    values in each, or if all values are equal.

    *Error*: rows whose projections on a fixed random vector are equal count as equal.
    """
    rows = [each.detach() for each in tensors if each.dim() > 1 and each.dtype is not torch.bool and each.stride(0)
            and 0 < each.numel() <= _MOST_PADDING_ELEMENTS]
    if not rows or len(rows[0]) < _FEWEST_ROWS or any(len(each) != len(rows[0]) for each in rows):
        return None
    if sum(each[0].numel() for each in rows) < _FEWEST_COLUMNS:
        return None
    generator = torch.Generator().manual_seed(0)
    sums = torch.zeros(len(rows[0]), dtype=torch.float64)
    varies = False
    for each in rows:
        values = each.flatten(1).to("cpu", torch.float64)
        varies = varies or bool((values != values[0, 0]).any())
        sums += (values * torch.rand(values.shape[1], dtype=torch.float64, generator=generator)).sum(1)
    return len(sums) - int(torch.unique(sums).numel()) if varies else None
