"""Text about bottlenecks: evidence, potential speedup, and one thing to try."""

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pandas as pd

from charact.analysis.common.script_attribution import is_imported, is_watched, sampled_functions, sampled_share
from charact.analysis.efficiency.ceilings import ceilings_disturbed_frac, product_ceiling, product_precision
from charact.analysis.efficiency.layers import layer_times
from charact.analysis.efficiency.time_bounds import CALLING, LIMITS
from charact.analysis.profile.breakdown import top_operators
from charact.analysis.profile.core_use import core_use
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.core.units import quantity, share
from charact.record.manifest import CaseEntry
from charact.record.reader import Run

_NEAR_FRAC = 0.7
"""Minimum share of its ceiling at which work cannot get much faster."""
_FAR_FRAC = 0.25
"""Share of its ceiling below which something else than the ceiling limits work."""
THREAD_VARIABLES = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Environment variables that make a case less sensitive to other programs."""
_MUCH_FRAC = 0.1
"""Minimum share of the time at which the slowest layer or function is named."""
_MANY_CALLS = 100
"""Number of calls in an iteration from which an operator is said to be called in a loop."""
_FAR = ("; that is far below the ceiling: other load, small operators or slow algorithms slow it down more than the "
        "ceiling does")
_ABOVE = {
    "compute": "above 100 %: the ceiling is too low, or an algorithm such as Winograd needs fewer operations than are "
               "counted",
    "bandwidth": "above 100 %: caches hold part of the data",
}  # fmt: skip
_WITH_WEIGHTS = ("convolution", "GEMM", "recurrent")

SAVINGS = {
    "data": "making all samples free to load", "communication": "hiding all communication",
    "host": "removing the time of Python and of calling operators", "compute": "computing at the ceiling",
    "bandwidth": "moving data at the ceiling",
}  # fmt: skip
"""What would remove each limit."""


@dataclass(frozen=True)
class Situation:
    """A case whose iterations were timed: the parts of `limited_parts`, its median iteration and its ceilings."""

    run: Run
    entry: CaseEntry
    parts: pd.DataFrame
    median_s: float
    over: dict[Any, Any]
    """Its row of `case_ceilings`."""

    @property
    def name(self) -> str:
        """Name of the case."""
        return self.entry.case

    @property
    def on_cpu(self) -> bool:
        """Whether the case runs on the CPU."""
        return self.entry.device == "cpu"

    @property
    def is_ours(self) -> bool:
        """Whether charact's options control the case, rather than a program's own code."""
        return not (is_watched(self.run) or is_imported(self.run))

    def option(self, name: str) -> Any:
        """Return an option of the run; None if it has no such option."""
        return self.run.manifest["options"].get(name)

    @property
    def is_compiled(self) -> bool:
        """Whether the model was compiled, by an option or by the program itself."""
        return bool(self.option("compiled") or self.entry.passes.timing.compile_s)

    @property
    def script(self) -> list[str] | None:
        """Words with which `charact run` started a Python script, and can start it again; None for other cases."""
        words = [str(self.option("script")), *(self.option("arguments") or [])]
        return words if is_watched(self.run) and words[0].endswith(".py") else None

    @property
    def num_workers(self) -> int | None:
        """Number of loader processes; None if it is not known."""
        return self.run.options.workers if self.is_ours else self.entry.passes.timing.num_loader_workers

    @property
    def num_cores(self) -> int | None:
        """Number of cores that the case can use; None if it is not known."""
        cpu = {} if is_imported(self.run) else self.run.manifest["machine"].get("cpu") or {}
        return cpu.get("num_usable_cores")

    @property
    def wanted_cores(self) -> float | None:
        """Mean number of cores that the process and its children used or waited for; None if it is not known."""
        return next((float(cores) for cores in self.rows(core_use(self.run))["wanted_cores"].dropna()), None)

    @property
    def loading_s(self) -> float:
        """Time (s) that one process needs to load the data of an iteration."""
        return self.num_workers * self.median_s if self.num_workers else self.spent_s("data")

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of an analysis that belong to the case."""
        return table[table["case"] == self.name]

    def functions(self, phase: str) -> pd.DataFrame:
        """Return the rows of `sampled_functions` in a phase; empty if no line of the phase is known."""
        return self.rows(sampled_functions(self.run, phase))

    def most(self, limit: str, column: str) -> str:
        """Return the operator type or phase that takes most of the time with a limit."""
        return str(self.of(limit).groupby(column)["time_s"].sum().idxmax())

    def of(self, limit: str) -> pd.DataFrame:
        """Return the parts with this limit."""
        return self.parts[self.parts["limit"] == limit]

    def spent_s(self, limit: str) -> float:
        """Return the time (s) that this limit takes of the median iteration."""
        return self._spent_s.get(limit, 0.0)

    @cached_property
    def _spent_s(self) -> dict[str, float]:
        return {str(limit): float(time_s) for limit, time_s in self.parts.groupby("limit")["time_s"].sum().items()}

    def share(self, limit: str) -> float:
        """Return the share of the median iteration with this limit."""
        return self.spent_s(limit) / self.median_s

    def reached_frac(self, limit: str) -> float:
        """Return the share of its ceiling that work with this limit reaches; above 1 if the ceiling is too low."""
        return float(self.of(limit)["bound_s"].sum()) / self.spent_s(limit)


