"""`charact doctor`."""

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.core.bus_bandwidth import bus_factor
from charact.core.errors import UserError
from charact.core.output import show

if TYPE_CHECKING:
    from rich.text import Text

    from charact.machine.ceilings_cache import CachedCeilings, CachedCollectives, Ceiling
    from charact.measure.capabilities import Check

_NUM_LIMITS = 4
_MARKS = {"ok": ("✓ ok", "green"), "limited": ("! limited", "yellow"), "n/a": ("– n/a", "dim")}


def command(
    ceilings: Annotated[bool, typer.Option(
        "--ceilings", help="Show the ceilings of each device: FLOP/s, bytes/s, the cost of a launch. Measured "
                           "once per machine, in a few seconds.")] = False,
    nproc: Annotated[int | None, typer.Option(
        min=2, max=1024, metavar="N", help="With --ceilings: show the bandwidth of collectives between N ranks of this "
                                           "machine instead. Measured once, in some ten seconds.")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="With --ceilings: measure them again.")] = False,
    verbose: Annotated[bool, typer.Option(
        "--verbose", "-v", help="Show every check with its finding, reason and remedy.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all details.")] = False,
) -> None:
    """Show what this machine can measure, and what it lacks."""
    if refresh and not ceilings:
        raise UserError("--refresh measures ceilings again: add --ceilings, or leave it out")
    if nproc is not None and not ceilings:
        raise UserError(f"--nproc {nproc} measures collectives: add --ceilings, or leave it out")
    if nproc is not None and verbose:
        raise UserError(f"--nproc {nproc} measures collectives only, without checks: leave --verbose out")
    from dataclasses import asdict

    from charact.machine.facts import machine_facts, software_facts
    from charact.measure.capabilities import machine_checks

    machine, software = machine_facts(), software_facts()
    if nproc is not None:
        _show_collectives(machine, software, nproc, refresh=refresh, as_json=as_json)
        return
    reached = _reached(machine, refresh) if ceilings else {}
    checks = machine_checks(reached)
    if as_json:
        import json

        import msgspec

        shown = {"machine": machine, "software": software, "checks": [asdict(check) for check in checks]}
        if ceilings:
            shown["ceilings"] = {device: msgspec.to_builtins(kept) for device, kept in reached.items()}
        show(*json.dumps(shown, indent=1).split("\n"))
        return
    show(*_headline(machine, software), "")
    (_print_checks if verbose else _print_overview)(checks)
    for device, kept in reached.items():
        _print_ceilings(device, kept)


def _reached(machine: dict[str, Any], refresh: bool) -> "dict[str, CachedCeilings]":
    """Return the ceilings of every device: from the cache, unless they are to be measured again."""
    from charact.commands._shared.ceilings import kept_ceilings, new_ceilings
    from charact.machine.ceilings_cache import NotCached

    reached = {}
    for device in ("cpu", *(f"cuda:{gpu['index']}" for gpu in machine["gpus"])):
        try:
            if refresh:
                raise NotCached("to be measured again")
            reached[device] = kept_ceilings(machine["fingerprint"], device)
        except NotCached:
            reached[device] = new_ceilings(machine["fingerprint"], device, quiet=False)
    return reached


def _show_collectives(machine: dict[str, Any], software: dict[str, Any], num_ranks: int, *, refresh: bool,
                      as_json: bool) -> None:
    """Print the bandwidth of collectives between ranks, by each backend that this machine has the devices for."""
    from charact.commands._shared.ceilings import measured_collectives

    found = measured_collectives(machine["fingerprint"], num_ranks, refresh=refresh)
    if as_json:
        import json

        import msgspec

        shown = {"machine": machine, "software": software,
                 "collectives": {kept.backend: {**msgspec.to_builtins(kept), "best": kept.best} for kept in found}}
        show(*json.dumps(shown, indent=1).split("\n"))
        return
    show(*_headline(machine, software))
    for kept in found:
        _print_collectives(kept)


def _print_collectives(kept: "CachedCollectives") -> None:
    from charact.commands._shared.print_table import print_table
    from charact.core.units import digits, quantity, scale

    best = {row["operation"]: row for row in kept.best}
    rows = []
    for row in kept.rows:
        factor, scaled = scale([row["bus_bytes_per_s"]], "B/s")
        value, low, high = (digits(rate * factor) for rate in (row["bus_bytes_per_s"], row["low"], row["high"]))
        rows.append([
            f"  {row['operation']}", quantity(row["bytes"], "B"), quantity(row["time_s"], "s"),
            quantity(row["bytes"] / row["time_s"], "B/s"), f"{value} {scaled} ({low}–{high})",
            "best" if row is best[row["operation"]] else ""])
    rows += [[f"  {operation}", "", "", "", f"n/a ({reason})", ""]
             for operation, reason in kept.unavailable.items()]
    show("", f"Collectives between {kept.num_ranks} ranks ({kept.backend}), measured {kept.when}")
    print_table(None, ["", "size", "time", "algorithm", "bus (95 % interval)", ""], rows)
    show("Algorithm bandwidth: size over time; bus bandwidth: this times "
         + ", ".join(f"{bus_factor(operation, kept.num_ranks):.3g} ({operation})" for operation in best))


