"""Texts about memory, shared by all views: series, peaks, growth, what fits and what did not."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from charact.core.units import needed_text
from charact.record.reader import Run
from charact.record.schema import NOT_SEARCHED
from charact.views.tables import format as fmt

AXES = {"pixel": "image area (pixels)", "token": "sequence length (tokens)",
        "lookup": "lookups per sparse feature", "unit of S": "S of --input-spec"}
"""Axis labels for input sizes, by the unit of a position of the input."""
_UNITS = {"pixel": " px", "token": " tokens", "lookup": " lookups", "unit of S": " (S)"}
PREDICTED_ONLY = "predicted only"
_NUM_LARGEST = 3


def size_text(position: str, input_size: float) -> str:
    """Return an input size as a tick of its axis: the side of a square image as 64²."""
    return f"{input_size:.0f}{'²' if position == 'pixel' else ''}"


def series(row: Any) -> str:
    """Name the series of cases that differ in input size only: resnet50 (imagenet), train, batch 8, fp32, cpu."""
    return ", ".join([model(row.workload, row.variant), row.mode, f"batch {row.batch_size}", row.precision, row.device,
                      *filter(None, [row.settings, row.ranks])])


def both_modes(row: Any) -> str:
    """Name a series that has training and inference: resnet50 (imagenet), batch 8, fp32, cpu."""
    return ", ".join([model(row.workload, row.variant), f"batch {row.batch_size}", row.precision, row.device,
                      *filter(None, [row.settings, row.ranks])])


def batches(row: Any) -> list[str]:
    """Return the batch of each rank and of all together, of a row with `ranks`; nothing for a single process."""
    if not row.ranks:
        return []
    num_ranks = int(row.ranks.split()[-2])
    batch, in_all = fmt.number(row.batch_size), fmt.number(row.batch_size * num_ranks)
    return [f"rank 0, {row.ranks}: batch {batch} per rank, {in_all} in all"]


def model(workload: str, variant: str) -> str:
    """Name a workload with its variant: resnet50 (imagenet)."""
    return f"{workload} ({variant})" if variant else workload


def largest(composition: pd.DataFrame, num_largest: int = _NUM_LARGEST) -> str:
    """Name the largest categories of rows with category and bytes: activations 245 MiB, weights 44.0 MiB."""
    rows = composition[composition["bytes"] > 0].sort_values("bytes", ascending=False, kind="stable").head(num_largest)
    return ", ".join(f"{category(row.category)} {fmt.num_bytes(row.bytes)}" for row in fmt.rows(rows))


def category(name: str) -> str:
    """Return a memory category as text: optimizer state."""
    return name.replace("_", " ")


def holder(row: Any, *, short: bool = True) -> str:
    """Name the line of a row of `snapshot_holders`: train.py:12 forward, with the whole path unless it is short."""
    if pd.isna(row.place):
        return fmt.missing(row.reason)
    return f"{_file(row.place) if short else row.place} {row.function}"


def held_by(each: Mapping[str, Any]) -> str:
    """Format a line that holds memory: train.py:12 forward 1.20 GiB in 24 blocks."""
    line = fmt.missing(each["reason"]) if each["place"] is None else f"{_file(each['place'])} {each['function']}"
    blocks = f"{fmt.number(each['num_blocks'])} block{'' if each['num_blocks'] == 1 else 's'}"
    return f"{line} {fmt.num_bytes(each['bytes'])} in {blocks}"


def _file(place: str) -> str:
    return re.split(r"[/\\]", place)[-1]


def peak_time(row: Any) -> str:
    """Format when the peak of a row of `snapshot_summary` was: after 1.20 s, at event 512 of 4,096."""
    num_events = fmt.number(row.num_events)
    event = f"at event {fmt.number(row.peak_event_number)} of {num_events}" if row.peak_event_number else \
        f"before the first of {num_events} events"
    return event if pd.isna(row.peak_s) else f"after {fmt.seconds(row.peak_s)}, {event}"


def failed_request(row: Any) -> str:
    """Format a row of `snapshot_out_of_memory`: out of memory after 1.20 s: train.py:12 forward requested 64.0 MiB."""
    when = f"at event {fmt.number(row.event_number)}" if pd.isna(row.time_s) else f"after {fmt.seconds(row.time_s)}"
    line = f"{_file(row.place)} {row.function}" if isinstance(row.place, str) else "the program"
    free = f", {fmt.num_bytes(row.free_bytes)} free on the device" if pd.notna(row.free_bytes) else ""
    held = f": {'; '.join(map(held_by, row.holders))}" if row.holders else ""
    return (f"out of memory {when}: {line} requested {fmt.num_bytes(row.requested_bytes)}{free}; "
            f"{fmt.num_bytes(row.allocated_bytes)} allocated{held}")


def no_history(row: Any) -> str:
    """Return why a row of `snapshot_summary` has no curve."""
    return str(row.history_reason) if isinstance(row.history_reason, str) else "the record has no data"


def snapshot_note(row: Any) -> str:
    """Return the sentences below the curve of a row of `snapshot_summary`."""
    note = f"The peak is {peak_time(row)}."
    if row.num_before_at_peak:
        note += (f" Of it, {fmt.num_bytes(row.before_at_peak_bytes)} in {fmt.number(row.num_before_at_peak)} blocks "
                 "were allocated before the history.")
    if isinstance(row.reserved_reason, str):
        note += f" Reserved memory over time is {fmt.missing(row.reserved_reason)}."
    return note


def snapshot_warnings(row: Any) -> list[str]:
    """Return what of a row of `snapshot_summary` is wrong or may be misread."""
    warnings = []
    if row.num_out_of_memory:
        requests = "1 request" if row.num_out_of_memory == 1 else f"{fmt.number(row.num_out_of_memory)} requests"
        warnings.append(f"{requests} for memory failed.")
    if row.num_frees_of_unknown:
        warnings.append(f"The history lacks the allocations of {fmt.number(row.num_frees_of_unknown)} blocks that it "
                        "frees: it began later, or older events were overwritten.")
    if row.num_frees_not_seen:
        warnings.append(f"The history lacks the frees of {fmt.number(row.num_frees_not_seen)} blocks: they count as "
                        "allocated until another block has their address, or to its end.")
    return warnings


def place(row: Any) -> str:
    """Name the position of a snapshot in the iteration: backward, layer4.2.conv3, aten::convolution_backward."""
    return ", ".join(str(name) for name in (row.phase, row.layer, row.operator) if pd.notna(name))


def plus_minus(low: float | None, high: float | None, reason: str | None = None) -> str:
    """Format half the width of an interval of bytes: ± 1.25 MiB."""
    if fmt.absent(low) or fmt.absent(high):
        return fmt.missing(reason)
    assert low is not None
    assert high is not None
    return f"± {fmt.num_bytes((high - low) / 2)}"


def outside(row: Any) -> str:
    """Format how far the measured peak of a row of `memory_peaks` is outside of the estimate; empty if it is not."""
    if not row.outside_bytes > 0:
        return ""
    return f"outside of the estimated interval by {fmt.num_bytes(row.outside_bytes)}: please report"


@fmt.or_missing
def share_of(value: float) -> str:
    """Format a signed share: +0.21 %, −3.40 %."""
    return "0.00 %" if abs(value) < 0.00005 else f"{100 * value:+.2f} %".replace("-", "−")


def growth(row: Any, steps: pd.DataFrame) -> str:
    """Format a row of `growth_by_input_size`, whose steps are rows of `memory_steps`.

    As in: 612 B a pixel of each sample, 4.90 KiB for all 8 (± 12.0 B); fixed 133 MiB (± 1.02 MiB). Or: constant within
    0.15 %. Or: no line: +54.2 MiB from 48 to 64 px (temporary, backward, layer4.1.conv2, aten::convolution_backward).
    """
    if row.shape == "constant":
        return f"constant within {share_of(row.spread_frac).lstrip('+')}" if row.spread_frac else "constant"
    if row.shape == "square":
        return (f"with the square: {fmt.num_bytes(row.square_bytes)} a {row.position}² and "
                f"{change(row.linear_bytes)} a {row.position}; "
                f"fixed {fmt.num_bytes(row.fixed_bytes, 'the curve meets 0 at a positive size')}")
    if row.shape == "steps":
        return f"{row.reason}: {_largest_steps(steps)}"
    if pd.isna(row.slope_bytes):
        return fmt.missing(row.reason)
    slope = f"{fmt.num_bytes(row.sample_slope_bytes)} a {row.position} of each sample"
    slope += f", {fmt.num_bytes(row.slope_bytes)} for all {fmt.number(row.batch_size)}" if row.batch_size > 1 else ""
    slope += f" ({plus_minus(row.slope_low_bytes, row.slope_high_bytes)})"
    fixed = fmt.num_bytes(row.fixed_bytes, row.reason)
    fixed += f" ({plus_minus(row.fixed_low_bytes, row.fixed_high_bytes)})" if pd.notna(row.fixed_bytes) else ""
    return f"{slope}; fixed {fixed}"


def _largest_steps(steps: pd.DataFrame) -> str:
    """Name the steps that differ most from the typical one, in order of size, and the range of the others."""
    first = steps["excess_bytes"].abs().sort_values(ascending=False, kind="stable").index[:_NUM_LARGEST]
    named = [step(row) for row in fmt.rows(steps[steps.index.isin(first)])]
    others = steps.loc[~steps.index.isin(first), "bytes"]
    if len(others):
        steps_of = "1 other step" if len(others) == 1 else f"{len(others)} other steps"
        low, high = change(others.min()), change(others.max())
        named.append(f"{steps_of} of {low}" if low == high else f"{steps_of} of {low} to {high}")
    return "; ".join(named)


def step(row: Any) -> str:
    """Format a row of `memory_steps`: +54.2 MiB from 48 to 64 px (temporary, backward, layer4.1.conv2)."""
    unit = _UNITS[row.position]
    return f"{change(row.bytes)} from {row.from_size} to {row.input_size}{unit} ({cause(row)})"


def cause(row: Any) -> str:
    """Name what is responsible for a step: the category and the place of the peak."""
    return ", ".join(filter(None, [category(row.category), place(row)]))


@fmt.or_missing
def change(value: float) -> str:
    """Format a change of bytes with its sign: +54.2 MiB, −7.39 KiB."""
    return f"{'−' if value < 0 else '+'}{fmt.num_bytes(abs(value))}"


def fit(row: Any) -> str:
    """Format a row of `memory_fits`: batch 412 is the largest that fits the 16.0 GiB of a device ..."""
    what = "batch" if row.searched == "batch_size" else "input size"
    at = ", ".join(filter(None, [held_fixed(row), row.settings, row.ranks]))
    where = f"{fmt.num_bytes(row.limit_bytes)} of {row.target}"
    if pd.isna(row.value):
        return f"no {what} fits the {where} at {at}"
    checked = f" ({verdict(row.verified)})" if pd.notna(row.verified) else ""
    is_minimum = pd.isna(row.next_value)
    value = f"{what} {fmt.number(row.value)}"
    largest = f"at least {value} fits" if is_minimum else f"{value} is the largest that fits"
    words = (f"{largest} the {where} at {at}{checked}: it needs "
             f"{needed(row)}, {fmt.num_bytes(row.margin_bytes)} are left")  # fmt: skip
    if is_minimum:
        return f"{words}; the search ended there{'' if pd.isna(row.ended_by) else f': {row.ended_by}'}"
    checked = f" ({verdict(row.next_verified)})" if pd.notna(row.next_verified) else ""
    return (f"{words}; {fmt.number(row.next_value)} would need {fmt.num_bytes(row.next_needed_bytes)}, "
            f"{fmt.num_bytes(row.next_needed_bytes - row.limit_bytes)} too much{checked}")


def needed(row: Any) -> str:
    """Format the needed memory of a row of `memory_fits` or `memory_room`, with its parts if they are recorded."""
    context_bytes = None if pd.isna(row.context_bytes) else row.context_bytes
    return needed_text(row.needed_bytes, row.allocated_bytes, context_bytes, fmt.num_bytes)


def room(row: Any) -> str:
    """Format a row of `memory_room`: fits the 2.00 GiB of a device: it needs 228 MiB, 1.78 GiB are left."""
    return (f"fits the {fmt.num_bytes(row.limit_bytes)} of {row.target}: it needs {needed(row)}, "
            f"{fmt.num_bytes(row.margin_bytes)} are left")


def limited_cpu(limit_bytes: float, gpus: Sequence[str]) -> str:
    """Return a note for a memory limit that was applied to a CPU, with the options that estimate for a GPU."""
    of_table = f"--device-like {', '.join(gpus)}; or " if gpus else ""
    return (f"Estimated for this CPU with a limit of {fmt.num_bytes(limit_bytes)} for what PyTorch allocates: Python, "
            "the libraries and what the C heap keeps take some hundred MiB of the process more. For a GPU of that "
            f"size: {of_table}--device cuda")


def fit_in_brief(row: Any) -> tuple[tuple[str, str], str]:
    """Format a row of `memory_fits` as a headline and a line: batch 412, fits a device; needs 15.9 GiB."""
    what = "batch" if row.searched == "batch_size" else "input size"
    if pd.isna(row.value):
        return (f"no {what}", f"fits {row.target}"), f"its memory is {fmt.num_bytes(row.limit_bytes)}"
    value = f"{what} {fmt.number(row.value)}"
    headline = ((f"at least {value}", f"fits {row.target}") if pd.isna(row.next_value) else
                (value, f"is the largest that fits {row.target}"))
    return (headline, f"needs {needed(row)}; "
            f"{fmt.num_bytes(row.margin_bytes)} of {fmt.num_bytes(row.limit_bytes)} to spare")


def held_fixed(row: Any) -> str:
    """Name the parameter that a search for the largest batch or input keeps fixed."""
    return f"input size {row.input_size}" if row.searched == "batch_size" else f"batch {row.batch_size}"


def verdict(verified: str) -> str:
    """Return how a run under the memory limit ended."""
    return {"ok": "ran", "oom": "ran out of memory"}.get(verified, verified)


def ran_out(row: Any, held: pd.DataFrame) -> str:
    """Format a row of `out_of_memory` and its composition; without a request, the case was predicted not to fit."""
    words = "no reason recorded" if pd.isna(row.reason) else str(row.reason)
    if pd.notna(row.requested_bytes):
        words = f"asked for {fmt.num_bytes(row.requested_bytes)}"
        words += f" with {fmt.num_bytes(row.free_bytes)} free" if pd.notna(row.free_bytes) else ""
        words += f" of {fmt.num_bytes(row.limit_bytes)}" if pd.notna(row.limit_bytes) else ""
        words += f", in {row.phase}" if pd.notna(row.phase) else ""
    if row.held_bytes:
        holds = "the estimated peak is" if row.composition_source == "predicted" else "held"
        words += f"; {holds} {fmt.num_bytes(row.held_bytes)}: {largest(held, len(held))}"
    return words if _search_command(row) else f"{words}; {what_would_fit(row)}"


def searches(rows: pd.DataFrame) -> list[str]:
    """Name, once each, the commands that search what would fit, for rows of `out_of_memory` that were not searched."""
    commands = dict.fromkeys(_search_command(row) for row in fmt.rows(rows))
    return [f"The largest that fits was not searched. To search it: {command}" for command in commands if command]


def _search_command(row: Any) -> str:
    """Return the recorded command that searches what would fit; empty if there is none."""
    reason = "" if pd.isna(row.fits_reason) else str(row.fits_reason)
    return reason.removeprefix(f"{NOT_SEARCHED}: ") if reason.startswith(f"{NOT_SEARCHED}: ") else ""


def status_text(run: Run, case: str, status: str) -> str:
    """Return “does not fit” for a case that was only estimated not to fit; else its status, such as `oom`."""
    entry = run.entry(case)
    estimated = entry.passes.prediction.fits is False and entry.requested_bytes is None
    return "does not fit" if estimated else status


def what_would_fit(row: Any) -> str:
    """Format the largest sizes of a row of `out_of_memory` that would have fitted."""
    smaller = [f"{what} {fmt.number(value)}" for what, value in
               (("batch", row.fits_batch_size), ("input size", row.fits_input_size)) if pd.notna(value)]  # fmt: skip
    if smaller:
        return f"{' or '.join(smaller)} would fit, by estimate"
    if pd.notna(row.fits_reason):
        return f"what would fit {fmt.missing(row.fits_reason)}"
    return "no smaller batch or input would fit, by estimate"
