"""Runs the cases of a sweep that have not ended."""

from collections.abc import Mapping
from pathlib import Path

from charact.commands._shared.print_table import print_table
from charact.commands.sweep.known import check_cases, check_possible
from charact.commands.sweep.live import progress_of
from charact.commands.sweep.status import plan_rows, plan_summary, summary
from charact.core.errors import UserError
from charact.core.output import show, warn
from charact.sweeps import local
from charact.sweeps import slurm as on_slurm
from charact.sweeps.definition import Definition
from charact.sweeps.directory import SweepDirectory
from charact.sweeps.progress import statuses

_COORDINATOR = "coordinator"


def parameters_of(text: str | None) -> dict[str, str]:
    """Parse options of sbatch: `partition=gpu,exclusive=true`."""
    found: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if not name.strip() or not value.strip():
            raise UserError(f"--slurm: '{part}' is no NAME=VALUE: write partition=gpu,exclusive=true")
        found[name.strip().lstrip("-").replace("-", "_")] = value.strip()
    return found


def run_sweep(definition: Definition, out: Path | None, slurm: Mapping[str, str] | None, *, dry_run: bool, retry: bool,
              quiet: bool) -> int:
    """Run the cases of a sweep that have not ended; return the exit status: 1 if a case did not succeed.

    Args:
        definition: the sweep.
        out: directory of the sweep; None for the default.
        slurm: options of sbatch; None runs the cases here.
        dry_run: only list the cases.
        retry: also run failed cases again.
        quiet: print no progress.
    """
    check_cases(definition.cases)
    check_possible(definition.cases, here=slurm is None and all(case.node is None for case in definition.cases))
    directory = SweepDirectory(out if out is not None else Path("sweeps") / definition.name)
    if dry_run:
        found = statuses(directory, definition.cases)
        print_table(f"{definition.name}: {len(found):,} cases", ["case", "state", "last time", "expected"],
                    plan_rows(found))
        show(*plan_summary(found))
        return 0
    if slurm is None and any(case.node is not None for case in definition.cases):
        raise UserError("cases name types of node, which only Slurm has: add --launcher slurm")
    directory.create(definition)
    with directory.locked(_COORDINATOR) as is_ours:
        if not is_ours:
            raise UserError(f"another process runs the sweep in {directory.path}: wait for it, or follow it with "
                            f"charact sweep status {directory.path}")
        if retry:
            for case in definition.cases:
                if directory.state(case) == "failed":
                    directory.forget(case)
        found = statuses(directory, definition.cases)
        pending, lost = [one.case for one in found if not one.is_done], []
        try:
            with progress_of(directory, definition.cases, enabled=not quiet) as progress:
                if slurm is None:
                    local.run_cases(directory, pending, progress.begin, progress.end)
                else:
                    lost = on_slurm.run_cases(directory, pending, slurm, definition.nodes, progress.show)
            if lost:
                warn(f"{len(lost):,} jobs left the queue without a result (cancelled, or their node died): the "
                     "same command runs them again")
        except KeyboardInterrupt:
            goes_on = "" if slurm is None else "jobs continue; "
            warn(f"interrupted: {goes_on}the same command runs the rest ({directory.path})")
            return 130
    found = statuses(directory, definition.cases)
    show(*summary(found), f"Wrote {directory.path}",
         f"  one report  charact sweep merge {directory.path}")
    return int(any(one.state != "ok" for one in found))