def _print_overview(checks: "list[Check]") -> None:
    """Print what works, a line for each group, and what limits, with the remedies; it fits on one screen."""
    groups = dict.fromkeys(check.group for check in checks)
    width = max(map(len, groups))
    for group in groups:
        texts = []
        notes = dict.fromkeys([None, *(check.note for check in checks if check.group == group)])
        for status, note in itertools.product(_MARKS, notes):
            # "phases, host clock" would read as two checks.
            names = ", ".join(check.name.replace(", ", " by ") for check in checks
                              if (check.group, check.status, check.note) == (group, status, note))
            label = " and ".join(filter(None, [None if status == "ok" else status, note]))
            texts += [f"{label}: {names}" if label else names] if names else []
        show(*_wrapped(f"{group:{width}}  ", "; ".join(texts)))
    # Without ceilings a case has no verdict; the other n/a checks need other hardware or software.
    limits = [check for check in checks if check.status == "n/a" and check.group == "Ceilings"]
    limits += [check for check in checks if check.status == "limited"]
    show("", "To fix first" if limits else "To fix first: nothing")
    for number, check in enumerate(limits[:_NUM_LIMITS], 1):
        show(*_wrapped(f"{number}. ", f"{check.name}: {check.finding}"))
        if check.remedy is not None:
            show(*_wrapped("   → ", check.remedy))
    left = [check for check in checks if check.status == "n/a" and check not in limits]
    more = f"{len(limits) - _NUM_LIMITS} more limits, " if len(limits) > _NUM_LIMITS else ""
    show("", *_wrapped("", f"charact doctor --verbose: every check; {more}reasons and remedies of {len(left)} n/a"))


def _wrapped(start: str, text: str) -> list[str]:
    """Return a text after its start as lines of the terminal's width, indented; into a pipe, as one line."""
    import shutil
    import textwrap

    from charact.core.output import OUT

    if not OUT.isatty():
        return [start + text]
    width = shutil.get_terminal_size().columns
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start))


def _print_checks(checks: "list[Check]") -> None:
    from rich.text import Text

    from charact.commands._shared.print_table import print_table

    rows: list[list[Text]] = []
    for group in dict.fromkeys(check.group for check in checks):
        rows.append([Text(group, style="bold"), Text(), Text()])
        for check in (check for check in checks if check.group == group):
            mark, style = _MARKS[check.status]
            finding = Text(check.finding)
            if check.remedy is not None:
                finding.append(f"\n→ {check.remedy}", style="cyan")
            for text in filter(None, (check.detail, check.note)):
                finding.append(f"\n{text}", style="dim")
            rows.append([Text(f"  {check.name}"), Text(mark, style=style), finding])
    print_table(None, ["", "", ""], rows)
    show(", ".join(f"{sum(check.status == status for check in checks)} {status}" for status in _MARKS))


def _headline(machine: dict[str, Any], software: dict[str, Any]) -> list[str]:
    from charact.core.units import quantity

    cpu, gpus = machine["cpu"], machine["gpus"]
    memory = f"{quantity(machine['memory_bytes'], 'B')} of memory"
    if machine["memory_limit_bytes"] is not None:
        memory += f" (limited to {quantity(machine['memory_limit_bytes'], 'B')})"
    devices = ", ".join(gpu["name"] for gpu in gpus) if gpus else f"no GPU ({machine['no_gpu_reason']})"
    return [f"{cpu['model']}, {cpu['num_usable_cores']} of {cpu['num_logical_cores']} cores usable, {memory}", devices,
            f"{machine['os']}, Python {software['python']}, torch {software['torch']}, charact {software['charact']}"]


def _print_ceilings(device: str, kept: "CachedCeilings") -> None:
    from charact.commands._shared.print_table import print_table

    sources = list(dict.fromkeys(row["datasheet_source"] for row in kept.ceilings if row["datasheet_source"]))
    columns = ["", "best median", "95 % interval", *(["datasheet"] if sources else [])]
    show("", f"Ceilings of {device}, measured {kept.when}")
    print_table(None, columns, [_ceiling_row(row)[:len(columns)] for row in kept.ceilings])
    reason = "not in datasheets of processors" if device == "cpu" else "not known for this device"
    show("Datasheet: " + ("; ".join(sources) or f"n/a ({reason})"))
    if theoretical := next((row["theoretical"] for row in kept.ceilings if row["theoretical"]), None):
        show(f"Memory by its clock and width, as the driver reports them: {theoretical / 1e9:,.0f} GB/s")


def _ceiling_row(row: "Ceiling") -> "list[str | Text]":
    from charact.core.units import digits, quantity, scale

    unit = {"flop_per_s": "FLOP/s", "bytes_per_s": "B/s", "s": "s"}[row["unit"]]
    name = " ".join([row["ceiling"].replace("_", " "), *filter(None, [row["precision"], row["level"]])])
    if row["level"] is not None:
        name += f", {quantity(row['working_set_bytes'] or 0, 'B')}"
    if row["origin"] is not None:
        name += f", reached by {row['origin']}"
    factor, scaled = scale([row["high"]], unit)
    interval = f"{digits(row['low'] * factor, 4)}–{digits(row['high'] * factor, 4)} {scaled}"
    return [f"  {name}", quantity(row["value"], unit), interval, _datasheet_cell(row, unit)]


def _datasheet_cell(row: "Ceiling", unit: str) -> "str | Text":
    """Format the datasheet's value and the share of it that was reached; more than 100 % is marked."""
    from rich.text import Text

    from charact.core.units import quantity, share

    if row["datasheet"] is None:
        return "n/a (not in the datasheet)"
    reached = f"{share(row['value'] / row['datasheet'])} of {quantity(row['datasheet'], unit)}"
    if row["value"] > row["datasheet"]:
        return Text(f"{reached}: above its datasheet", style="yellow")
    return reached
