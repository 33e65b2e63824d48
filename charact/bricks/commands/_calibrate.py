"""`charact bricks calibrate`: times models by turns, and fits a correction of constructed latencies."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.analysis.calibration import MIN_MODELS, fit_correction, typical
from charact.bricks.analysis.construction import BrickTimes, Construction, brick_case, construct
from charact.bricks.commands._construct import (
    ALL,
    CachedCorrection,
    brick_run,
    correction_file,
    is_called,
    kept_compositions,
)
from charact.bricks.commands._models import Named, is_of_this_machine, timed_model
from charact.bricks.suite.composition import Composition
from charact.bricks.views.summary import correction
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import show, warn
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import NotCached, cache_ceilings
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run
from charact.views.export.run_summary import lines_of
from charact.views.terminal.progress import MemoryProgress
from charact.views.terminal.renderer import drawn

MOST_MODELS = 8
_PRECISION_FRAC = 0.02
_MAX_ITERATIONS = 50


def calibrate_machine(path: Path, names: Sequence[str], own: Named, directory: Path | None, turns: int,
                      max_seconds: float, quiet: bool, interrupt: Interrupt, *, as_json: bool = False) -> int:
    """Fit and cache a correction for each case of a suite's run; return the exit status.

    Raises:
        KeyboardInterrupt: a signal came; nothing more is written.
    """
    quiet = quiet or as_json
    run = brick_run(path)
    if not is_of_this_machine(run):
        raise UserError(f"{path} is of another machine or PyTorch: measuring models here needs a run from here")
    by_case = {case: chosen for case, chosen in _by_case(run, names, directory).items() if len(chosen) >= MIN_MODELS}
    if not by_case:
        raise UserError(f"a correction needs {MIN_MODELS} models whose bricks were timed in {path}: name more, or "
                        "extend the suite")
    rule = StopRule(_PRECISION_FRAC, _MAX_ITERATIONS, max_seconds)
    corrections: list[dict[str, Any]] = []
    for case, chosen in by_case.items():
        constructions, measured_s = measured_by_turns(run, case, chosen, own, turns, rule, quiet, interrupt)
        learned = fit_correction(constructions, measured_s)
        try:
            cache_ceilings(correction_file(run, case), CachedCorrection(correction=learned))
        except NotCached as error:
            raise UserError(f"the correction cannot be stored: {error}") from error
        if learned.error_frac > learned.plain_error_frac:
            warn(f"warning: the correction of {case} from these {len(constructions)} models does not generalize: name "
                 "more, or repeat it on an idle machine")
        models = [each.composition.case for each in constructions]
        sums_s = [each.sum_s or 0.0 for each in constructions]
        corrections.append({"case": case, **msgspec.to_builtins(learned), "models": [
            {"model": model, "sum_s": sum_s, "measured_s": wall_s}
            for model, sum_s, wall_s in zip(models, sums_s, measured_s, strict=True)]})
        if not quiet:
            Console().print(drawn(correction(case, models, sums_s, measured_s, learned)))
    if as_json:
        show(*lines_of({"corrections": corrections}))
    return 0


def _by_case(run: Run, names: Sequence[str], directory: Path | None) -> dict[str, list[Construction]]:
    """Return the models for calibration, by the case that timed their bricks."""
    def fits(composition: Composition, case: str) -> bool:
        try:
            return brick_case(run, composition) == case
        except UserError:
            return False

    kept = kept_compositions(run, directory)
    wanted = [name for name in names if name != ALL]
    chosen = [each for each in kept if not wanted or any(is_called(each, name) for name in wanted)]
    for name in wanted:
        if not any(is_called(each, name) for each in kept):
            raise UserError(f"{name} is not one of the suite's models "
                            f"({', '.join(sorted({each.model for each in kept})) or 'there are no compositions'})")
    by_case: dict[str, list[Construction]] = {}
    for entry in run.entries:
        times = BrickTimes(run, entry.case)
        constructions = [construct(each, times, "not yet learned") for each in chosen if fits(each, entry.case)]
        for lacking in (each for each in constructions if each.sum_s is None and names):
            warn(f"warning: {lacking.composition.case} is left out: {lacking.reason}")
        whole = [each for each in constructions if each.sum_s is not None]
        by_case[entry.case] = whole if names else typical(whole, MOST_MODELS)
    return by_case


def measured_by_turns(run: Run, case: str, constructions: Sequence[Construction], own: Named, turns: int,
                      rule: StopRule, quiet: bool, interrupt: Interrupt) -> tuple[list[Construction], list[float]]:
    """Return the models that can be run, and the median iteration (s) of each; warn about the others.

    Models take turns, so that drift of the machine affects all equally.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    console, failed = Console(stderr=True), dict[int, str]()
    walls: list[list[float]] = [[] for _ in constructions]
    with MemoryProgress(console, enabled=not quiet) as progress:
        for turn in range(turns):
            for number, construction in enumerate(constructions):
                if number in failed:
                    continue
                progress.case_started(construction.composition.case, turn * len(constructions) + number + 1,
                                      turns * len(constructions))
                progress.pass_started(f"turn {turn + 1}")
                try:
                    walls[number] += timed_model(construction.composition, own, run, case, rule, interrupt).wall_s
                except UserError as error:
                    failed[number] = str(error)
    for reason in failed.values():
        warn(f"warning: a model is left out: {reason}")
    left = [number for number in range(len(constructions)) if number not in failed]
    if len(left) < MIN_MODELS:
        raise UserError(f"a correction needs {MIN_MODELS} models that can be run here, but {case} has {len(left)}: "
                        "name others")
    return [constructions[number] for number in left], [median(walls[number]) for number in left]