def shares(case: Situation) -> str:
    """Return the shares of the median iteration by limit as text, the largest first."""
    largest_first = sorted((limit for limit in LIMITS if case.spent_s(limit)), key=case.share, reverse=True)
    names = {"other": "limit not known"}  # `other` is also a phase
    parts = ", ".join(f"{names.get(limit, limit)} {share(case.share(limit))}" for limit in largest_first)
    return f"of the median iteration of {quantity(case.median_s, 's')}: {parts}"


def saving_by_processes(case: Situation) -> str:
    """Return the end of a sentence: the most that more loader processes could save, in % of the median iteration.

    It begins with a semicolon. It is empty if the cores or their use are not known, or if the saving, rounded, is the
    whole share of data. The saving is an upper bound: the cores share the work of loading and training equally. Time in
    which loading waits for a disk or a network is no work; with loader processes it is counted as work, as unknown.
    """
    spent_s, num_cores, wanted_cores = case.spent_s("data"), case.num_cores, case.wanted_cores
    if num_cores is None or wanted_cores is None:
        return ""
    of_one = 1.0 if case.num_workers else min(wanted_cores, 1.0)  # threads that spin use more, but do no work
    work_s = of_one * (case.loading_s + case.median_s - spent_s)
    saved_s = min(spent_s, case.median_s - work_s / num_cores)
    if saved_s <= 0:
        return "; more loader processes save nothing: all cores load already"
    if share(saved_s / case.median_s) == share(case.share("data")):
        return ""
    return f"; loading in parallel, on {num_cores} cores, at most {share(saved_s / case.median_s)}"


def _data_evidence(case: Situation) -> str:
    workers = case.num_workers
    processes = "" if workers is None else f", with {workers} loader process{'' if workers == 1 else 'es'}"
    frames = case.functions("data").head(0 if workers else 1)  # the processes are not sampled
    where = "".join(f"; {sampled_share(frame)} of it in {frame.place}, {frame.function}"
                    for frame in frames.itertuples())
    return f"it is the time in which the loop waited for batches{processes}{where}"


def _host_evidence(case: Situation) -> str:
    if not case.on_cpu:
        return f"for {quantity(case.spent_s('host'), 's')} the device had no kernel to run"
    by_kind = case.of("host").groupby("operator_type")["time_s"].sum() / case.median_s
    phase = case.most("host", "phase")
    where = "".join(f", where {function.function} takes {sampled_share(function)} ({function.place})"
                    for function in _slowest_function(case, phase).itertuples())
    return (f"Python and waiting outside of operators take {share(by_kind.get(OUTSIDE_OPERATORS, 0.0))} of the "
            f"iteration, calling operators {share(by_kind.get(CALLING, 0.0))}; most of it in {phase}"
            f"{where or _slowest_layer(case)}{(calls := _most_called(case, phase)) and f'; {calls}'}")


def _slowest_function(case: Situation, phase: str) -> pd.DataFrame:
    """Return the row of `sampled_functions` with most samples in code of the program itself.

    No row if it has less than `_MUCH_FRAC` of the samples, or if the phase is not sampled.
    """
    functions = case.functions(phase)
    return functions[functions["library"].isna() & (functions["share_frac"] >= _MUCH_FRAC)].head(1)


def _most_called(case: Situation, phase: str) -> str:
    """Return which operator a phase calls in a loop and how often, as text; empty if none.

    It is the slowest operator of those with at least `_MANY_CALLS` calls in an iteration, and at least half as many as
    the most frequent one.
    """
    operators = case.rows(top_operators(case.run))  # the slowest first
    of_phase = operators[operators["phase"] == phase]
    many = of_phase["num_calls"] >= max(_MANY_CALLS, of_phase["num_calls"].max() / 2)
    return "".join(f"{row.operator} runs {row.num_calls:,.0f} times in {phase}"
                   for row in of_phase[many].head(1).itertuples())


