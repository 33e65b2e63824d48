"""The command line: a command for every module of `commands/`; errors are one line and an exit status."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

import charact
from charact.core.errors import ProgramInterrupted, UserError
from charact.core.output import OUT, finish, occupy_closed_descriptors, show, warn
from charact.core.plugins import module_names

OK, FAILED, USER_ERROR = 0, 1, 2
_VALUE_NAMES = {int: "N", float: "X", Path: "PATH"}
"""Names of values in the help, by type."""

HELP = """Where the time and the memory of a deep-learning workload go, and how well the device is used.

charact runs a workload, times every phase of its iterations, and writes a record that you read in the terminal, in
one HTML file or in TensorBoard.

\b
  charact run train.py                          where the time of your own script goes
  charact compare --ab COMMAND COMMAND          whether a change helps
  charact profile resnet --input-sizes 32,224   measure ResNet-50 at 2 sizes
  charact report runs/*                         one HTML file of all runs
  charact tensorboard runs                      compare them in TensorBoard
  charact doctor                                what this machine can measure

Exit statuses: 0 success, 1 no case succeeded, a threshold failed or output was lost, 2 an error of the user, 128 plus
the signal's number after a signal (130 after Ctrl-C). charact run ends with the status of the script.
"""


@dataclass
class _State:
    show_traceback: bool = False
    command: str = "charact"


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"charact {charact.__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True,
                                          help="Show the version and exit.")] = False,
    show_traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    context.obj.show_traceback = show_traceback
    if context.invoked_subcommand is None:
        show(*context.get_help().split("\n"))
    else:
        context.obj.command = f"charact {context.invoked_subcommand}"


def build_app(arguments: Sequence[str] | None = None) -> typer.Typer:
    """Return the application with a command for every module of `charact.commands`.

    A module has a function `command`, or a `group` of commands. With `arguments` only what they need is imported: their
    command, or for `--help` the names of all commands with the first lines of their help. For an unknown command, and
    for the shell's completion, it is all of them.
    """
    # Markup off: rich would double the time of `--help`.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False,
                      context_settings={"help_option_names": ["-h", "--help"]})
    app.callback(help=HELP, invoke_without_command=True)(_root)
    modules, named, is_help = _command_modules(), None, False
    if arguments is not None and "_CHARACT_COMPLETE" not in os.environ:
        named = next((word for word in arguments if not word.startswith("-")), None)
        before = arguments[: arguments.index(named)] if named is not None else arguments
        is_help = named is None or bool({"-h", "--help"} & set(before))
    for name in modules if is_help or named not in modules else [named]:
        module = importlib.import_module(modules[name])
        if is_help:
            text = module.group.info.help if hasattr(module, "group") else module.command.__doc__
            app.command(name=name, help=text)(lambda: None)
        elif hasattr(module, "group"):
            app.add_typer(module.group, name=name)
        else:
            app.command(name=name, cls=getattr(module, "CLASS", None),
                        context_settings=getattr(module, "CONTEXT", None))(module.command)
    return app


def _command_modules() -> dict[str, str]:
    """Return the names of modules by the names of their commands; one that is a keyword of Python ends in `_`."""
    names = module_names("charact.commands")
    return {name.rpartition(".")[2].rstrip("_").replace("_", "-"): name for name in names}


def build_command(arguments: Sequence[str] | None = None) -> Any:
    """Return the command of `build_app`; its path parameters reject empty values, and its help names values plainly."""
    command = typer.main.get_command(build_app(arguments))
    _reject_empty_paths(command)
    _name_values(command)
    return command


def _name_values(command: Any) -> None:
    """Name the values of parameters in the help: PATH, not <path>, N, not <int range>, and 0 to 9, not 0<=x<=9."""
    for parameter in command.params:
        parameter._get_number_range_help_str = partial(_range, parameter)
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = lambda ctx: None
            parameter._usage_display_name = partial(_usage_name, parameter)
        elif not parameter.is_flag and parameter.metavar is None:
            kind = parameter.type_descriptor.annotation
            kinds = (kind, *get_args(kind))
            parameter.metavar = next((name for each, name in _VALUE_NAMES.items() if each in kinds), "TEXT")
    for inner in getattr(command, "commands", {}).values():
        _name_values(inner)


def _range(parameter: Any) -> str | None:
    """Return the range of a number for the help: 0 to 1,024, or at least 1; None if it has none."""
    least, most = parameter.min, parameter.max
    if least is None or most is None:
        return f"at least {least:,}" if least is not None else f"at most {most:,}" if most is not None else None
    return f"{least:,} to {'2^63 - 1' if most == 2**63 - 1 else format(most, ',')}"


def _usage_name(argument: Any) -> str:
    """Return an argument's name for the line of usage: RUN..., or [RUN...] if it may be left out."""
    name = str(argument.metavar)
    if "[" in name:  # it shows itself what may be left out
        return name
    name += "..." if argument.nargs != 1 and "..." not in name else ""
    return name if argument.required else f"[{name}]"


def _reject_empty_paths(command: Any) -> None:
    for parameter in command.params:
        kind = parameter.type_descriptor.annotation
        if Path in (kind, *get_args(kind)):
            parameter.process_value = partial(_process_path, parameter, parameter.process_value)
    for inner in getattr(command, "commands", {}).values():
        _reject_empty_paths(inner)


def _process_path(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Process a parameter's value; "" is rejected, because it would become the current directory."""
    if value == "" or (isinstance(value, list | tuple) and "" in value):
        option = parameter.opts[0]
        name = option if option.startswith("-") else parameter.metavar or option.upper()
        raise UserError(f"{name} is empty: name a file or directory, or leave it out")
    return process(context, value)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    The status is 0, 1 if output was lost, 2 for a user's error, 130 for Ctrl-C, or the command's own.
    """
    return finish(_run(arguments))  # a watched program's SystemExit passes: its output is its own


def _run(arguments: Sequence[str]) -> int:
    state = _State()
    try:
        command = build_command(arguments)
        status: Any = command.main(list(arguments), prog_name="charact", standalone_mode=False, obj=state)
    except UserError as error:
        return _report_error(str(error), error if state.show_traceback else None)
    except typer.TyperException as error:
        return _report_error(_usage_message(error, state.command), error if state.show_traceback else None)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        OUT.flush()
        if OUT.lost is not None:  # printing failed: `finish` reports it
            return FAILED
        if not isinstance(error, PermissionError) or error.filename is None:
            raise
        return _report_error(f"cannot open {os.fsdecode(error.filename)} (permission denied): "
                             "make it accessible for your user, or name another",
                             error if state.show_traceback else None)
    return OK if status is None else int(status)


def _usage_message(error: typer.TyperException, command: str) -> str:
    near = getattr(error, "possibilities", None)
    if (number := _number_message(error)) is not None:
        return f"{number} (see {command} --help)"
    message = f"{error.message}: did you mean {' or '.join(near)}?" if near else error.format_message().rstrip(".")
    message = message.replace("Value error, ", "")  # a prefix of typer's validator
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)"


def _number_message(error: typer.TyperException) -> str | None:
    """Return the message for a value that is no number or out of range; None for other errors.

    As in: --iterations: '-3' is not allowed: give a whole number (at least 1).
    """
    option, invalid = getattr(error, "param", None), error.__cause__
    if option is None:
        return None
    kind = option.type_descriptor.annotation
    kinds = {int, float} & {kind, *get_args(kind)}
    if not kinds or not isinstance(invalid, ValueError) or not hasattr(invalid, "errors"):
        return None
    value = str(invalid.errors()[0]["input"])[:40]
    allowed = _range(option)
    return (f"{option.opts[0]}: '{value}' is not allowed: give a {'whole ' if int in kinds else ''}number"
            f"{f' ({allowed})' if allowed else ''}")


def _report_error(message: str, error: Exception | None) -> int:
    if error is not None:
        warn(*"".join(traceback.format_exception(error)).rstrip("\n").split("\n"))
    warn(f"error: {' '.join(message.split())}")
    return USER_ERROR


def main() -> None:
    """Entry point of `charact`."""
    occupy_closed_descriptors()
    try:
        sys.exit(run(sys.argv[1:]))
    except ProgramInterrupted:
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
