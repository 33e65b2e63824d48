"""Registry of workloads: those in `workloads/` and those of installed packages."""

from collections.abc import Sequence
from importlib.metadata import entry_points

from charact.core.errors import UserError
from charact.core.plugins import modules_below
from charact.core.text import did_you_mean
from charact.workload.base import Workload


def all_workloads() -> dict[str, Workload]:
    """Return every workload by name: those in `workloads/`, then those of entry points, with unique names."""
    built_in = sorted(modules_below("charact.workloads"), key=lambda module: module.__name__.rpartition(".")[2])
    modules = [(f"{module.__name__.removeprefix('charact.').replace('.', '/')}.py", module) for module in built_in]
    modules += [(f"entry point {point.value}", point.load()) for point in entry_points(group="charact.workloads")]
    found: dict[str, Workload] = {}
    for origin, module in modules:
        workloads: Sequence[Workload] | None = getattr(module, "WORKLOADS", None)
        if workloads is None:
            raise UserError(f"{origin} has no list named WORKLOADS: add one, or remove the file")
        for workload in workloads:
            if workload.name in found:
                raise UserError(f"{origin} repeats the workload {workload.name}: rename it")
            found[workload.name] = workload
    return found


def find_workload(name: str) -> Workload:
    """Return the workload with a name or alias."""
    workloads = all_workloads()
    by_name = workloads | {alias: workload for workload in workloads.values() for alias in workload.aliases}
    if name in by_name:
        return by_name[name]
    hint = did_you_mean(name, by_name, "")
    raise UserError(f"unknown workload '{name}': {hint}{' ' * bool(hint)}`charact list workloads` names all")
