"""The commands that a case of a sweep may run, the names of their options, and a check of names given as values."""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.plugins import module_names
from charact.core.text import did_you_mean
from charact.record.schema import PRECISIONS
from charact.sweeps.definition import ARGUMENTS, RESERVED, SweepCase

COMMANDS = ("profile", "train", "infer", "memory", "ops", "bricks run")


@cache
def _commands() -> dict[str, Any]:
    """Return the commands by name, as the command line defines them."""
    app = typer.Typer()
    for path in module_names("charact.commands"):
        name = path.rpartition(".")[2]
        if name in {words.split()[0] for words in COMMANDS}:
            module = importlib.import_module(path)
            if hasattr(module, "group"):
                app.add_typer(module.group, name=name)
            else:
                app.command(name=name)(module.command)
    root = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for words in COMMANDS:
        found[words] = root
        for word in words.split():
            found[words] = found[words].commands[word]
    return found


def known_options() -> dict[str, list[str]]:
    """Return the names of each command's options and argument, without dashes and without those that sweeps set."""
    known = {}
    for words, command in _commands().items():
        names = [name for parameter in command.params for name in (
            [ARGUMENTS[words]] if parameter.param_type_name == "argument"
            else [option.removeprefix("--") for option in parameter.opts if option.startswith("--")])]
        known[words] = [name for name in names if name not in RESERVED]
    return known


def check_cases(cases: Iterable[SweepCase]) -> None:
    """Check that the command line of each case can be parsed."""
    for case in dict.fromkeys(replace(case, repeat=1) for case in cases):
        arguments = case.arguments[len(case.command.split()):]
        try:
            _commands()[case.command].make_context(case.command, arguments)
        except typer.TyperException as error:
            message = error.format_message().removesuffix(".")
            raise UserError(f"{case.label}: {message} (see charact {case.command} --help)") from error


def check_possible(cases: Sequence[SweepCase], *, here: bool) -> None:
    """Check that each case can be: its workload has the variant, the network takes the input size, and the data fit.

    If they run here, on this machine, its device and data sets are checked, too.
    """
    problems: dict[SweepCase, str] = {}
    known: dict[str, str] = {}
    for case in dict.fromkeys(replace(case, repeat=1) for case in cases):
        options = dict(case.options)
        try:
            if case.command == "ops" and "problem" in options:
                from charact.ops import parse_problem

                parse_problem(options["problem"])
            for name in options.get("workload", "").split(",") if "workload" in options else ():
                _check_workload(case.command, name.strip(), options, known, here=here)
        except UserError as error:
            problems[case] = str(error)
    if problems:
        case, problem = next(iter(problems.items()))
        others = f", and {len(problems) - 1} more such cases," if len(problems) > 1 else ""
        raise UserError(f"{case.label}{others} cannot run: {problem}, or leave it out with `exclude`; nothing was run")


def _check_workload(command: str, name: str, options: dict[str, str], known: dict[str, str], *, here: bool) -> None:
    """Check the cases of a workload as its command does before it writes anything; `known` has earlier answers."""
    import torch

    from charact.commands._shared import options as opt
    from charact.execution.case import cases_of
    from charact.machine.facts import resolve_device
    from charact.workload.registry import find_workload

    workload = find_workload(name).prepare(options.get("variant"))
    if "protocol" in options:  # it replaces sizes and data
        return
    sizes, batches = (opt.parse_sizes(options[key], f"--{key}") if key in options else None
                      for key in ("input-sizes", "batch-sizes"))
    precisions = opt.parse_choices(options.get("precision", "fp32"), "--precision", PRECISIONS)
    runs_here = here and command != "memory"
    directory = options.get("data-dir")
    request = opt.data_request(
        options.get("data", "synthetic") if runs_here else "synthetic",
        Path(directory).expanduser() if directory and runs_here else None, options.get("synthetic"),
        options.get("split", "test" if command == "infer" else "train"), 0)
    device = resolve_device(options.get("device", "auto")) if runs_here else torch.device("cuda")
    for case in cases_of(workload, sizes, batches, ["infer"], precisions, device=device, data=request,
                          channels_last="channels-last" in options):
        key = f"{case.id} {case.channels_last} {request}"
        if key not in known:
            known[key] = ""
            try:
                case.check(here=runs_here)
            except UserError as error:
                known[key] = str(error)
        if known[key]:
            raise UserError(known[key])


def problem_of(command: str, name: str, value: str) -> str:
    """Return what is wrong with a value that names a workload, a data set or a suite of operations; empty if nothing.

    Similar names are suggested. Other values are checked by the command itself. Names that files declare are known
    without importing PyTorch.
    """
    try:
        if name == "workload":
            for part in (part.strip() for part in value.split(",")):
                if part not in _declared(completion.workload_names):
                    from charact.workload.registry import find_workload

                    find_workload(part)
        elif name == "data" and value not in _declared(completion.datasets):
            from charact.datasets._common.registry import find_dataset

            find_dataset(value)
        elif name == "suite" and command == "ops":
            from charact.ops import all_suites

            if value not in (suites := all_suites()):
                hint = did_you_mean(value, suites, f"one of {', '.join(suites)}")
                return f"unknown suite '{value}': {hint}"
    except UserError as error:
        return str(error)
    return ""


@cache
def _declared(complete: Callable[[str], list[str]]) -> frozenset[str]:
    return frozenset(complete(""))
