"""`charact doctor`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from charact.measure.capabilities import Check

_MARKS = {"ok": ("✓ ok", "green"), "limited": ("! limited", "yellow"), "n/a": ("– n/a", "dim")}


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print it for a program to read.")] = False,
) -> None:
    """Show what this machine can measure, and what to mend."""
    from dataclasses import asdict

    from charact.hardware import machine_facts, software_facts
    from charact.measure.capabilities import machine_checks

    machine, software, checks = machine_facts(), software_facts(), machine_checks()
    if as_json:
        import json

        print(json.dumps({"machine": machine, "software": software, "checks": [asdict(check) for check in checks]},
                         indent=1))
        return
    _print(machine, software, checks)


def _print(machine: dict[str, Any], software: dict[str, Any], checks: "list[Check]") -> None:
    from rich.text import Text

    from charact.commands._tables import print_table

    print(_headline(machine, software), end="\n\n")
    rows: list[list[Text]] = []
    for group in dict.fromkeys(check.group for check in checks):
        rows += [[Text(group, style="bold"), Text(), Text()]]
        rows += [_row(check) for check in checks if check.group == group]
    print_table(None, ["", "", ""], rows)
    print(", ".join(f"{sum(check.status == status for check in checks)} {status}" for status in _MARKS))


def _headline(machine: dict[str, Any], software: dict[str, Any]) -> str:
    cpu, gpus = machine["cpu"], machine["gpus"]
    memory = f"{machine['memory_bytes'] / 1e9:.1f} GB of memory"
    if machine["memory_limit_bytes"] is not None:
        memory += f" (limited to {machine['memory_limit_bytes'] / 1e9:.1f} GB)"
    devices = ", ".join(gpu["name"] for gpu in gpus) if gpus else f"no GPU ({machine['no_gpu_reason']})"
    return (f"{cpu['model']}, {cpu['num_usable_cores']} of {cpu['num_logical_cores']} cores usable, {memory}\n"
            f"{devices}\n"
            f"{machine['os']}, Python {software['python']}, torch {software['torch']}, charact {software['charact']}")


def _row(check: "Check") -> "list[Text]":
    from rich.text import Text

    mark, style = _MARKS[check.status]
    finding = Text(check.finding)
    if check.remedy is not None:
        finding.append(f"\n→ {check.remedy}", style="cyan")
    return [Text(f"  {check.name}"), Text(mark, style=style), finding]
