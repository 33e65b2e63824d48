"""Options that name a model of the user's own, in the place of workloads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.core.errors import UserError

if TYPE_CHECKING:
    from charact.workload.user_model.model import OwnModel

OPTIMIZER, LEARNING_RATE = "SGD", 0.01

Model = Annotated[str | None, typer.Option(
    metavar="MODULE:NAME", help="Your own model instead: an nn.Module class or a function that makes one.")]
ModelArgs = Annotated[str | None, typer.Option(help="What it is called with: depth=50,width=0.5")]
Loss = Annotated[str | None, typer.Option(
    help="A loss of torch.nn.functional, or MODULE:NAME of a function of outputs and target. Default: the model's "
         "own (outputs.loss), else what fits the target, else a mean.")]
Optimizer = Annotated[str | None, typer.Option(help="A class of torch.optim, for your model. Default: SGD.")]
LearningRate = Annotated[float | None, typer.Option(min=0, help="Of that optimizer. Default: 0.01.")]


def check_own_options(own: Mapping[str, Any], of_workloads: Mapping[str, Any], command: str = "profile") -> None:
    """Refuse options of one kind where the other is run.

    Args:
        own: `--model` and the options that go with it; None where not given.
        of_workloads: what only built-in workloads heed; what is not given is false.
        command: what was called.

    Raises:
        UserError: a model and a workload are named, or neither, or an option of the other kind is given.
    """
    given = [option for option, value in of_workloads.items() if value]
    if own["--model"] is None:
        if stray := [option for option, value in own.items() if value is not None]:
            raise UserError(f"{stray[0]} is for your own model: name it with --model, or leave {stray[0]} out")
        if "WORKLOADS" not in given:
            raise UserError(f"name a workload, as in charact {command} resnet50, or your own model with --model")
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
    from charact.workload.user_model.input_spec import parse_input_spec
    from charact.workload.user_model.model import own_model

    learning_rate = own["--learning-rate"]
    return own_model(
        own["--model"], own["--model-args"] or "", parse_input_spec(own["--input-spec"]), own["--loss"],
        own["--optimizer"] or OPTIMIZER, LEARNING_RATE if learning_rate is None else learning_rate)
