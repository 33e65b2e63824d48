"""`-g auto`: times suites of several brick lengths, and chooses the cheapest among the most accurate."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.analysis.bricks.calibration_models import typical
from charact.analysis.bricks.construction import Construction, construct
from charact.analysis.bricks.run_tables import suite_summary
from charact.analysis.bricks.times import BrickTimes
from charact.bricks.brick import runs_as
from charact.bricks.suite.writer import CutModel, add_models
from charact.commands._shared.run_cases import open_record
from charact.commands.bricks.models import CapturedSource
from charact.commands.bricks.verify import timed_source
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.interrupt import Interrupt
from charact.machine.facts import resolve_device
from charact.measure.bricks.suite_run import run_bricks
from charact.measure.passes.timing import StopRule
from charact.record.reader import load_run
from charact.views.terminal.progress import BrickProgress
from charact.views.terminal.suites import Trial, trials

GOOD_FACTOR = 1.25
"""Largest acceptable error relative to the smallest."""
_MOST_MODELS = 4
_ROUNDS = StopRule(0.02, 12, 30.0)
_ITERATIONS = StopRule(0.02, 30, 5.0)


def chosen_g(captured: Sequence[CapturedSource], quiet: bool, interrupt: Interrupt) -> int:
    """Return the brick length whose suite is cheapest among those with nearly the smallest error.

    Times bricks of the first model's mode and precision, for each candidate length, for a few rounds, and runs up to
    four typical models. The error is that of the plain sum; the cost is the time of every brick once.

    Raises:
        UserError: none of the models could be timed.
        KeyboardInterrupt: a signal came.
    """
    first = captured[0].source
    matching = [each for each in captured if (each.source.mode, each.source.precision) == (first.mode, first.precision)]
    by_g = {g: _constructed([each.by_g[g] for each in matching], g, quiet, interrupt) for g in matching[0].by_g}
    usable = [case for case in (each.source.id for each in matching)
              if all(case in constructions for constructions, _ in by_g.values())]
    if not usable:
        raise UserError(f"-g auto could not time the bricks of any model: name a length, as in -g {next(iter(by_g))}")
    reference = by_g[next(iter(by_g))][0]
    models = typical([reference[case] for case in usable], _MOST_MODELS)
    measured_s = {case: time_s for case in (model.composition.case for model in models)
                  if (time_s := _measured_s(matching, case, interrupt)) is not None}
    if not measured_s:
        raise UserError("-g auto could run none of the models: name a length, as in -g 1")
    tried = [
        Trial(g, _unique_frac([each.by_g[g] for each in matching]), suite_s,
              fmean(abs((constructions[case].sum_s or 0.0) / time_s - 1) for case, time_s in measured_s.items()))
        for g, (constructions, suite_s) in by_g.items()
    ]  # fmt: skip
    chosen = choice(tried)
    if not quiet:
        Console().print(trials(tried, chosen, len(measured_s)))
    return chosen


def choice(tried: Sequence[Trial]) -> int:
    """Return the cheapest length among those with nearly the smallest error."""
    least = min(trial.error_frac for trial in tried)
    return min((trial for trial in tried if trial.error_frac <= GOOD_FACTOR * least), key=lambda trial: trial.suite_s).g


def _constructed(models: Sequence[CutModel], g: int, quiet: bool, interrupt: Interrupt
                 ) -> tuple[dict[str, Construction], float]:
    """Time a suite; return the constructed models by case, and the time (s) of every brick once."""
    console, method = Console(stderr=True), models[0].composition.method
    mode, precision = models[0].composition.mode, runs_as(models[0].composition.precision)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        suite = add_models(directory / f"g{g}", models, g, method, torch.__version__).suite
        writer = open_record(directory, f"g{g}", {}, None)
        with BrickProgress(console, enabled=console.is_terminal and not quiet) as progress:
            run_bricks(suite, mode, precision, resolve_device("auto"), _ROUNDS, writer, progress, interrupt)
        if interrupt.signal is not None:
            raise KeyboardInterrupt
        run = load_run(writer.close("complete"))
        times = BrickTimes(run, run.manifest["cases"][0]["case"])
        found = [construct(model.composition, times, "not learned") for model in models]
        suite_s = float(suite_summary(run)["suite_s"].iloc[0])
    return {each.composition.case: each for each in found if each.sum_s is not None}, suite_s


def _measured_s(captured: Sequence[CapturedSource], case: str, interrupt: Interrupt) -> float | None:
    """Return the median iteration (s) of a model; warn and return None if it fails."""
    source = next(each.source for each in captured if each.source.id == case)
    warn(f"running the model {case}")
    try:
        return median(timed_source(source, _ITERATIONS, resolve_device("auto"), interrupt).wall_s)
    except UserError as error:
        warn(f"warning: {error}")
        return None


def _unique_frac(models: Sequence[CutModel]) -> float:
    pieces = [piece.brick for model in models for piece in model.composition.pieces]
    return len(set(pieces)) / len(pieces)