def _work_evidence(case: Situation, limit: str) -> str:
    reached_frac, over = case.reached_frac(limit), case.over
    is_disturbed = case.on_cpu and ceilings_disturbed_frac(case.run) is not None
    note = " (too low, measured under other load)" if is_disturbed else ""
    if limit == "bandwidth":
        ceiling = f"the memory’s ceiling of {quantity(over['peak_bytes_per_s'], 'B/s')}{note} by the sizes of tensors"
    else:
        note = note if over["peak_origin"] is None else ""  # `ceiling_origin` names it
        peak = quantity(over["peak_flop_per_s"], "FLOP/s")
        ceiling = f"the {product_precision(case.entry)} ceiling of {peak}{note}"
    above = f" ({_ABOVE[limit]})" if reached_frac > 1 else ""
    return (f"it runs at {share(reached_frac)} of {ceiling}{above}, by type most in "
            f"{case.most(limit, 'operator_type')}, by phase in {case.most(limit, 'phase')}"
            f"{_FAR if reached_frac < _FAR_FRAC else ''}")


def ceiling_origin(case: Situation, limit: str) -> str:
    """Return what reached the ceiling of products, as the end of a sentence; empty if a probe of the machine did."""
    origin = case.over["peak_origin"] if limit == "compute" else None
    return "" if origin is None else f"; that ceiling was reached by {origin}"


def _load_in_parallel(case: Situation) -> str:
    rest_s = case.median_s - case.spent_s("data")
    workers = case.num_workers
    # This number of processes yields a batch in the time of the rest of an iteration.
    num_needed = math.ceil(case.loading_s / rest_s) if rest_s > 0 else math.inf
    if workers is None and not case.is_ours:
        return "load batches in parallel processes: num_workers of the DataLoader"
    option = "--workers {:.0f}" if case.is_ours else "num_workers={:.0f} of the DataLoader"
    num_cores = case.num_cores
    num_useful = max(num_needed if num_cores is None else min(num_needed, num_cores), 1)
    if num_cores is None and num_useful == math.inf:
        return f"load batches in parallel processes: more {'--workers' if case.is_ours else 'num_workers'}"
    parallel = f"load batches in parallel processes: {option.format(num_useful)}"
    if num_useful <= (workers or 0):
        return (f"make samples cheaper to load, such as by decoding them once, in advance: more than {workers} loader "
                f"processes do not help on {num_cores} cores")
    if not case.on_cpu:
        return parallel
    places = case.functions("data")["place"].head(0 if workers else 1)
    where = "".join(f" ({place} takes most)" for place in places)
    return (f"make samples cheaper to load{where}; or {parallel}, which take cores from the operators; check each "
            f"change with {_both_measured(case)}")


def _both_measured(case: Situation) -> str:
    """Return the command that measures the case's program and a changed one, here `changed.py`, by turns.

    The whole command of a script is in backticks.
    """
    if case.script is None:
        return "charact compare --ab"
    before, after = (shlex.join([name, *case.script[1:]]) for name in (case.script[0], "changed.py"))
    variables = case.run.manifest["software"].get("environment") or {}
    set_before = "".join(f"{name}={variables[name]} " for name in THREAD_VARIABLES if name in variables)
    return f'`{set_before}charact compare --ab "charact run {before}" "charact run {after}"`'


def measure_again(case: Situation) -> str:
    """Return advice for a case that other programs disturbed: measure on an idle machine, or with `THREAD_VARIABLES`.

    Variables that were set are left out. If `charact run` measured a Python script, the advice has its whole command in
    backticks, with the variables.
    """
    were_set = case.run.manifest.get("software", {}).get("environment") or {}
    variables = " ".join(f"{name}={value}" for name, value in THREAD_VARIABLES.items() if were_set.get(name) != value)
    if not variables:
        return "measure again when no other program runs"
    if case.script is not None:
        variables = f"`{variables} charact run {shlex.join(case.script)}`"
    return f"measure again when no other program runs, or with {variables}"


def _larger_calls(case: Situation) -> str:
    phase = case.most("host", "phase")
    for slowest in _slowest_function(case, phase).itertuples():
        takes = f"{quantity(float(str(slowest.time_s)), 's')}, {sampled_share(slowest)} of {phase}"
        calls = _most_called(case, phase)
        return (f"do less in Python in {slowest.function} ({slowest.place}), which takes {takes}: use operators on "
                f"whole tensors instead of loops{calls and f' ({calls})'}, and compute only once what does not "
                f"change; check each change with {_both_measured(case)}")
    compiling = "" if case.is_compiled else _compiling(case)
    fewer = compiling and f", or fewer operators: {compiling}"
    graphs = "" if case.on_cpu else ", or CUDA graphs" + (compiling and " (torch.compile with mode='reduce-overhead')")
    return f"give each operator more to do: {_larger_batch(case)}{fewer}{graphs}"


