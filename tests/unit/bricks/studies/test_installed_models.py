"""Models of other packages: those that are installed, and the commands of the study that name them."""

import shlex
from importlib.machinery import ModuleSpec
from itertools import pairwise

import pytest

from charact.bricks.studies import installed_models
from charact.bricks.studies.chapters import dlbricks
from charact.bricks.studies.installed_models import GROUPS, installed_groups
from charact.studies.study import all_studies
from charact.workload.user_model.input_spec import parse_input_spec


@pytest.mark.parametrize("packages", [set(), {"transformers"}, {"torchvision"}, {"transformers", "torchvision"}])
def test_packages_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch, packages: set[str]) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name in packages else None

    monkeypatch.setattr(installed_models, "find_spec", find_spec)
    groups = installed_groups()
    assert {group.package for group in groups} == packages
    targets = [target for group in groups for target in group.targets]
    assert len(set(targets)) == len(targets)
    commands = [shlex.split(command) for command in dlbricks._full_commands()]
    assert len(commands) == 10 * (1 + len(groups))
    for g in range(1, 11):
        of_one = [command for command in commands if command[-1] == f"{{directory}}/suite-g{g}"]
        assert {command[command.index("-g") + 1] for command in of_one} == {str(g)}
        assert [word for command in of_one for word in command if ":" in word] == targets
    specs = [command[command.index("--input-spec") + 1] for command in commands if "--input-spec" in command]
    assert set(specs) == {group.input_spec for group in groups}


def test_there_are_30_models_with_transformers_alone() -> None:
    own = dlbricks._FULL.split()
    assert len(own) + sum(len(group.names) for group in GROUPS if group.package == "transformers") >= 30


def test_each_group_has_inputs_that_a_command_reads() -> None:
    for group in GROUPS:
        assert parse_input_spec(group.input_spec).inputs


def test_the_full_study_measures_models_of_other_packages_by_name() -> None:
    after = all_studies()["dlbricks"].after_each
    assert after is not None
    words = shlex.split(after["full"])
    named = [value for option, value in pairwise(words) if option == "--model"]
    assert named == [target for group in installed_groups() for target in group.targets]
    assert "--model" not in after["quick"]


def test_an_unknown_model_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'alexnet'"):
        _ = installed_models.alexnet  # of torchvision
    assert callable(installed_models.bert)


def test_a_model_of_transformers_has_its_default_configuration() -> None:
    """MobileNetV2 has 3.5 million parameters, of which 1.3 million belong to the classifier, which is left out."""
    pytest.importorskip("transformers")
    model = installed_models.mobilenet_v2()
    assert 2.0e6 < sum(weights.numel() for weights in model.parameters()) < 2.4e6
