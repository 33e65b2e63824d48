"""`charact compare`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.commands._shared.turns import Limit, measure_by_turns, read_command
from charact.core.errors import UserError
from charact.core.output import show, warn

if TYPE_CHECKING:
    from charact.analysis.compare import Group
    from charact.analysis.compare.thresholds import Threshold

_BY = ("case", "phase", "operator_type", "operator", "layer", "kernel", "problem", "brick", "layer_type")
_NUM_NAMED = 3
_MOST_EXPLAINED = 24
_SUFFIXES = (".html", ".md", ".csv")
_MAX_MINUTES = 10.0
_INTERRUPTED = 130
"""Exit status after Ctrl-C."""
_NUM_EXPLAINED = 15
"""Default number of rows of a table with --explain."""


def command(
    sides: Annotated[list[str] | None, typer.Argument(
        help="Run directories, directories of runs (repeats), or reference:NAME; NAME=PATH gives a label.",
        metavar="RUNS", autocompletion=completion.compared_runs)] = None,
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
             '"throughput < 0.95"; or if MFU or HFU pass one, also of a single group: "mfu < 0.4". May be given '
             "several times.", metavar="THRESHOLD",
        autocompletion=completion.compared_metrics)] = None,
    allow_single: Annotated[bool, typer.Option(
        "--allow-single", help="Apply --fail-if to times of one run each, which may differ by machine noise.")] = False,
    summary: Annotated[Path | None, typer.Option(
        help="Write the results of the thresholds as Markdown, and explain each regression.", metavar="FILE")] = None,
    junit: Annotated[Path | None, typer.Option(
        help="Write the results of the thresholds as JUnit XML.", metavar="FILE")] = None,
    force: opt.Force = False,
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
    from charact.commands._shared.runs import read_sides

    levels = opt.parse_choices(by or ("case" if ab is None else "case,phase"), "--by", _BY)
    quiet = quiet or as_json
    files = [os.path.abspath(file) for file in (to, summary, junit) if file is not None]
    if twice := next((file for file in (to, summary, junit) if file and files.count(os.path.abspath(file)) > 1), None):
        raise UserError(f"{twice} is given twice: --to, --summary and --junit need different files")
    if ab is None and not sides:
        raise UserError("name runs to compare, or two commands to measure: charact compare --help shows examples")
    if ab is not None and sides:
        raise UserError("--ab measures the runs that it compares: leave out RUNS")
    commands = [read_command(text) for text in ab or ()]
    if repeat is not None and max_minutes is not None:
        raise UserError("--repeat gives the number of turns, and --max-minutes lets times decide on it: give one")
    if to is not None:
        _check_target(to, force)
    thresholds = _thresholds(fail_if or [], {"--summary": summary, "--junit": junit}, force)
    if commands:
        limit = Limit(repeat, _MAX_MINUTES if max_minutes is None else max_minutes)
        directory, sides = measure_by_turns(commands, limit, out, quiet=quiet)
        to = to or directory / "comparison.html"

    from charact.analysis.compare import ignoring_differences
    from charact.analysis.compare.selection import read_parts, read_times
    from charact.views.document import Line
    from charact.views.tables.comparison_answers import answers
    from charact.views.tables.comparison_tables import tables
    from charact.views.tables.model import MOST_ROWS, leading
    from charact.views.terminal.progress import RunsProgress
    from charact.views.terminal.renderer import print_items

    num_rows = top or (_NUM_EXPLAINED if explain else MOST_ROWS)

    progress = RunsProgress("Reading", 0, enabled=not quiet)
    is_alone = bool(thresholds) and all(threshold.is_of_value for threshold in thresholds)
    compared = read_sides(sides or [], progress.advance, fewest=1 if is_alone else 2)
    if not allow_single:
        _check_repeats(thresholds, compared)
    progress.total = sum(len(side.runs) for side in compared)
    if len(compared) == 1:
        if to is not None or as_json or explain:
            raise UserError("--to, --json and --explain are for comparisons: name a second group of runs")
        with _sound(compared):
            return _pass_gate(thresholds, compared, summary, junit, force=force, quiet=quiet)
    with _sound(compared):
        with progress:
            if not thresholds:  # a gate judges equal cases only
                compared = ignoring_differences(compared)
            _check_common(compared)
            read_times(compared, [*levels, *(["phase"] if thresholds else [])])
            if to is not None:
                _write(to, compared, levels, force)
            if explain and not quiet:
                for side, cases in _explained(compared):
                    read_parts([compared[0], side], ["case", "phase"], cases)
            shown, answered = ([], []) if quiet else (tables(compared, levels), answers(compared))
        if not quiet:
            print_items([item for each in shown for item in (leading(each, num_rows), Line())])
            print_items([Line((text, "strong")) for text in answered])
            if explain:
                _print_explanations(compared, num_rows)
        if as_json:
            from charact.views.export.tables import comparison_json

            show(*comparison_json(compared, levels).split("\n"))
        elif to is not None:
            show(f"Wrote {to}")
        status = _pass_gate(thresholds, compared, summary, junit, force=force, quiet=quiet) if thresholds else 0
        turns = compared[0].turns
        return _INTERRUPTED if commands and turns is not None and turns.ending == "interrupted" else status


@contextmanager
def _sound(sides: "Sequence[Group]") -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        names = ", ".join(side.label for side in sides)
        raise UserError(f"cannot compare {names}: a record has invalid values ({type(error).__name__}: {error}); "
                        "restore it from a copy, or report the output of charact --traceback compare") from error


def _check_target(to: Path, force: bool) -> None:
    from charact.core.files import check_writable

    if to.suffix not in _SUFFIXES:
        raise UserError(f"--to {to}: its name must end in {', '.join(_SUFFIXES)}")
    check_writable(to, force=force, option="--to")


def _write(to: Path, sides: "Sequence[Group]", levels: Sequence[str], force: bool) -> None:
    """Write a comparison in the format of the file's suffix."""
    from charact.core.files import write_text
    from charact.views.export.markdown import document
    from charact.views.export.tables import comparison_csv
    from charact.views.html.report import comparison_report
    from charact.views.tables.comparison_answers import answers
    from charact.views.tables.comparison_tables import tables
    from charact.views.tables.format import against

    if to.suffix == ".html":
        text = comparison_report(sides)
    elif to.suffix == ".csv":
        text = comparison_csv(sides, levels)
    else:
        text = document(against([side.label for side in sides]), tables(sides, levels),
                        answers(sides) if sides[0].turns is not None else [])
    write_text(to, text, force=force)


