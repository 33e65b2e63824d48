"""`charact recover`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.errors import UserError
from charact.output import warn

if TYPE_CHECKING:
    from charact.writer import RunWriter

_BLIND = ("called no model of PyTorch outside of functions that it compiled whole: there is nothing to tell unless it "
          "runs without torch.compile, or names its phases with charact.Profiler")
_ELSEWHERE = ("called no model of PyTorch in the thread that is watched: there is nothing to tell. charact.Profiler "
              "watches another thread, charact run another process (torchrun --no-python charact run train.py)")


def command(
    partial: Annotated[list[Path], typer.Argument(help="Hidden directories of killed runs: runs/.partial-...")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the runs' paths only.")] = False,
) -> int:
    """Make whole runs of what killed ones had written.

    \b
      charact recover runs/.partial-*
    """  # noqa: D301  (click wants the character itself)
    any_ok, refused = False, []
    for directory in partial:
        try:
            any_ok |= _recover(directory, quiet)
        except UserError as error:  # one that is still going on is no reason to leave the others
            refused.append(str(error))
    if refused:
        raise UserError("; ".join(refused))
    return 0 if any_ok else 1


def _recover(directory: Path, quiet: bool) -> bool:
    """Make a whole run of a partial one; returns whether any of its cases succeeded."""
    from charact.measure.autophase.spool import remove_spool
    from charact.writer import RunWriter

    writer = RunWriter.reopen(directory)
    if writer.manifest["status"] == "running":
        status, nothing = "interrupted", f"{directory} held nothing that had been measured, and is removed"
        if "script" in writer.manifest["options"]:
            status, nothing = _add_cases_of_program(writer, nothing)
        if not writer.manifest["cases"]:
            writer.discard()
            raise UserError(nothing)
        writer.close(status)
        remove_spool(directory)
    from charact.commands._publishing import publish_and_tell

    return publish_and_tell(writer, quiet)


def _facts(hostname: str, devices: list[str]) -> dict[str, Any]:
    """Facts of the machine, what its devices can reach, and its software, where the program ran on this one."""
    if hostname != os.uname().nodename:
        warn(f"charact: this is not {hostname}, where the program ran: the record holds no facts of the machine")
        return {}
    from charact.commands._ceilings import recorded_ceilings
    from charact.hardware import machine_facts, software_facts

    machine = machine_facts()
    return {"machine": machine, "software": software_facts(), **recorded_ceilings(machine["fingerprint"], devices)}


def _add_cases_of_program(writer: "RunWriter", nothing: str) -> tuple[str, str]:
    """Add what a watched program left to its record; returns the run's status, and what to say if that was nothing."""
    from charact.measure.autophase.record import read_spool, script_cases
    from charact.measure.autophase.stretches import TRACE
    from charact.measure.counters import described

    options = writer.manifest["options"]
    watched = read_spool(writer.directory)
    cases = script_cases(watched, writer.manifest["name"], str(options["script"]), options["skip"],
                         options["iterations"], options["passes"])
    if cases:
        writer.manifest |= {"ending": watched.ending or "killed", "counters": described(),
                            **_facts(writer.manifest["hostname"], [entry["device"] for entry, _ in cases])}
        for entry, tables in cases:
            writer.add_case(entry, tables)
        if (trace := writer.directory / TRACE).exists():
            trace.rename(writer.trace_path(cases[0][0]["case"]))
    if watched.ending is None:
        return "interrupted", nothing
    if watched.iterations:
        nothing = (f"{options['script']} ended after {len(watched.iterations)} iterations, which --skip leaves out: "
                   "give a smaller number")
    else:
        nothing = f"{options['script']} {_BLIND if watched.compiled_whole else _ELSEWHERE}"
    return "complete", nothing
