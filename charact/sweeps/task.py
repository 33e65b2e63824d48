"""Runs one case of a sweep in this process: `python -m charact.sweeps.task DIRECTORY ID`.

The process holds the case's lock, so that no case runs twice at a time, and writes how the case ended. If it is killed,
the lock is free and the case has no outcome, whoever started the process.
"""

import runpy
import sys
from pathlib import Path

from charact.sweeps.definition import SweepCase
from charact.sweeps.directory import SweepDirectory, failure_of, now, run_name, succeeded

TAKEN = 75
"""Exit status if another process runs the case. *Source*: EX_TEMPFAIL of sysexits.h."""
_SIGNALED = 128
_LONGEST_REASON = 500


def run_case(directory: SweepDirectory, case: SweepCase) -> int:
    """Run a case unless it has ended or another process runs it; return its exit status, or `TAKEN`."""
    with directory.locked(case.id) as is_ours:
        if not is_ours:
            return TAKEN
        if directory.is_done(case):
            return 0
        begun = now()
        directory.remove_unfinished(case)
        run = directory.run_of(case)
        if run is None:
            sys.argv = ["charact", *case.arguments, f"--out={directory.runs}", f"--name={run_name(case)}", "--quiet"]
            status = 0
            try:
                runpy.run_module("charact", run_name="__main__")
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            run = directory.run_of(case)
        else:  # published, but killed before the outcome was written
            status = int(not succeeded(run))
        # A command that a signal has ended publishes what it has; that is no finished case.
        if status > _SIGNALED:
            directory.remove_unfinished(case)
            return status
        reason = ""
        if status != 0:
            recorded = "" if run is None else failure_of(run)
            reason = " ".join(recorded.split())[:_LONGEST_REASON] or last_line(directory.log(case))
        directory.end(case, "ok" if status == 0 else "failed", begun, status, reason, run)
        return status


def last_line(log: Path) -> str:
    """Return the last line of a case's output that is not empty: commands end with their error."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "its output is missing"
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")[:_LONGEST_REASON]


def main() -> int:
    """Run the case that the command line names."""
    directory = SweepDirectory(Path(sys.argv[1]))
    case = next(case for case in directory.definition().cases if case.id == sys.argv[2])
    return run_case(directory, case)


if __name__ == "__main__":
    sys.exit(main())
