"""Options that name the user's own model instead of workloads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.core.errors import UserError

if TYPE_CHECKING:
    from charact.workload.user_model.model import OwnModel

OPTIMIZER, LEARNING_RATE = "SGD", 0.01

Model = Annotated[str | None, typer.Option(
    metavar="MODULE:NAME", help="Your own model: an nn.Module class or a function that returns one.")]
ModelArgs = Annotated[str | None, typer.Option(help="Its arguments: depth=50,width=0.5")]
Loss = Annotated[str | None, typer.Option(
    help="A loss of torch.nn.functional, or MODULE:NAME of a function of outputs and target. Default: the model's "
         "own (outputs.loss), else one that fits the target, else a mean.")]
Optimizer = Annotated[str | None, typer.Option(help="A class of torch.optim, for your model. Default: SGD.")]
LearningRate = Annotated[float | None, typer.Option(min=0, help="Learning rate of this optimizer. Default: 0.01.")]


def check_own_options(own: Mapping[str, Any], of_workloads: Mapping[str, Any], command: str = "profile") -> None:
    """Check that options of workloads and of the user's model are not mixed.

    Args:
        own: `--model` and its options; None if not given.
        of_workloads: options of built-in workloads only; false if not given.
        command: the command's name.
    """
    given = [option for option, value in of_workloads.items() if value]
    if own["--model"] is None:
        if stray := [option for option, value in own.items() if value is not None]:
            raise UserError(f"{stray[0]} is for your own model: add --model, or leave {stray[0]} out")
        if "WORKLOADS" not in given:
            raise UserError(f"give a workload, as in charact {command} resnet50, or your own model with --model")
    elif "WORKLOADS" in given:
        raise UserError("--model replaces workloads: measure workloads in a separate run")
    elif given:
        raise UserError(f"{given[0]} is for the built-in workloads, not for --model: leave it out")
    elif own["--input-spec"] is None:
        raise UserError("--model needs its inputs: add --input-spec, as in --input-spec 3xSxS")


def load_own_model(own: Mapping[str, Any]) -> "OwnModel":
    """Return the workload of the user's model."""
    from charact.workload.user_model.input_spec import parse_input_spec
    from charact.workload.user_model.model import own_model

    learning_rate = own["--learning-rate"]
    return own_model(
        own["--model"], own["--model-args"] or "", parse_input_spec(own["--input-spec"]), own["--loss"],
        own["--optimizer"] or OPTIMIZER, LEARNING_RATE if learning_rate is None else learning_rate)
