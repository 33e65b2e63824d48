"""`charact compare`."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.commands._shared.turns import Limit, measure_by_turns, read_command
from charact.core.errors import UserError
from charact.core.output import show

if TYPE_CHECKING:
    from charact.analysis.compare import Group

_BY = ("case", "phase", "operator_type", "operator", "layer", "kernel", "problem", "brick", "layer_type")
_NUM_NAMED = 3
_MAX_MINUTES = 10.0
_INTERRUPTED = 130
"""Exit status after Ctrl-C."""
_NUM_EXPLAINED = 15
"""Default number of rows of a table with --explain."""


def command(
    sides: Annotated[list[str] | None, typer.Argument(
        help="Run directories, directories of runs (repeats), or reference:NAME; NAME=PATH gives a label.",
        metavar="RUNS RUNS...", autocompletion=completion.compared_runs)] = None,
    ab: Annotated[tuple[str, str] | None, typer.Option(
        "--ab", help="Instead of RUNS: run two commands by turns until their times differ clearly, or by 3 % at most. "
                     "Each is a charact command, or begins with the path of another version's charact.",
        metavar="COMMAND COMMAND")] = None,
    max_minutes: Annotated[float | None, typer.Option(
        min=0, help=f"Time after which --ab adds no turns, but at least four. Default: {_MAX_MINUTES:g}.",
        metavar="MINUTES", show_default=False)] = None,
    repeat: Annotated[int | None, typer.Option(
        min=2, max=1000, help="Exact number of times that --ab runs each command. Default: until it is decided.",
        metavar="N", show_default=False)] = None,
    out: Annotated[Path, typer.Option(
        help="Directory in which --ab creates the directory of its runs, with comparison.html.")] = Path("comparisons"),
    by: Annotated[str | None, typer.Option(
        help="Levels of the comparison: case, phase, operator_type, operator, layer, kernel, problem, "
             "brick, layer_type. Default: case, and phase with --ab.",
        metavar="LIST", show_default=False)] = None,
    to: Annotated[Path | None, typer.Option(
        help="Also write the comparison to a file: .html (full report), .md or .csv (texts escaped as by charact "
             "export).", metavar="FILE")] = None,
    explain: Annotated[bool, typer.Option(
        "--explain", help="Show which phases, operators and kernels account for the differences.")] = False,
    top: Annotated[int | None, typer.Option(
        min=1, help="Rows of each case in a table. Default: 40, with --explain 15.", metavar="N",
        show_default=False)] = None,
    fail_if: Annotated[list[str] | None, typer.Option(
        help='Exit with 1 if a ratio passes a limit significantly: "time > 1.05", "phase.backward > +10%", '
             '"throughput < 0.95". May be given several times.', metavar="THRESHOLD",
        autocompletion=completion.compared_metrics)] = None,
    allow_single: Annotated[bool, typer.Option(
        "--allow-single", help="Apply --fail-if to times of one run each, which may differ by machine noise.")] = False,
    summary: Annotated[Path | None, typer.Option(
        help="Write the results of the thresholds as Markdown, and explain each regression.", metavar="FILE")] = None,
    junit: Annotated[Path | None, typer.Option(
        help="Write the results of the thresholds as JUnit XML.", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print only the ratios, as JSON: the columns of --to FILE.csv.")] = False,
    quiet: opt.Quiet = False,
) -> int:
    """Compare machines, versions or runs with the first of them.

    Cases are equal if workload, sizes, mode, precision and data are, on any device. A case without a counterpart is
    listed with the nearest one. Ratios have 95 % intervals. Give a directory of several runs as repeats: then intervals
    cover the variation between runs. One run each cannot show whether a difference is machine noise; --ab measures two
    commands by turns until that is decided. Published tables serve as references.

    \b
      charact compare runs/before runs/after --by phase,operator
      charact compare old=runs/20261121-100000-resnet50-0a1b2c new=runs/20261122-100000-resnet50-3d4e5f --to new.html
      charact compare reference:northeastern-p100 runs/mine
      charact compare base=runs/before new=runs/after --fail-if "time > 1.05" --fail-if "peak_memory > +2%"
      charact compare --ab "charact profile resnet18" "charact profile resnet18 --channels-last"
    """  # noqa: D301  (click wants the character itself)
    from charact.commands._shared.gate import check_repeats, pass_gate, read_explained, read_gate
    from charact.commands._shared.gate import explain as print_explanations
    from charact.commands._shared.run_groups import read_sides

    levels = opt.parse_choices(by or ("case" if ab is None else "case,phase"), "--by", _BY)
    quiet = quiet or as_json
    _check_apart(to, summary, junit)
    commands = _commands(sides, ab)
    if repeat is not None and max_minutes is not None:
        raise UserError("--repeat gives the number of turns, and --max-minutes lets times decide on it: give one")
    write = None if to is None else _writer(to, force)
    gate = read_gate(fail_if or [], summary, junit, force, allow_single)
    if commands:
        limit = Limit(repeat, _MAX_MINUTES if max_minutes is None else max_minutes)
        directory, sides = measure_by_turns(commands, limit, out, quiet=quiet)
        to = to or directory / "comparison.html"
        write = write or _writer(to, force)

    from charact.analysis.compare.selection import read_times
    from charact.views.tables.comparison_answers import answers
    from charact.views.tables.comparison_tables import tables
    from charact.views.terminal.comparison import MOST_ROWS, print_lines, print_tables
    from charact.views.terminal.progress import RunsProgress

    num_rows = top or (_NUM_EXPLAINED if explain else MOST_ROWS)

    progress = RunsProgress("Reading", 0, enabled=not quiet)
    compared = read_sides(sides or [], progress.advance)
    if gate is not None:
        check_repeats(gate, compared)
    progress.total = sum(len(side.runs) for side in compared)
    with _sound(compared):
        with progress:
            _check_common(compared)
            read_times(compared, [*levels, *(["phase"] if gate is not None else [])])
            if write is not None:
                write(compared, levels)
            if explain and not quiet:
                read_explained(compared)
            shown, answered = ([], []) if quiet else (tables(compared, levels), answers(compared))
        if not quiet:
            print_tables(shown, num_rows)
            print_lines(answered)
            if explain:
                print_explanations(compared, num_rows)
        if as_json:
            from charact.views.export.tables import comparison_json

            show(*comparison_json(compared, levels).split("\n"))
        elif to is not None:
            show(f"Wrote {to}")
        status = 0 if gate is None else pass_gate(gate, compared, quiet)
        turns = compared[0].turns
        return _INTERRUPTED if commands and turns is not None and turns.ending == "interrupted" else status


def _commands(sides: list[str] | None, ab: tuple[str, str] | None) -> list[list[str]]:
    """Return the words of the commands of `--ab`; none without it."""
    if ab is None:
        if not sides:
            raise UserError("name runs to compare, or two commands to measure: charact compare --help shows examples")
        return []
    if sides:
        raise UserError("--ab measures the runs that it compares: leave out RUNS")
    return [read_command(text) for text in ab]


@contextmanager
def _sound(sides: "Sequence[Group]") -> Iterator[None]:
    """Raise an error of one line if a record has invalid values; its reader checks names and types only."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        names = ", ".join(side.label for side in sides)
        raise UserError(f"cannot compare {names}: a record has invalid values ({type(error).__name__}: {error}); "
                        "restore it from a copy, or report the output of charact --traceback compare") from error


