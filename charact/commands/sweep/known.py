"""The commands that a case of a sweep may run, and the names of their options."""

from charact.sweeps.definition import ARGUMENTS, RESERVED

COMMANDS = ("profile", "train", "infer", "memory", "ops", "bricks run")


def known_options() -> dict[str, list[str]]:
    """Return the names of each command's options and argument, without dashes and without those that sweeps set."""
    import typer

    from charact.commands import bricks, infer, memory, ops, profile, train

    app = typer.Typer()
    for module in (profile, train, infer, memory, ops):
        app.command(name=module.__name__.rpartition(".")[2])(module.command)
    app.add_typer(bricks.group, name="bricks")
    root = typer.main.get_command(app)
    found: dict[str, list[str]] = {}
    for words in COMMANDS:
        command = root
        for word in words.split():
            command = command.commands[word]  # type: ignore[attr-defined]
        found[words] = [name for parameter in command.params for name in _names(parameter) if name not in RESERVED]
    return found


def _names(parameter: object) -> list[str]:
    """Return the names of an option, or the name under which a case gives an argument."""
    if getattr(parameter, "param_type_name", "") == "argument":
        name = str(getattr(parameter, "metavar", None) or getattr(parameter, "name", "")).lower()
        return [name] if name in ARGUMENTS else []
    return [option.removeprefix("--") for option in getattr(parameter, "opts", []) if option.startswith("--")]