def _check_common(sides: "Sequence[Group]") -> None:
    """Check that at least one group shares a case with the baseline."""
    from charact.analysis.common.script_attribution import is_watched
    from charact.analysis.compare import matched_cases, unmatched_cases

    if len(matched_cases(sides)):
        return
    names = [list(dict.fromkeys(entry.case for run in side.runs for entry in run.entries)) for side in sides]
    has = []
    for side, cases in zip(sides, names, strict=True):
        more = f" and {len(cases) - _NUM_NAMED} more" if len(cases) > _NUM_NAMED else ""
        has.append(f"{side.label} has {', '.join(cases[:_NUM_NAMED]) + more if cases else 'no cases'}")
    nearest = unmatched_cases(sides)["why"]
    why = f" (nearest: {nearest.iloc[0]})" if len(nearest) else ""
    watched = all(is_watched(run) for side in sides for run in side.runs)
    remedy = "; for a changed script, give both runs one name: charact run --name NAME" if watched else ""
    raise UserError(f"nothing in common: {'; '.join(has)}{why}; cases match where workload, sizes, mode, precision and "
                    f"data are the same{remedy}")


def _thresholds(fail_if: Sequence[str], files: Mapping[str, Path | None], force: bool) -> "list[Threshold]":
    """Return the thresholds, after checking the files for their results, by option."""
    from charact.analysis.compare.thresholds import parse
    from charact.core.files import check_writable

    for option, path in files.items():
        if path is not None and not fail_if:
            raise UserError(f'{option} writes results of thresholds: give one, as in --fail-if "time > 1.05"')
        if path is not None:
            check_writable(path, force=force, option=option)
    return [parse(text) for text in fail_if]


