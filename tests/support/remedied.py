"""Programs in memory, from whose records remedies choose settings, and programs that run with remedies applied."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from charact.record.manifest_program import ProgramSettings
from charact.record.reader import Run
from charact.remedies.process import Command, Trial
from charact.remedies.program import Program
from charact.remedies.remedy import Setting, all_remedies
from support.records import OPTIONS, watched_entry
from support.watched_programs import operator

Row = dict[str, Any]
PHASE_S = {"data": 0.2, "forward": 0.2, "backward": 0.4, "update": 0.1, "other": 0.1}
"""Seconds per phase of an iteration of 1 s."""


LINE_OF_LOADER, LINE_OF_OPTIMIZER = 19, 22
WATCHED_PROGRAM = textwrap.dedent("""\
    import gc, warnings
    import torch
    from torch.utils.data import DataLoader, Dataset
    warnings.simplefilter("ignore")
    facts = {}
    class Items(Dataset):
        def __len__(self): return 8
        def __getitem__(self, index): return torch.full((), torch.get_num_threads())
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
        def forward(self, images):
            facts["images"] = images.is_contiguous(memory_format=torch.channels_last)
            facts["weights"] = self.conv.weight.is_contiguous(memory_format=torch.channels_last)
            return self.conv(images).mean()
    if __name__ == "__main__":
        net = Net()
        loader = DataLoader(Items(), batch_size=2)
        other_loader = DataLoader(Items(), batch_size=2)
        facts["workers"] = [loader.num_workers, loader.persistent_workers, other_loader.num_workers]
        optimizer = torch.optim.SGD(net.parameters(), lr=.1)
        other_optimizer = torch.optim.SGD(net.parameters(), lr=.1)
        facts["fused"] = [bool(each.param_groups[0]["fused"]) for each in (optimizer, other_optimizer)]
        torch.set_num_threads(2)
        facts["threads"] = torch.get_num_threads()
        torch.autograd.set_detect_anomaly(True)
        facts["anomaly_by_function"] = torch.is_anomaly_enabled()
        torch.autograd.set_detect_anomaly(False)
        with torch.autograd.detect_anomaly():
            facts["anomaly_in_context"] = torch.is_anomaly_enabled()
        facts["anomaly_after"] = torch.is_anomaly_enabled()
        facts["denormal"] = (torch.tensor([1e-38]) * 0.01).item()
        facts["frozen"] = []
        for step in range(2):
            images = torch.ones(2, 3, 8, 8)
            output = net(images)
            facts["frozen"].append(gc.get_freeze_count())
            optimizer.zero_grad()
            facts["frozen"].append(gc.get_freeze_count())
            kept = [[] for _ in range(1000)]
            output.backward()
            optimizer.step()
        facts["type"] = str(output.dtype)
        facts["training_has_graph"] = output.requires_grad
        net.eval()
        facts["inference_has_graph"] = net(images).requires_grad
        facts["threads_of_workers"] = [int(value) for batch in loader for value in batch]
    """)
"""Program that records what remedies change."""


class Trials(NamedTuple):
    """What the program saw without and with remedies."""

    without: dict[str, Any]
    remedied: dict[str, Any]


def program(settings: Row | None = None, *, findings: Mapping[str, tuple[float, float, str]] | None = None,
            causes: Mapping[str, str] | None = None, operators: Mapping[str, float] | None = None, device: str = "cpu",
            num_cores: int = 4, is_watched: bool = True, options: Row | None = None, software: Row | None = None,
            **entry: Any) -> Program:
    """Return a program of iterations of 1 s.

    `findings`: ends of the recoverable share and the confidence, by ID; `causes`: their texts. `operators`: seconds of
    the forward by operator type.
    """
    facts = watched_entry("train.py", device=device) | entry
    facts["passes"]["timing"]["program"] = {"settings": settings}
    facts["passes"]["operators"] = {"status": "ok", "reason": None, "phase_s": PHASE_S}
    iterations = [{"case": facts["case"], "iteration": number, "phase": phase, "part": None, "host_s": time_s,
                   "device_s": np.nan} for number in range(6) for phase, time_s in PHASE_S.items()]
    rows = [{"case": facts["case"], **operator("forward", f"aten::{kind}", time_s, operator_type=kind)}
            for kind, time_s in (operators or {}).items()]
    manifest = {
        "cases": [facts], "software": software or {}, "machine": {"cpu": {"num_usable_cores": num_cores}},
        "options": ({"script": "train.py", "arguments": [], "passes": []} if is_watched else OPTIONS) | (options or {})}
    run = Run(Path("none"), manifest, _tables={"iterations": pd.DataFrame(iterations),
                                               **({"operators": pd.DataFrame(rows)} if rows else {})})
    result = Program(run)
    vars(result)["findings"] = pd.DataFrame(
        [{"finding": name, "recoverable_frac": [low, high], "confidence": confidence,
          "cause": (causes or {}).get(name, "")} for name, (low, high, confidence) in (findings or {}).items()],
        columns=["finding", "recoverable_frac", "confidence", "cause"])
    assert msgspec.convert(settings or {}, ProgramSettings) == result.settings
    return result


def chosen(remedy: str, program: Program) -> list[Setting]:
    """Return the settings of a remedy for a program."""
    settings = all_remedies()[remedy].settings(program)
    assert not isinstance(settings, str), settings
    assert {each.remedy for each in settings} == {remedy}
    return settings


def refused(remedy: str, program: Program) -> str:
    """Return the reason why a remedy cannot be tried on a program."""
    reason = all_remedies()[remedy].settings(program)
    assert isinstance(reason, str)
    return reason


def tried(directory: Path, text: str, *settings: tuple[str, Row], options: tuple[str, ...] = ()) -> tuple[Trial, Row]:
    """Run a program as a trial with remedies and their values; return the trial and the program's `facts`.

    `options` are those of `charact run`.
    """
    (directory / "train.py").write_text(f"{text}\nimport json\nwith open('facts.json', 'w') as file:\n"
                                        "    json.dump(facts, file)\n")
    (directory / "facts.json").unlink(missing_ok=True)
    given: Sequence[Setting] = [Setting(name, values, name, name) for name, values in settings]
    trial = Command("run", (*options, "train.py"), b"", directory).measured([], given, directory / "runs", 100.0)
    if (error := directory / "runs" / "stderr.txt").exists():
        print(error.read_text())  # pytest shows it where the test fails
    path = directory / "facts.json"
    return trial, json.loads(path.read_text()) if path.exists() else {}
