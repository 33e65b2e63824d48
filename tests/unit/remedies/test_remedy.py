"""All remedies, and those that a user names."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from support.remedied import program

from charact.core.errors import UserError
from charact.core.plugins import modules_in
from charact.remedies import kinds
from charact.remedies.program import Program
from charact.remedies.remedy import Setting, all_remedies, find_remedies

SETTINGS: dict[str, Any] = {
    "threads": {"intra_op": 4, "num_usable_cores": 2}, "matmul_tf32": False,
    "models": [{"num_convolutions": 2, "channels_last": False, "inference_with_grad": 2}],
    "optimizers": [{"class": "Adam", "implementation": "foreach", "file": "train.py", "line": 3}],
    "loaders": [{"class": "DataLoader", "num_workers": 2, "file": "train.py", "line": 4}]}
FINDINGS = {name: (0.1, 0.3, "high") for name in (
    "data_loading", "denormals", "garbage_collection", "anomaly_detection", "inference_graph", "contention")}
PROGRAMS = [
    program(), program(is_watched=False), program(device="cuda:0"),
    program(SETTINGS, findings=FINDINGS, operators={"convolution": 0.1, "attention": 0.1}),
    program(SETTINGS, findings=FINDINGS, operators={"convolution": 0.1, "attention": 0.1}, device="cuda:0")]


def test_each_file_is_a_remedy() -> None:
    (folder,) = kinds.__path__
    assert len(all_remedies()) == len(list(Path(folder).glob("[!_]*.py")))
    assert {remedy.numerics for remedy in all_remedies().values()} == {"same", "rounded", "changed"}


@pytest.mark.parametrize("of", PROGRAMS)
@pytest.mark.parametrize("name", list(all_remedies()))
def test_a_remedy_has_settings_that_it_can_apply_or_a_reason(name: str, of: Program) -> None:
    remedy = all_remedies()[name]
    settings = remedy.settings(of)
    if isinstance(settings, str):
        assert settings
        return
    assert settings
    for setting in settings:
        assert setting.remedy == name
        assert json.loads(json.dumps(setting.values)) == setting.values
        assert 0 <= setting.expected_frac < 1
        environment = remedy.environment(setting.values)
        if not environment:
            inspect.signature(remedy.apply).bind(**setting.values)
        # A patch finds the call's name before its first parenthesis.
        assert not setting.added or setting.change == f"{setting.change.partition('(')[0]}(…, {setting.added})"


def test_all_remedies_have_settings_for_some_program() -> None:
    without = {name for name, remedy in all_remedies().items()
               if not any(isinstance(remedy.settings(of), list) for of in PROGRAMS)}
    assert without <= {"allocator", "compile"}  # these need something that this machine may lack


def test_remedies_by_name_are_in_the_users_order_once() -> None:
    assert [remedy.name for remedy in find_remedies(["workers", "fused", "workers"])] == ["workers", "fused"]


@pytest.mark.parametrize(("names", "hint"), [(["fused", "worker"], "workers"), (["zzz"], "channels-last"),
                                             ([], "channels-last")])
def test_an_unknown_name_and_no_name(names: list[str], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        find_remedies(names)


def test_settings_with_the_same_values_are_equal() -> None:
    """A proof takes the place of the candidate with its settings."""
    one, same = (Setting("a", {"x": 1}, "a", "a") for _ in range(2))
    assert one == same
    assert one != Setting("a", {"x": 2}, "a", "a")


def test_the_findings_of_remedies_exist() -> None:
    known = {name for module in modules_in("charact.analysis.findings") for name, value in vars(module).items()
             if inspect.isfunction(value)}
    named = {finding for remedy in all_remedies().values() for finding in remedy.findings}
    assert len(named) > 8
    assert named <= known
