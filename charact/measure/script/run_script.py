"""`charact run`: runs a program in this process as Python would, and records its spans."""

import builtins
import importlib.util
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from charact.core.errors import ProgramInterrupted, UserError
from charact.machine.rank_identity import rank_identity
from charact.measure.script.exit_handling import ExitHandler, StandardError
from charact.measure.script.hooks.import_hook import when_imported
from charact.measure.script.live_panel import start_panel
from charact.measure.script.ranks.collectives import enable_flight_recorder
from charact.measure.script.session import EnoughMeasured, Plan, Session
from charact.measure.script.spans.iterations import MAX_WARMUP_ITERATIONS
from charact.measure.script.spans.stack_sampler import INTERVAL_S, SPARSE_INTERVAL_S
from charact.record.in_progress import begin_run
from charact.record.rank_parts import note_stopped, part_folder


@dataclass(frozen=True)
class Program:
    """A module (as in `python -m`) or a script, and its arguments.

    Either `module` or `script` is None.
    """

    module: str | None
    script: str | None
    arguments: list[str]


def run_program(program: Program, *, skip: int | None, iterations: int | None, stop: bool, passes: Sequence[str],
                budget_frac: float | None, sample: bool, live: bool, hang_after_s: float | None, out: Path, label: str,
                quiet: bool, keep_arguments: bool, command_line: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run and record a program, then exit as the program does; the record is in a new directory in `out`.

    The arguments are the options of the command. With `skip` None, at most `MAX_WARMUP_ITERATIONS` are left out; with
    `iterations` None, all are measured, and the passes run after some. Ranks have no budget, so that all run the same
    passes. Variables that are not in `environment` are removed from `os.environ`.

    Raises:
        SystemExit: the program has ended.
        ProgramInterrupted: Ctrl-C ended the program.
    """
    start = _starter(program)
    identity = rank_identity(environment)
    run = begin_run(out.absolute() if identity is None else part_folder(out.absolute(), identity.job, identity.rank),
                    label, {
        "command_line": ["charact", *command_line], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {}, "software": {},
        "options": {"script": program.script or program.module, "arguments": program.arguments, "skip": skip,
                    "iterations": iterations, "passes": list(passes)},
        **({"arguments_kept": True} if keep_arguments else {}),
        **({} if identity is None else {"rank": identity.facts()}),
    })  # fmt: skip
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    if identity is not None:
        enable_flight_recorder(os.environ)
    if live:
        start_panel(run.directory, environment)
    error = StandardError()

    def on_problem(reason: str) -> None:
        error.print_line(f"{who}stopped measuring: {reason}")
        if identity is not None:
            note_stopped(run.directory, reason.partition(" while writing ")[0])  # the part's path is removed later

    who = "" if identity is None else f"rank {identity.rank} on {os.uname().nodename}: "
    warmup = MAX_WARMUP_ITERATIONS if skip is None and iterations is not None else skip or 0
    plan = Plan(warmup, iterations, stop, tuple(passes), budget_frac if identity is None else None)
    session = Session(run.directory, plan, on_problem,
                      sample_interval_s=INTERVAL_S if sample else SPARSE_INTERVAL_S, is_rank=identity is not None,
                      hang_after_s=hang_after_s, on_hang=lambda text: error.print_line(f"{who}{text}"))
    ending = ExitHandler(session, run, error, environment, quiet=quiet)
    ending.install()
    when_imported("torch", session.start)
    _run(start, session, ending, error)


def _run(start: Callable[[], None], session: Session, ending: ExitHandler, output: StandardError) -> NoReturn:
    """Run the program and describe its end; Python handles exit status, exit handlers and the text of `sys.exit`."""
    try:
        start()
    except EnoughMeasured:
        ending.description = "measured the requested number of iterations"
        raise
    except SystemExit as leaving:
        ending.description = f"sys.exit({leaving.code!r})"
        raise
    except BaseException as error:
        ending.description = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")
        _remove_own_frames(error, set())
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        if type(error).__name__ == "DistNetworkError" and "EADDRINUSE" in str(error):
            output.print_line(f"another program uses port {os.environ.get('MASTER_PORT')}: choose another MASTER_PORT, "
                              "or start the ranks with charact run --nproc, which finds a free one")
        if (memory := session.note_out_of_memory(error)) is not None:
            output.print_line(str(memory))
        ending.traceback = "".join(traceback.format_exception(error))
        raise (ProgramInterrupted if type(error) is KeyboardInterrupt else SystemExit)(1) from None
    raise SystemExit(0)


def _remove_own_frames(error: BaseException, hidden: set[int]) -> None:
    """Remove charact's frames from the traceback of an error, its causes and its sub-exceptions."""
    if id(error) in hidden:
        return
    hidden.add(id(error))
    here = Path(__file__).parent
    own: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        if not Path(trace.tb_frame.f_code.co_filename).is_relative_to(here):
            own.append(trace)
        trace = trace.tb_next
    for trace, following in zip(own, [*own[1:], None], strict=False):
        trace.tb_next = following
    error.__traceback__ = own[0] if own else None
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *inner):
        if other is not None:
            _remove_own_frames(other, hidden)


def _starter(program: Program) -> Callable[[], None]:
    """Return a function that runs the program as `__main__`, with its own `sys.argv` and `sys.path[0]`."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    directory = os.getcwd() if program.script is None else str(Path(program.script).resolve().parent)
    if not sys.flags.safe_path:  # with -P, Python adds no directory
        sys.path[0] = directory
    sys.argv = [program.script or "-m", *program.arguments]
    if program.script is None:
        assert program.module is not None
        start = _module_starter(program.module)
    else:
        path = os.path.abspath(program.script)
        code = _compiled(program.script, path)
        main.__dict__.update(__file__=path, __cached__=None, __annotations__={},
                             __loader__=SourceFileLoader("__main__", path))
        start = partial(exec, code, main.__dict__)

    def run() -> None:
        sys.modules["__main__"] = main
        start()

    return run


def _module_starter(name: str) -> Callable[[], None]:
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except ValueError:  # the name is empty, or a module without a spec, such as __main__
        spec = None
    if spec is None:
        raise UserError(f"module '{name}' not found: name one that python -m finds from here")
    # The function that `python -m` calls, so that tracebacks are the same.
    return partial(runpy._run_module_as_main, name)  # type: ignore[attr-defined]


def _compiled(script: str, path: str) -> CodeType:
    try:
        return compile(Path(script).read_bytes(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise UserError(f"cannot read {script} ({(error.strerror or str(error)).lower()}): name the script") from error
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{script} is not valid Python ({error.args[0]}{where}): name the script to run") from error
