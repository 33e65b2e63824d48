"""Options of `charact profile` that name a model of the user's own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from charact.errors import UserError

if TYPE_CHECKING:
    from charact.own.model import OwnModel

OPTIMIZER, LEARNING_RATE = "SGD", 0.01


def check_own_options(own: Mapping[str, Any], of_workloads: Mapping[str, Any]) -> None:
    """Refuse options of one kind where the other is run.

    Args:
        own: `--model` and the options that go with it; None where not given.
        of_workloads: what only built-in workloads heed; what is not given is false.

    Raises:
        UserError: a model and a workload are named, or neither, or an option of the other kind is given.
    """
    given = [option for option, value in of_workloads.items() if value]
    if own["--model"] is None:
        if stray := [option for option, value in own.items() if value is not None]:
            raise UserError(f"{stray[0]} is for your own model: name it with --model, or leave {stray[0]} out")
        if "WORKLOADS" not in given:
            raise UserError("name a workload, as in charact profile resnet50, or your own model with --model")
    elif "WORKLOADS" in given:
        raise UserError("--model takes the place of workloads: run them in a run of their own")
    elif given:
        raise UserError(f"{given[0]} is for the built-in workloads, not for --model: leave it out")
    elif own["--input-spec"] is None:
        raise UserError("--model needs --input-spec, which tells what it is fed, as in --input-spec 3xSxS")


def load_own_model(own: Mapping[str, Any]) -> "OwnModel":
    """The workload of the model that the options name.

    Raises:
        UserError: a name or the spec is wrong.
    """
    from charact.own.input_spec import parse_input_spec
    from charact.own.model import own_model

    learning_rate = own["--learning-rate"]
    return own_model(
        own["--model"], own["--model-args"] or "", parse_input_spec(own["--input-spec"]), own["--loss"],
        own["--optimizer"] or OPTIMIZER, LEARNING_RATE if learning_rate is None else learning_rate)
