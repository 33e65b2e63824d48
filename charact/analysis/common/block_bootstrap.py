"""Circular-block bootstrap of consecutive values, and its medians without sorting each resample.

Source: D. N. Politis, J. P. Romano, A circular block-resampling procedure for stationary data (1992).
"""

import math

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Places = NDArray[np.int64]

NUM_RESAMPLES = 1000


def block_starts(num_values: int) -> tuple[Places, int]:
    """Return the first position of each block of each resample, and the length of a block, about sqrt(n).

    The random numbers are the same in each call. The last block is cut so that a resample has as many values.
    """
    generator, length = np.random.default_rng(0), round(math.sqrt(num_values))
    return generator.integers(0, num_values, (NUM_RESAMPLES, math.ceil(num_values / length))), length


def resampled_medians(values: Values) -> Values:
    """Return the median of each resample.

    A wavelet matrix of the ranks selects the middle value of all resamples together, in time O(sqrt(n) log n) each.
    """
    num_values = len(values)
    starts, length = block_starts(num_values)
    ends = starts + length
    ends[:, -1] -= length * starts.shape[1] - num_values
    order = np.argsort(values, kind="stable")
    ranks = np.empty(num_values, dtype=np.int64)
    ranks[order] = np.arange(num_values)
    middles = {(num_values - 1) // 2, num_values // 2}
    medians = [values[order][_selected(ranks, starts, ends, middle)] for middle in middles]
    return np.asarray(np.mean(medians, axis=0), dtype=np.float64)


def _selected(ranks: Places, starts: Places, ends: Places, position: int) -> Places:
    """Return the rank at a position, from 0, of the sorted ranks of each resample, bit by bit from the highest.

    Each level divides the ranks stably by a bit, and maps the blocks into the half that has the position.
    """
    sequence = np.concatenate([ranks, ranks])  # blocks go on at the start
    left, rank = np.full(len(starts), position), np.zeros(len(starts), dtype=np.int64)
    for bit in reversed(range((len(ranks) - 1).bit_length())):
        is_one = (sequence >> bit & 1).astype(bool)
        num_zeros = np.concatenate([[0], np.cumsum(~is_one)])
        zeros_before, zeros_until = num_zeros[starts], num_zeros[ends]
        inside = (zeros_until - zeros_before).sum(axis=1)
        goes_up = left >= inside
        rank |= goes_up.astype(np.int64) << bit
        left = np.where(goes_up, left - inside, left)
        up = goes_up[:, None]
        starts = np.where(up, num_zeros[-1] + starts - zeros_before, zeros_before)
        ends = np.where(up, num_zeros[-1] + ends - zeros_until, zeros_until)
        sequence = np.concatenate([sequence[~is_one], sequence[is_one]])
    return rank
