"""What a program's first run says, from which remedies choose."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.records import OPTIONS, watched_entry
from support.remedied import program

from charact.record.reader import Run
from charact.remedies.program import Program


def test_the_case_with_the_most_time_is_the_programs(tmp_path: Path) -> None:
    cases = {"train.py-train": [0.1] * 10, "train.py-infer": [0.6, 0.6]}
    rows = [{"case": case, "iteration": number, "phase": "forward", "part": None, "host_s": time_s, "device_s": None}
            for case, times_s in cases.items() for number, time_s in enumerate(times_s)]
    manifest = {"cases": [watched_entry("train.py", case=case) for case in cases], "options": {"script": "train.py"}}
    assert Program(Run(tmp_path, manifest, _tables={"iterations": pd.DataFrame(rows)})).entry.case == "train.py-infer"


def test_the_case_of_a_built_in_workload_is_that_with_the_longest_iteration(tmp_path: Path) -> None:
    cases = {"train": [0.3, 0.3], "infer": [0.1] * 10}
    rows = [{"case": case, "iteration": number, "phase": phase, "part": None, "host_s": time_s / 2, "device_s": None}
            for case, times_s in cases.items() for number, time_s in enumerate(times_s) for phase in ("data", "other")]
    manifest = {"cases": [watched_entry("mlp", case=case) for case in cases], "options": OPTIONS}
    assert Program(Run(tmp_path, manifest, _tables={"iterations": pd.DataFrame(rows)})).entry.case == "train"


def test_a_change_of_a_built_in_workload_has_the_option_that_does_the_same() -> None:
    assert program().change("set_flag()", "--flag") == "set_flag()"
    assert program(is_watched=False).change("set_flag()", "--flag") == "set_flag(), as charact profile --flag does"


def test_settings_are_those_of_the_live_program() -> None:
    assert program({"cudnn_benchmark": True}).settings.cudnn_benchmark is True
    assert program().settings.loaders == []


def test_devices() -> None:
    assert program().on_cpu
    assert not program(device="cuda:0").on_cpu
    assert not program(is_watched=False).is_watched


def test_cores_and_threads() -> None:
    both = program({"threads": {"intra_op": 3, "num_usable_cores": 2}}, num_cores=8)
    assert (both.num_cores, both.num_threads) == (2, 3)
    recorded = program(num_cores=8, options={"threads": 5})
    assert (recorded.num_cores, recorded.num_threads) == (8, 5)
    unknown = program(num_cores=0)
    assert (unknown.num_cores, unknown.num_threads) == (1, None)
    assert program({"threads": {"intra_op": None}}).num_threads is None


def test_shares_are_those_of_the_programs_case() -> None:
    of = program(operators={"GEMM": 0.1})
    case, other = of.entry.case, of.entry.case + "-other"
    iterations = pd.DataFrame([{"case": other, "iteration": 0, "phase": "backward", "part": None, "host_s": 0.1,
                                "device_s": np.nan}])
    manifest = of.run.manifest | {"cases": [*of.run.manifest["cases"], of.run.manifest["cases"][0] | {"case": other}]}
    both = Program(Run(of.run.path, manifest, _tables={
        "iterations": pd.concat([of.run.iterations, iterations]),
        "operators": pd.concat([of.run.operators, of.run.operators.assign(case=other)])}))
    assert both.entry.case == case
    assert both.share("backward") == pytest.approx(0.4)
    assert both.operator_share("GEMM") == pytest.approx(0.1)


def test_any_compiler_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"clang++"}
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in installed else None)
    assert program().has_compiler
    installed.clear()
    assert not program().has_compiler


def test_shares_of_an_iteration() -> None:
    of = program(operators={"GEMM": 0.1, "convolution": 0.05, "copy": 0.01})
    assert of.share("backward") == pytest.approx(0.4)
    assert of.share("loss") == 0
    assert of.operator_share("GEMM") == pytest.approx(0.1)
    assert of.operator_share("GEMM", "convolution") == pytest.approx(0.15)
    assert of.operator_share("attention") == 0
    assert program().operator_share("GEMM") == 0


@pytest.mark.parametrize(("confidence", "factor"), [("high", 1.0), ("medium", 0.8), ("low", 0.3)])
def test_expected_savings(confidence: str, factor: float) -> None:
    of = program(findings={"denormals": (0.2, 0.4, confidence), "threads": (0.1, 0.1, "high")})
    assert of.expected_frac("denormals") == pytest.approx(0.3 * factor)
    assert of.expected_frac("threads", "denormals") == pytest.approx(0.3 * factor)  # the first finding of the program
    assert of.expected_frac("contention") == 0
    assert of.finding("threads").recoverable_frac == [0.1, 0.1]
    assert of.finding("contention") is None


def test_a_finding_without_a_saving() -> None:
    of = program(findings={"threads": (0.2, 0.4, "high")})
    of.findings["recoverable_frac"] = None
    assert of.expected_frac("threads") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_instruction_sets_are_those_of_this_machine() -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = program().cpu_flags
    assert flags
    assert all(f" {flag}" in text for flag in flags)


def test_the_advice_is_that_of_the_first_finding_that_was_not_tried() -> None:
    of = program()
    assert of.advice(()) is None
    vars(of)["findings"] = pd.DataFrame({"finding": ["padding", "threads"], "cause": ["much padding", "many threads"],
                                         "remedy": ["pad less", "use fewer"]})
    assert of.advice(()) == "much padding: pad less."
    assert of.advice({"padding"}) == "many threads: use fewer."
    assert of.advice({"padding", "threads"}) is None
