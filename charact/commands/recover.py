"""`charact recover`."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.output import warn

if TYPE_CHECKING:
    from charact.measure.script.spans.event_log_to_record import ScriptOptions
    from charact.record.writer import RunWriter

_NOTHING = "{} had no measurements, and is removed"
_BLIND = ("called no model of PyTorch outside of fully compiled functions, so there is nothing to report: run it "
          "without torch.compile, or name its phases with charact.Profiler")
_NO_MODEL = "called no model of PyTorch in the watched thread, so there is nothing to report"
_ELSEWHERE = (f"{_NO_MODEL}. charact.Profiler watches another thread, charact run another process (torchrun "
              "--no-python charact run train.py)")


def command(
    partial: Annotated[list[Path], typer.Argument(
        metavar="RUN", help="Hidden directories of killed runs: runs/.partial-...",
        autocompletion=completion.partial_runs)],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the runs' paths only.")] = False,
    waiting: Annotated[int | None, typer.Option(
        "--waiting", hidden=True, help="Descriptor to which a byte is written when the record is published."
    )] = None,
) -> int:
    """Complete records of killed runs, and draw missing reports.

    \b
      charact recover runs/.partial-*
    """  # noqa: D301  (click wants the character itself)
    from charact.execution.interrupt import Interrupt

    any_ok, errors = False, []
    with Interrupt() as interrupt:
        from charact.commands._shared.publish import recover_command
        from charact.commands._shared.run_groups import check_unfinished

        for number, directory in enumerate(partial):
            try:
                check_unfinished([directory])
                with interrupt.allowed():
                    any_ok |= _recover(directory, quiet, waiting)
            except UserError as error:  # a run that is still running must not prevent the others
                errors.append(str(error))
            except KeyboardInterrupt:
                left = [one for one in partial[number:] if one.exists()]
                if left:
                    warn(f"interrupted, and nothing is lost: continue with {recover_command(left)}")
                return 128 + (interrupt.signal or signal.SIGINT)
    if errors:
        raise UserError("; ".join(errors))
    return 0 if any_ok else 1


def _recover(directory: Path, quiet: bool, waiting: int | None = None) -> bool:
    """Complete a partial run, or add the views to a run without them; return whether any of its cases succeeded.

    Args:
        directory: of the run.
        quiet: whether output is reduced.
        waiting: write end of a pipe, see `publish_before_views`; None if no process waits for the record.

    Raises:
        UserError: there is nothing to do, or the run is empty and was removed; or it cannot be written, and is kept.
    """
    from charact.commands._shared.publish import (
        has_views,
        publish,
        publish_before_views,
        recover_command,
        report_outcome,
        write_views,
    )
    from charact.record.in_progress import PARTIAL_PREFIX, remove_unbegun
    from charact.record.reader import load_run
    from charact.record.writer import RunWriter

    if remove_unbegun(directory):
        raise UserError(_NOTHING.format(directory))
    whole = directory.resolve()
    if not whole.name.startswith(PARTIAL_PREFIX) and not has_views(whole):
        run = load_run(whole)
        write_views(run)
        return report_outcome(run, quiet)
    writer = RunWriter.reopen(directory)
    try:
        if writer.manifest["status"] == "running":
            _close(writer)
        if waiting is not None:
            return publish_before_views(writer, quiet, waiting)
        publish(writer, load_run(writer.directory))
    except BaseException as error:
        if not writer.directory.exists():
            raise
        writer.leave()
        if isinstance(error, UserError):
            again = recover_command([directory])
            raise UserError(f"{error}; nothing is removed: try again with {again}") from error
        raise
    return report_outcome(load_run(writer.final), quiet)


def _close(writer: "RunWriter") -> None:
    """Close a record that was not closed.

    Raises:
        UserError: it was empty, and is removed; or it cannot be written.
    """
    from charact.measure.script.spans.event_log_to_record import script_options

    status, nothing = "interrupted", _NOTHING.format(writer.directory)
    if (options := script_options(writer.manifest)) is not None:
        status, nothing = _add_cases_of_program(writer, options, nothing)
    if writer.holds_nothing:
        writer.discard()
        raise UserError(nothing)
    writer.close(status)


def _facts(hostname: str, devices: list[str], of_torch: dict[str, Any] | None) -> dict[str, Any]:
    """Return facts of the machine, its ceilings and its software, if the program ran on this machine.

    Args:
        hostname: where the program ran.
        devices: on which it computed.
        of_torch: facts that its process recorded; None if PyTorch must be imported for them.
    """
    if hostname != os.uname().nodename:
        warn(f"charact: this is not {hostname}, where the program ran: the record has no facts of the machine")
        return {}
    from charact.machine.ceilings_cache import cached_ceilings
    from charact.machine.facts import machine_facts, software_facts, torch_facts

    if of_torch is None:
        import torch

        of_torch = torch_facts() | {"num_threads": torch.get_num_threads()}
    machine, software = machine_facts(of_torch), software_facts(of_torch)
    return {"machine": machine, "software": software,
            **cached_ceilings(machine["fingerprint"], software["torch"], of_torch["num_threads"], devices)}


def _add_cases_of_program(writer: "RunWriter", options: "ScriptOptions", nothing: str) -> tuple[str, str]:
    """Add the event log of a watched program to its record; return the run's status, and a message if it is empty.

    Raises:
        UserError: the event log is damaged from its beginning, or the record cannot be written.
    """
    from charact.measure.script.spans.blind_spots import unwatched
    from charact.measure.script.spans.event_log_to_record import read_event_log, script_cases
    from charact.record.in_progress import TRACE

    watched = read_event_log(writer.directory)
    cases = script_cases(watched, writer.manifest["name"], options.script, options.skip, options.iterations,
                         options.passes)
    for damage in watched.damage:
        warn(f"charact: {writer.directory}: {damage}")
    if watched.damage and not cases:
        raise UserError(f"no iteration can be read from the damaged event log in {writer.directory}")
    if cases:
        writer.manifest |= {"ending": watched.ending or "killed",
                            "event_log_damage": [damage._asdict() for damage in watched.damage],
                            **_facts(writer.manifest["hostname"], [entry["device"] for entry, _ in cases],
                                     watched.torch_facts)}
        if "counters" in options.passes or any(tables.get("counters") for _, tables in cases):
            from charact.measure.counters import described  # imports PyTorch

            writer.manifest["counters"] = described()
        for entry, tables in cases:
            writer.add_case(entry, tables)
        if (trace := writer.directory / TRACE).exists():
            trace.rename(writer.trace_path(cases[0][0]["case"]))
    if watched.ending is None:
        return "interrupted", nothing
    if watched.iterations:
        nothing = (f"{options.script} ended after {len(watched.iterations)} iterations, which --skip leaves out: "
                   "give a smaller number")
    else:
        elsewhere = "; ".join(unwatched(watched.num_children, watched.num_threads))
        nothing = f"{options.script} {_BLIND if watched.compiled_whole else _ELSEWHERE}"
        if elsewhere:
            nothing = f"{options.script} {_NO_MODEL}; {elsewhere}"
    return "complete", nothing