def _compiling(case: Situation) -> str:
    """Return how to compile the model: charact's option `--compile`, or `torch.compile` in a watched program."""
    return "--compile" if case.is_ours else "torch.compile"


def _larger_batch(case: Situation) -> str:
    batch_size = case.entry.batch_size
    return f"--batch-sizes {2 * batch_size}" if case.is_ours and batch_size else "a larger batch"


def _compute_less(case: Situation) -> str:
    near = case.reached_frac("compute") >= _NEAR_FRAC
    # Not a number if the ceiling of bf16 was not measured.
    gain = product_ceiling(case.run, case.entry.device, "bf16") / float(case.over["peak_flop_per_s"])
    if near and case.entry.precision == "fp32" and gain > 1:
        lower = "--precision bf16" if case.is_ours else "torch.autocast with bfloat16"
        return f"use {lower}: its ceiling is {gain:.2g} times that of fp32"
    if near:
        return ("products run near the ceiling: leave out work (layers that run twice, gradients that nothing uses, "
                "padding), or use a faster device")
    if case.most("compute", "operator_type") == "convolution" and case.option("channels_last") is False:
        return "store images as NHWC (--channels-last), with which convolutions are fastest on most devices"
    compiling = "" if case.is_compiled else f", or {_compiling(case)}"
    return f"make matrix products larger, which get closer to the ceiling: {_larger_batch(case)}{compiling}"


def _move_less(case: Situation) -> str:
    if case.most("bandwidth", "phase") == "update":
        return ("use an optimizer that reads and writes once (fused=True), or one update for the gradients of several "
                "batches")
    if case.most("bandwidth", "operator_type") in _WITH_WEIGHTS:
        return f"read each weight for more samples at once: {_larger_batch(case)}"
    if not case.is_compiled:
        return f"fuse operators ({_compiling(case)}), so that intermediate results are not written and read again"
    if case.entry.precision == "fp32":
        return "halve the bytes (--precision pure-bf16)"
    return "fuse operators by hand, or use fewer of them: nothing else moves fewer bytes"


def largest(case: Situation) -> str:
    """Return the advice for a case without a large limit: its largest limit, where it occurs, and what reduces it."""
    first = max(LIMITS, key=case.share)
    if first == "other":
        return f"the limit of {share(case.share(first))} of the iteration is not known"
    where = f"{first} takes {share(case.share(first))}"
    if first in ("compute", "bandwidth"):
        where += (f", mostly {case.most(first, 'operator_type')} in {case.most(first, 'phase')}, at "
                  f"{share(case.reached_frac(first))} of its ceiling{_slowest_layer(case)}")
    return f"{where}; to begin with, {ADVICE[first](case)}"


def _slowest_layer(case: Situation) -> str:
    layers = case.rows(layer_times(case.run)).head(1)
    return "".join(f"; layer {layer} takes {share(frac)} of the operators’ time"
                   for layer, frac in zip(layers["layer"], layers["share_frac"], strict=True) if frac >= _MUCH_FRAC)


def less_memory(entry: CaseEntry) -> str:
    """Return what to try if the memory is full."""
    batch_size, fits = entry.batch_size, entry.out_of_memory and entry.out_of_memory.fits
    smaller = (fits.batch_size if fits else None) or (batch_size // 2 if batch_size else None)
    trains = entry.mode == "train"
    recompute = "recompute activations (torch.utils.checkpoint)" if trains else "a lower precision (pure-bf16)"
    if not smaller:
        return f"{recompute}, or a smaller {'input' if batch_size else 'batch'}"
    summed = (f" and --accumulate {math.ceil((batch_size or 0) / smaller)}, which makes the same update (charact "
              "memory estimates its memory)") if trains else ""
    return f"use --batch-sizes {smaller}{summed}; or {recompute}"


EVIDENCE: dict[str, Callable[[Situation], str]] = {
    "data": _data_evidence, "host": _host_evidence, "compute": partial(_work_evidence, limit="compute"),
    "bandwidth": partial(_work_evidence, limit="bandwidth"),
    "communication": lambda case: "it is exposed communication (not overlapped by compute)",
}  # fmt: skip
"""Evidence for a limit, in addition to the shares."""

ADVICE: dict[str, Callable[[Situation], str]] = {
    "data": _load_in_parallel, "host": _larger_calls, "compute": _compute_less, "bandwidth": _move_less,
    "communication": lambda case: (
        "communicate less often: a larger batch on each rank, or gradients summed over several batches before the "
        "all-reduce (DistributedDataParallel.no_sync)"),
}  # fmt: skip
"""One thing to try for each limit."""
