"""The commands that a case of a sweep may run, the names of their options, and a check of names given as values."""

import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.plugins import module_names
from charact.core.text import did_you_mean
from charact.record.schema import PRECISIONS
from charact.sweeps.definition import ARGUMENTS, RESERVED, SweepCase

if TYPE_CHECKING:
    import torch

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
    return {words: [name for parameter in command.params for name in _names(words, parameter) if name not in RESERVED]
            for words, command in _commands().items()}


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

    Args:
        cases: the cases, whose command lines can be parsed.
        here: whether they run on this machine, whose device and data sets are then checked, too.
    """
    problems: dict[SweepCase, str] = {}
    known: dict[str, str] = {}
    for case in dict.fromkeys(replace(case, repeat=1) for case in cases):
        text = _impossible(case, known, here)
        if text:
            problems[case] = text
    if problems:
        case, problem = next(iter(problems.items()))
        others = f", and {len(problems) - 1} more such cases," if len(problems) > 1 else ""
        raise UserError(f"{case.label}{others} cannot run: {problem}, or leave it out with `exclude`; nothing was run")


def _impossible(case: SweepCase, known: dict[str, str], here: bool) -> str:
    """Return why a case cannot be; empty if it can. `known` has the answers for equal cases of workloads."""
    options = dict(case.options)
    try:
        if case.command == "ops" and "problem" in options:
            from charact.ops import parse_problem

            parse_problem(options["problem"])
        for name in options.get("workload", "").split(",") if "workload" in options else ():
            _check_workload(case.command, name.strip(), options, known, here=here)
    except UserError as error:
        return str(error)
    return ""


def _check_workload(command: str, name: str, options: dict[str, str], known: dict[str, str], *, here: bool) -> None:
    """Check the cases of a workload as its command does before it writes anything."""
    from charact.commands._shared import options as opt
    from charact.execution.case import cases_of
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
    for case in cases_of(workload, sizes, batches, ["infer"], precisions, device=_device(options, runs_here),
                         data=request, channels_last="channels-last" in options):
        key = f"{case.id} {case.channels_last} {request}"
        if key not in known:
            known[key] = ""
            try:
                case.check(here=runs_here)
            except UserError as error:
                known[key] = str(error)
        if known[key]:
            raise UserError(known[key])


def _device(options: dict[str, str], here: bool) -> "torch.device":
    import torch

    from charact.machine.facts import resolve_device

    return resolve_device(options.get("device", "auto")) if here else torch.device("cuda")


def _names(command: str, parameter: object) -> list[str]:
    if getattr(parameter, "param_type_name", "") == "argument":
        return [ARGUMENTS[command]]
    return [option.removeprefix("--") for option in getattr(parameter, "opts", []) if option.startswith("--")]


def problem_of(command: str, name: str, value: str) -> str:
    """Return what is wrong with a value that names a workload, a data set or a suite of operations; empty if nothing.

    Similar names are suggested. Other values are checked by the command itself.
    """
    if name == "workload":
        found = (_unknown(_workloads(), part.strip(), _find_workload) for part in value.split(","))
        return next(filter(None, found), "")
    if name == "data":
        return _unknown(_datasets(), value, _find_dataset)
    if name == "suite" and command == "ops":
        return _unknown((), value, _find_suite)
    return ""


@cache
def _workloads() -> tuple[str, ...]:
    return tuple(completion.workload_names(""))


@cache
def _datasets() -> tuple[str, ...]:
    return tuple(completion.datasets(""))


def _unknown(declared: Collection[str], name: str, find: Callable[[str], object]) -> str:
    """Return why there is no such name; empty if there is.

    Args:
        declared: names that are known without importing PyTorch.
        name: the name.
        find: finds it among all names, also computed ones.
    """
    if name in declared:
        return ""
    try:
        find(name)
    except UserError as error:
        return str(error)
    return ""


def _find_workload(name: str) -> object:
    from charact.workload.registry import find_workload

    return find_workload(name)


def _find_dataset(name: str) -> object:
    from charact.datasets._common.registry import find_dataset

    return find_dataset(name)


def _find_suite(name: str) -> object:
    from charact.ops import all_suites

    suites = all_suites()
    names = ", ".join(suites)
    if name not in suites:
        raise UserError(f"unknown suite '{name}': {did_you_mean(name, suites, f'one of {names}')}")
    return suites[name]
