"""The cases of a watched program, from its event log into its record."""

import os
from typing import Any

from charact.core.errors import UserError
from charact.core.output import warn
from charact.measure.script.spans.event_log_to_record import ScriptOptions
from charact.record.rank_parts import stopped
from charact.record.writer import RunWriter

_BLIND = ("called no model of PyTorch outside of fully compiled functions, so there is nothing to report: run it "
          "without torch.compile, or name its phases with charact.Profiler")
_NO_MODEL = "called no model of PyTorch in the watched thread, so there is nothing to report"
_ELSEWHERE = (f"{_NO_MODEL}. charact.Profiler watches another thread, charact run another process (torchrun "
              "--no-python charact run train.py)")


def _facts(hostname: str, devices: list[str], of_torch: dict[str, Any] | None, ranks: set[tuple[int, str]],
           ) -> dict[str, Any]:
    """Return facts of the machine, its ceilings and its software, if the program ran on this machine.

    Args:
        hostname: where the program ran.
        devices: on which it computed.
        of_torch: facts that its process recorded; None if PyTorch must be imported for them.
        ranks: number of ranks and backend of its collectives; empty if there are none.
    """
    if hostname != os.uname().nodename:
        warn(f"charact: this is not {hostname}, where the program ran: the record has no facts of the machine")
        return {}
    from charact.machine.ceilings_cache import cached_ceilings
    from charact.machine.collective_ceilings import best_collectives
    from charact.machine.facts import machine_facts, software_facts, torch_facts

    if of_torch is None:
        import torch

        of_torch = torch_facts() | {"num_threads": torch.get_num_threads()}
    machine, software = machine_facts(of_torch), software_facts(of_torch)
    return {"machine": machine, "software": software,
            **cached_ceilings(machine["fingerprint"], software["torch"], of_torch["num_threads"], devices),
            **(best_collectives(machine["fingerprint"], software["torch"], ranks) if ranks else {})}


def _ranks(manifest: dict[str, Any], backend: str | None) -> set[tuple[int, str]]:
    """Return the number of ranks and their backend; empty if the program is no rank or called no collective."""
    return {(manifest["rank"]["world_size"], backend)} if "rank" in manifest and backend else set()


def add_cases_of_program(writer: RunWriter, options: ScriptOptions, nothing: str) -> tuple[str, str]:
    """Add the event log of a watched program to its record; return the run's status, and a message if it is empty."""
    from charact.measure.script.spans.blind_spots import unwatched
    from charact.measure.script.spans.event_log_to_record import read_event_log, script_cases
    from charact.record.in_progress import TRACE

    watched = read_event_log(writer.directory)
    ending = watched.ending or stopped(writer.directory) or "killed"
    if "rank" in writer.manifest:
        writer.manifest |= {"ending": ending, "traceback": watched.traceback, "ended_s": watched.ended_s,
                            "hung": watched.hung}
    cases = script_cases(watched, writer.manifest["name"], options.script, options.skip, options.iterations,
                         options.passes)
    for damage in watched.damage:
        warn(f"charact: {writer.directory}: {damage}")
    if watched.damage and not cases:
        raise UserError(f"no iteration can be read from the damaged event log in {writer.directory}")
    if cases:
        writer.manifest |= {"ending": ending,
                            "event_log_damage": [damage._asdict() for damage in watched.damage],
                            **_facts(writer.manifest["hostname"], [entry["device"] for entry, _ in cases],
                                     watched.torch_facts, _ranks(writer.manifest, watched.arrivals.backend))}
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
