"""A case is written down so that another process can bring it to life, and the driver's permissions are read."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.small import small_case

from charact.datasets._common.request import DataRequest, Synthetic
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.counters._support import protocol
from charact.measure.counters._support.protocol import (
    ADMIN_ONLY,
    UnavailableError,
    admin_only,
    counters_unavailable,
    privileged,
)
from charact.measure.counters._support.rerun_case import Ended, child_failure, read_case, run_child, write_case
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

CPU = torch.device("cpu")
EVERYTHING = Case(
    find_workload("resnet18").prepare("cifar"), 32, 4, "infer", "bf16", torch.device("cuda", 1),
    DataRequest("cifar10", Path("data"), "test", 5, 4, Synthetic(num_classes=7, length_mean_frac=0.5)), num_workers=2,
    channels_last=True, compiled=True, accumulate=3)


def own_case(arguments: str = "", loss: str | None = None) -> Case:
    workload = own_model("support.rerun_nets:Product", arguments, parse_input_spec("S -> float32 64"), loss, "AdamW",
                         1e-4).prepare()
    return Case(workload, 32, 8, "train", "fp32", CPU, DataRequest(seed=3))


def back(case: Case, tmp_path: Path) -> Case:
    write_case(case, tmp_path / "case.json")
    return read_case(tmp_path / "case.json")


@pytest.mark.parametrize("case", [
    EVERYTHING, replace(EVERYTHING, data=DataRequest(), compiled=False),
    Case(find_workload("rnn_lm").prepare(), 16, 8, "train", "fp32", CPU, DataRequest()),
    own_case(), own_case("features=32", "mse_loss"),
], ids=["everything", "default data", "text", "own model", "own model with arguments"])  # fmt: skip
def test_a_case_comes_back_as_it_was(tmp_path: Path, case: Case) -> None:
    again = back(case, tmp_path)
    if case.workload.name == "Product":  # a loss is a new function each time
        assert replace(again.workload, loss_of=case.workload.loss_of) == case.workload
        again = replace(again, workload=case.workload)
    assert again == case


@pytest.mark.parametrize("loss", [None, "mse_loss"])
def test_it_computes_the_same(tmp_path: Path, loss: str | None) -> None:
    losses = []
    for case in (own_case("features=32", loss), back(own_case("features=32", loss), tmp_path)):
        loop = Loop(case)
        losses.append([loop.iteration(contextlib.nullcontext).loss for _ in range(2)])
        loop.close()
    assert losses[0] == losses[1]


def test_threads_are_as_many_as_they_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        write_case(own_case(), tmp_path / "case.json")
        torch.set_num_threads(1)
        read_case(tmp_path / "case.json")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_workload_that_differs_from_the_one_of_its_name_is_refused(tmp_path: Path) -> None:
    changed = replace(find_workload("resnet18").prepare(), source="changed by hand")
    with pytest.raises(UnavailableError, match="resnet18 in another process"):
        write_case(replace(EVERYTHING, workload=changed), tmp_path / "case.json")
    with pytest.raises(UnavailableError, match="two_layers in another process"):
        write_case(small_case(), tmp_path / "case.json")


def test_a_child_finds_the_modules_that_its_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("print('found')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    ended = run_child([sys.executable, "-c", "import only_here"], 60, tmp_path / "out.txt")
    assert ended == Ended(0, "found\n")


@pytest.mark.parametrize(("ended", "reason"), [
    (Ended(1, "Traceback\nValueError: the model is broken\n\n"), "failed: ValueError: the model is broken"),
    (Ended(1, "torch.OutOfMemoryError: CUDA out of memory. Tried\n"), "not enough memory"),
    (Ended(-11, ""), "ended by signal 11"), (Ended(3, ""), "failed: status 3"),
])
def test_how_a_child_ended_is_told_in_one_line(ended: Ended, reason: str) -> None:
    refusal = child_failure(ended)
    assert refusal is not None
    assert reason in refusal.reason
    assert "\n" not in refusal.reason
    assert child_failure(Ended(0, "out of memory")) is None


@pytest.mark.parametrize(("text", "restricted"), [
    ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nUsePageAttributeTable: 1\n", True),
    ("RmProfilingAdminOnly: 0\n", False), ("RmProfilingAdminOnlyElse: 1\n", False), ("", False),
])
def test_the_drivers_parameter_is_read(tmp_path: Path, text: str, restricted: bool) -> None:
    (tmp_path / "params").write_text(text, encoding="ascii")
    assert admin_only(tmp_path / "params") is restricted
    assert not admin_only(tmp_path / "none")


@pytest.mark.parametrize(("held", "may"), [
    ("000001ffffffffff", True), ("0000000000200000", True), ("0000004000000000", True), ("00000000a80425fb", False),
    ("0000000000000000", False),
])
def test_capabilities_are_read(tmp_path: Path, held: str, may: bool) -> None:
    (tmp_path / "status").write_text(f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{held}\n", encoding="ascii")
    assert privileged(tmp_path / "status") is may
    assert not privileged(tmp_path / "none")


def test_a_refusal_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in str(counters_unavailable())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds none" in str(counters_unavailable())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(protocol, "admin_only", lambda: True)
    monkeypatch.setattr(protocol, "privileged", lambda: False)
    assert counters_unavailable() == ADMIN_ONLY
    monkeypatch.setattr(protocol, "privileged", lambda: True)
    assert counters_unavailable() is None