def _check_apart(*files: Path | None) -> None:
    """Check that all output files are distinct."""
    named = [os.path.abspath(file) for file in files if file is not None]
    for file in files:
        if file is not None and named.count(os.path.abspath(file)) > 1:
            raise UserError(f"{file} is given twice: --to, --summary and --junit need different files")


def _writer(to: Path, force: bool) -> "Callable[[Sequence[Group], Sequence[str]], None]":
    """Return a function that writes a file of this type."""
    from charact.core.files import check_writable, write_text

    suffixes = {".html": _html, ".md": _markdown, ".csv": _csv}
    if to.suffix not in suffixes:
        raise UserError(f"--to {to}: its name must end in {', '.join(suffixes)}")
    check_writable(to, force=force, option="--to")
    return lambda sides, levels: write_text(to, suffixes[to.suffix](sides, levels), force=force)


def _html(sides: "Sequence[Group]", levels: Sequence[str]) -> str:
    from charact.views.html.report import comparison_report

    return comparison_report(sides)


def _markdown(sides: "Sequence[Group]", levels: Sequence[str]) -> str:
    from charact.views.export.markdown import document
    from charact.views.tables.comparison_answers import answers
    from charact.views.tables.comparison_tables import tables
    from charact.views.tables.format import against

    title = against([side.label for side in sides])
    return document(title, tables(sides, levels), answers(sides) if sides[0].turns is not None else [])


def _csv(sides: "Sequence[Group]", levels: Sequence[str]) -> str:
    from charact.views.export.tables import comparison_csv

    return comparison_csv(sides, levels)


def _check_common(sides: "Sequence[Group]") -> None:
    """Check that at least one group shares a case with the baseline."""
    from charact.analysis.common.script_attribution import is_watched
    from charact.analysis.compare import matched_cases, unmatched_cases

    if len(matched_cases(sides)):
        return
    names = [list(dict.fromkeys(entry["case"] for run in side.runs for entry in run.manifest["cases"]))
             for side in sides]
    has = [f"{side.label} has {_named(of_side)}" for side, of_side in zip(sides, names, strict=True)]
    nearest = unmatched_cases(sides)["why"]
    why = f" (nearest: {nearest.iloc[0]})" if len(nearest) else ""
    watched = all(is_watched(run) for side in sides for run in side.runs)
    remedy = "; for a changed script, give both runs one name: charact run --name NAME" if watched else ""
    raise UserError(f"nothing in common: {'; '.join(has)}{why}; cases match where workload, sizes, mode, precision and "
                    f"data are the same{remedy}")


def _named(cases: Sequence[str]) -> str:
    more = f" and {len(cases) - _NUM_NAMED} more" if len(cases) > _NUM_NAMED else ""
    return ", ".join(cases[:_NUM_NAMED]) + more if cases else "no cases"
