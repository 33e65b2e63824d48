"""What the first run of a program says about it, from which remedies choose their settings.

A trial's process imports this file with the remedies, but reads no run: what reads one is imported where it is used.
With pandas in the process, the workers of a `DataLoader` start a quarter of a second later.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from charact.record.manifest import CaseEntry
from charact.record.manifest_program import ProgramFacts, ProgramSettings

if TYPE_CHECKING:
    import pandas as pd

    from charact.analysis.findings._finding import Place
    from charact.record.reader import Run


@dataclass(frozen=True)
class Program:
    """A program, or a built-in workload, that ran once under charact."""

    run: "Run"

    @cached_property
    def entry(self) -> CaseEntry:
        """The case that trials measure: that with the most time; of a built-in workload, with the longest iteration."""
        cases = self.run.iterations.groupby("case")
        times_s = cases["host_s"].sum()
        if not self.is_watched:  # how many iterations were measured has nothing to do with the workload
            times_s /= cases["iteration"].nunique()
        return self.run.entry(str(times_s.idxmax()))

    @property
    def is_watched(self) -> bool:
        """Whether it is a program of the user's, not a built-in workload."""
        from charact.analysis.common.script_attribution import is_watched

        return is_watched(self.run)

    @cached_property
    def settings(self) -> ProgramSettings:
        """Settings read from the live program; empty for a built-in workload."""
        programs = (entry.passes.timing.program for entry in self.run.entries)
        return next(filter(None, programs), ProgramFacts()).settings or ProgramSettings()

    @property
    def on_cpu(self) -> bool:
        """Whether it computes on the CPU."""
        return self.entry.device == "cpu"

    @property
    def num_cores(self) -> int:
        """Cores that the process may use."""
        threads = self.settings.threads
        cpu = self.run.manifest.get("machine", {}).get("cpu") or {}
        return int((threads and threads.num_usable_cores) or cpu.get("num_usable_cores") or 1)

    @property
    def num_threads(self) -> int | None:
        """PyTorch's threads inside an operator; None if not recorded."""
        threads = self.settings.threads
        return threads.intra_op if threads else self.run.options.threads

    @cached_property
    def cpu_flags(self) -> set[str]:
        """Instruction sets of this machine's processor, as Linux names them."""
        try:
            with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
                lines = (line for line in file if line.startswith(("flags", "Features")))
                return set(next(lines, "").partition(":")[2].split())
        except OSError:
            return set()

    @property
    def has_compiler(self) -> bool:
        """Whether a C++ compiler is installed, which `torch.compile` needs on a CPU."""
        return any(shutil.which(name) for name in ("c++", "g++", "clang++"))

    def change(self, code: str, option: str) -> str:
        """Return code that a remedy stands for; of a built-in workload also the option of `charact profile`."""
        return code if self.is_watched else f"{code}, as charact profile {option} does"

    def share(self, phase: str) -> float:
        """Return the share of a phase in the case's iteration."""
        from charact.analysis.profile.breakdown import phase_breakdown

        rows = phase_breakdown(self.run)
        return float(rows.loc[(rows["case"] == self.entry.case) & (rows["phase"] == phase), "share_frac"].sum())

    def operator_share(self, *kinds: str) -> float:
        """Return the share of operator types in the case's iteration, under the profiler; 0 if not measured."""
        from charact.analysis.profile.breakdown import case_operator_types

        rows = case_operator_types(self.run)
        return float(rows.loc[(rows["case"] == self.entry.case) & rows["operator_type"].isin(kinds),
                              "share_frac"].sum())

    def finding(self, *names: str) -> Any:
        """Return the first of the findings with these IDs, as a row of `findings`; None without one."""
        rows = self.findings[self.findings["finding"].isin(names)]
        return next(rows.itertuples(), None)

    def expected_frac(self, *names: str) -> float:
        """Return the middle of what a finding with one of these IDs may save, times a factor for its confidence."""
        from charact.analysis.findings._finding import WEIGHTS

        row = self.finding(*names)
        if row is None or row.recoverable_frac is None:
            return 0.0
        return float(sum(row.recoverable_frac) / 2 * WEIGHTS[row.confidence])

    def advice(self, tried: Collection[str]) -> str | None:
        """Return cause and remedy of the largest finding that is none of some IDs, as a sentence; None without one."""
        rows = self.findings[~self.findings["finding"].isin(list(tried))]
        row: Any = next(rows.itertuples(), None)
        return None if row is None else f"{row.cause}: {row.remedy}."

    @cached_property
    def findings(self) -> "pd.DataFrame":
        """Findings about the program, see `charact.analysis.findings`."""
        from charact.analysis.findings import findings

        return findings(self.run)


def place_of(settings: Any) -> "Place | None":
    """Return the line that creates a loader or an optimizer, from its settings; None if it was not recorded."""
    from charact.analysis.findings._finding import Place

    return Place.of(settings)
