"""Running a program in this process as Python would run it alone, watched, to whatever end."""

import builtins
import importlib.util
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from charact.core.errors import ProgramInterrupted, UserError
from charact.measure.script.exit_handling import Ending, StandardError
from charact.measure.script.hooks.import_hook import when_imported
from charact.measure.script.live_panel import start_panel
from charact.measure.script.session import EnoughMeasured, Plan, Session
from charact.measure.script.spans.event_log_to_record import MOST_WARMUP
from charact.record.in_progress import begin_run


@dataclass(frozen=True)
class Program:
    """A module (as `python -m`) or a script, and its arguments."""

    module: str | None
    script: str | None
    arguments: list[str]


def run_program(program: Program, *, skip: int | None, iterations: int | None, stop: bool, passes: Sequence[str],
                sample: bool, live: bool, out: Path, label: str, quiet: bool,
                keep_arguments: bool, command_line: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a program, watched, and end as it does; its record lies below `out` when it has ended.

    Args:
        program: what to run.
        skip: iterations to leave out first; None for a warm-up.
        iterations: so many are measured; None for all.
        stop: whether the program ends when they have been, and the passes, too.
        passes: those that follow the timing.
        sample: whether a thread looks where the program is while no phase runs.
        live: whether a process of its own shows meanwhile how the program is doing.
        out: directory that the run's directory is made in.
        label: name of the run.
        quiet: whether only errors and the record's place are said at the end.
        keep_arguments: whether the record has arguments as they are, with secrets.
        command_line: what the user typed after `charact`.
        environment: variables that the program is to see.

    Raises:
        UserError: the script is not there or no Python, or the record cannot be begun.
        SystemExit: the program has ended.
    """
    start = _starter(program)
    run = begin_run(out.absolute(), label, {
        "command_line": ["charact", *command_line], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {}, "software": {},
        "options": {"script": program.script or program.module, "arguments": program.arguments, "skip": skip,
                    "iterations": iterations, "passes": list(passes)},
        **({"arguments_kept": True} if keep_arguments else {}),
    })  # fmt: skip
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    if live:
        start_panel(run.directory, environment)
    error = StandardError()
    warmup = MOST_WARMUP if skip is None and iterations is not None else skip or 0
    session = Session(run.directory, Plan(warmup, iterations, stop, tuple(passes)),
                      lambda why: error.say(f"stopped measuring: {why}"), sample=sample)
    ending = Ending(session, run, error, environment, quiet=quiet)
    ending.await_it()
    when_imported("torch", session.start)
    _run(start, ending)


def _run(start: Callable[[], None], ending: Ending) -> NoReturn:
    """Run to the end, and leave the rest to Python: status, handlers at exit, the text of a `sys.exit`."""
    try:
        start()
    except EnoughMeasured:
        ending.words = "measured as many iterations as asked for"
        raise
    except SystemExit as leaving:
        ending.words = f"sys.exit({leaving.code!r})"
        raise
    except BaseException as error:
        ending.words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")
        _show(error)
        raise (ProgramInterrupted if type(error) is KeyboardInterrupt else SystemExit)(1) from None
    raise SystemExit(0)


def _show(error: BaseException) -> None:
    """Print the traceback as the program's own."""
    _hide_ourselves(error, set())
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.excepthook(type(error), error, error.__traceback__)


def _hide_ourselves(error: BaseException, hidden: set[int]) -> None:
    """Take our frames out of the traceback of an error, and of those that it came from."""
    if id(error) in hidden:
        return
    hidden.add(id(error))
    here = Path(__file__).parent
    own = [trace for trace in _trace(error) if not Path(trace.tb_frame.f_code.co_filename).is_relative_to(here)]
    for one, following in zip(own, [*own[1:], None], strict=False):
        one.tb_next = following
    error.__traceback__ = own[0] if own else None
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *inner):
        if other is not None:
            _hide_ourselves(other, hidden)


def _trace(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _starter(program: Program) -> Callable[[], None]:
    """What runs the program as `__main__`, with the arguments and the first place to import from that it would have.

    Raises:
        UserError: it is not there, or is no Python.
    """
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    place = os.getcwd() if program.script is None else str(Path(program.script).resolve().parent)
    if not sys.flags.safe_path:  # then Python puts none first
        sys.path[0] = place
    sys.argv = [program.script or "-m", *program.arguments]
    if program.script is not None:
        start = _script_starter(program.script, main)
    else:
        assert program.module is not None
        start = _module_starter(program.module)

    def run() -> None:
        sys.modules["__main__"] = main
        start()

    return run


def _module_starter(name: str) -> Callable[[], None]:
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except ValueError:  # no name at all, or such as __main__
        spec = None
    if spec is None:
        raise UserError(f"there is no module {name}: name one that python -m finds from here")
    # What `python -m` calls, down to the lines of a traceback.
    return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _script_starter(script: str, main: ModuleType) -> Callable[[], None]:
    path = os.path.abspath(script)
    code = _compiled(script, path)
    main.__dict__.update(__file__=path, __cached__=None, __annotations__={},
                         __loader__=SourceFileLoader("__main__", path))
    return lambda: exec(code, main.__dict__)


def _compiled(script: str, path: str) -> CodeType:
    """Code of a script.

    Raises:
        UserError: it is not there, or is no Python.
    """
    try:
        return compile(Path(script).read_bytes(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise UserError(f"cannot read {script} ({(error.strerror or str(error)).lower()}): name the script") from error
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{script} is no Python ({error.args[0]}{where}): name the script that python runs") from error