def _pass_gate(thresholds: "list[Threshold]", sides: "Sequence[Group]", summary: Path | None, junit: Path | None, *,
               force: bool, quiet: bool) -> int:
    """Judge the thresholds, print and write their results; return 1 if a threshold failed, else 0."""
    from charact.analysis.compare.gate import has_failed, judge
    from charact.core.files import write_text
    from charact.views.document import Line
    from charact.views.export.junit import junit as junit_of
    from charact.views.export.markdown import summary as summary_of
    from charact.views.tables import format as fmt
    from charact.views.tables.gate_tables import gate_table, headline, sentence
    from charact.views.tables.model import leading
    from charact.views.terminal.renderer import print_items

    judged = judge(thresholds, sides)
    if not quiet:
        print_items([leading(gate_table(judged, sides)), Line()])
    if summary is not None:
        write_text(summary, summary_of(judged, sides), force=force)
    if junit is not None:
        write_text(junit, junit_of(judged), force=force)
    failed = has_failed(judged)
    if not quiet:
        show(headline(judged))
    elif failed:
        for row in fmt.rows(judged[judged["outcome"] == "regression"]):
            warn(f"{row.case}: {sentence(row)}")
    return int(failed)


def _check_repeats(thresholds: "list[Threshold]", sides: "Sequence[Group]") -> None:
    """Check that no threshold compares two groups of one run each, except by counts and limits of values."""
    from charact.analysis.compare.metrics import all_metrics

    single = [side.label for side in sides if len(side.runs) == 1 and "reference" not in side.runs[0].manifest]
    if sides[0].label not in single or len(single) == 1:
        return
    exact = {metric.name for metric in all_metrics().values() if metric.is_exact}
    if any(threshold.metric not in exact and not threshold.is_of_value for threshold in thresholds):
        raise UserError(f"{' and '.join(single[:2])} have one run each, which cannot show how much runs vary: give "
                        "directories of several runs (charact compare --ab makes them), or --allow-single")


def _explained(sides: "Sequence[Group]") -> "list[tuple[Group, set[str]]]":
    from charact.analysis.compare.selection import in_pair, most_different

    places, _ = most_different(sides, _MOST_EXPLAINED)
    found = ((side, {case for case, label in places if label == side.label}) for side in sides[1:])
    return [(side, in_pair(sides, side, cases)) for side, cases in found if cases]


def _print_explanations(sides: "Sequence[Group]", num_rows: int) -> None:
    """Print what accounts for the difference of each case and group, the `num_rows` largest differences first."""
    from charact.analysis.compare.selection import most_different
    from charact.views.document import Line
    from charact.views.tables import format as fmt
    from charact.views.tables.difference_tables import NOT_TIMED, explanations
    from charact.views.tables.model import leading
    from charact.views.terminal.renderer import print_items

    for side, cases in _explained(sides):
        for each in explanations(sides[0], side, cases, num_rows):
            print_items([item for table in each.tables for item in (leading(table, num_rows), Line())])
            if not each.tables:
                show(f"{each.case}: the explanation of the difference is {fmt.missing(NOT_TIMED)}")
    _, num_left = most_different(sides, _MOST_EXPLAINED)
    if num_left:
        show(f"The {_MOST_EXPLAINED} cases that differ most are explained, {num_left:,} are left out: compare fewer "
             "runs to see them")
