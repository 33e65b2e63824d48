"""The command line: a command for every module of `commands/`; errors are one line and an exit status."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import charact
from charact.commands._shared.options import Command, takes
from charact.core.errors import ProgramInterrupted, UserError
from charact.core.output import OUT, finish, occupy_closed_descriptors, show, warn
from charact.core.plugins import module_names

OK, FAILED, USER_ERROR = 0, 1, 2

HELP = """Where the time and the memory of a deep-learning workload go, and how well the device is used.

charact runs a workload, times every phase of its iterations, and writes a record that you read in the terminal, in
one HTML file or in TensorBoard.

\b
  charact run train.py                          where the time of your own script goes
  charact try train.py                          which remedies help it
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


def build_command(arguments: Sequence[str] | None = None) -> Any:
    """Return the root command with a command for every module of `charact.commands`.

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
            for inner in module.group.registered_commands:
                inner.cls = Command
            app.add_typer(module.group, name=name)
        else:
            app.command(name=name, cls=getattr(module, "CLASS", Command),
                        context_settings=getattr(module, "CONTEXT", None))(module.command)
    return typer.main.get_command(app)


def _command_modules() -> dict[str, str]:
    """Return the names of modules by the names of their commands; one that is a keyword of Python ends in `_`."""
    names = module_names("charact.commands")
    return {name.rpartition(".")[2].rstrip("_").replace("_", "-"): name for name in names}


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
    option: Any = getattr(error, "param", None)
    invalid: Any = error.__cause__
    is_whole = option is not None and takes(option, int)
    if option is not None and (is_whole or takes(option, float)) and hasattr(invalid, "errors"):
        value = str(invalid.errors()[0]["input"])[:40]
        message = f"{option.opts[0]}: '{value}' is not allowed: give a {'whole ' if is_whole else ''}number"
        if option.min is not None:
            message += f" (at least {option.min:,})" if option.max is None else f" ({option.min:,} to {option.max:,})"
    elif near := getattr(error, "possibilities", None):
        message = f"{error.message}: did you mean {' or '.join(near)}?"
    else:
        message = error.format_message().rstrip(".").replace("Value error, ", "")  # a prefix of typer's validator
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)"


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
