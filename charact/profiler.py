"""Python API: profiles a program's own code, as a `with` block or as repeated calls of a function."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from html import escape
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from charact.core.errors import UserError
from charact.core.files import release
from charact.core.output import warn
from charact.measure.script.annotations import Annotations
from charact.measure.script.exit_handling import TerminationHandler
from charact.measure.script.session import Plan, Session, is_recording
from charact.record.in_progress import LOCK, BegunRun, begin_run
from charact.record.redaction import redacted_arguments

if TYPE_CHECKING:
    import pandas as pd

    from charact.record.reader import Run

Item = TypeVar("Item")

_ENTERING = threading.Lock()


class Profiler:
    """Profiles the code of a `with` block, and writes its run when the block ends, also by an error.

        with charact.Profiler("my model") as p:
            for batch in p.iterate(loader):
                ...
        p.phases

    It finds iterations and phases by recording calls into PyTorch by the thread that entered the block: loaders,
    modules, losses, backward, optimizers. `iterate`, `phase` and `step` annotate what it cannot find. Messages go to
    standard error. If SIGTERM or SIGHUP ends the process, the run is written first, unless the program handles these
    signals itself. If the process is killed, `charact recover` writes the run.

    *Error*: phase records take some 45 µs per iteration on the host, `iterate` some 30 µs more.

    Args:
        name: name of the run.
        out: parent directory of the run's directory.
        skip: iterations to leave out first; by default a quarter of all, at most 3, as warm-up.
        enabled: False for a block that runs without profiling, such as on all ranks but one.
        keep_arguments: whether the record keeps the program's arguments unredacted, with any secrets.
    """

    def __init__(self, name: str, out: str | Path = "runs", *, skip: int | None = None, enabled: bool = True,
                 keep_arguments: bool = False) -> None:
        if skip is not None and skip < 0:
            raise UserError(f"skip is {skip}: give the number of iterations to leave out first, 0 or more")
        self.name = name
        self._out, self._skip, self._enabled = Path(out), skip, enabled
        self._keep_arguments = keep_arguments
        self._begun: BegunRun | None = None
        self._session: Session | None = None
        self._annotations: Annotations | None = None
        self._termination_handler: TerminationHandler | None = None
        self._recovering: subprocess.Popen[str] | None = None
        self._left = self._is_closing = False
        self._problem: str | None = None
        self._run: Run | None = None

    def __enter__(self) -> Self:
        if self._begun is not None:
            raise UserError("this Profiler has been used: create a new one for each block")
        if self._enabled:
            with _ENTERING:
                self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close("to its end" if error is None else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def close(self, ending: str = "to its end") -> None:
        """Leave the block, for callers without a `with` statement; a second call does nothing.

        Args:
            ending: how the block ended, in a few words.
        """
        if self._session is None or not self._session.needs_closing:  # False in a forked child
            return
        assert self._begun is not None
        self._is_closing = True
        self._session.close(ending)
        release(self._begun.lock, self._begun.directory / LOCK)
        self._left = True
        self._problem = self._recover(self._begun)
        self._is_closing = False
        if self._termination_handler is not None:
            self._termination_handler.remove()
        _print_line(f"wrote {self._final}" if self._problem is None else self._problem)

    def iterate(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Return the items of a loader, generator or other iterable, each fetched in the phase `data`.

        Each item is an iteration if nothing else marks one: no optimizer step, backward, forward or `step`.

        Raises:
            UserError: the block is not entered, or this is not the thread that entered it.
        """
        return self._entered().batches(batches) if self._enabled else iter(batches)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context whose time is a phase's: data, forward, loss, backward, update, communication or other.

        Annotations override recorded phases: inside, only optimizers' steps are recorded, to find iterations, and their
        time also belongs to the annotated phase. Phases may nest, in each other and in recorded phases (a loss inside a
        model's forward): the time of an inner one is excluded from the outer one's.

        Raises:
            UserError: the phase is unknown, the block is not entered, or this is not the thread that entered it.
        """
        return self._entered().phase(name) if self._enabled else nullcontext()

    def step(self) -> None:
        """End an iteration here. After the first call, nothing else ends one.

        Raises:
            UserError: the block is not entered, or this is not the thread that entered it.
        """
        if self._enabled:
            self._entered().end_iteration()

    @property
    def run(self) -> "Run":
        """The run that was written.

        Raises:
            UserError: the block has not ended, or nothing was recorded.
        """
        if not self._enabled:
            raise UserError("this Profiler was not enabled: there is no run")
        if not self._left:
            raise UserError("the run is written at the end of the block: use it after the `with` block")
        if self._problem is not None:
            raise UserError(self._problem)
        if self._run is None:
            from charact.record.reader import load_run

            self._run = load_run(self._final)
        return self._run

    @property
    def iterations(self) -> "pd.DataFrame":
        """Table `iterations` of the run: case, iteration, phase, part, host_s, device_s."""
        return self.run.iterations

    @property
    def phases(self) -> "pd.DataFrame":
        """Time of each phase of the run, from `charact.analysis.phase_breakdown`: time_s, share_frac and more."""
        from charact.analysis.profile.breakdown import phase_breakdown

        return phase_breakdown(self.run)

    def _repr_html_(self) -> str:
        try:
            run = self.run
        except UserError as reason:
            return f"<p>{escape(f'{self.name}: {reason}')}</p>"
        from charact.views.html.report import fragment

        return fragment(run)

    @property
    def _final(self) -> Path:
        assert self._begun is not None
        return self._begun.directory.parent / str(self._begun.manifest["run_id"])

    def _entered(self) -> Annotations:
        if self._annotations is None:
            raise UserError("this Profiler has not been entered: write `with charact.Profiler(...) as p:` around it")
        return self._annotations

    def _start(self) -> None:
        if is_recording():
            raise UserError("this process is being profiled already, by another Profiler or by charact run: use one")
        import torch  # noqa: F401  (patched by the session)

        main = getattr(sys.modules["__main__"], "__file__", None)
        self._begun = begin_run(self._out.absolute(), self.name, {
            "command_line": [os.path.basename(sys.executable), *sys.argv],
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": {}, "software": {},
            **({"arguments_kept": True} if self._keep_arguments else {}),
            "options": {"script": redacted_arguments([main])[0] if main else "interactive",
                        "arguments": sys.argv[1:], "skip": self._skip, "iterations": None, "passes": []},
        })  # fmt: skip
        self._session = Session(self._begun.directory, Plan(),
                                lambda reason: _print_line(f"stopped measuring: {reason}"))
        self._annotations = Annotations(self._session)
        self._termination_handler = TerminationHandler(self._on_signal)
        self._session.start()

    def _on_signal(self, ending: str) -> None:
        assert self._begun is not None
        if self._is_closing:
            if self._recovering is not None:
                self._recovering.kill()
            _print_line(f"the run is not written ({ending}): run charact recover {self._begun.directory}")
        else:
            self.close(ending)

    def _recover(self, begun: BegunRun) -> str | None:
        """Write the run in a separate process; return why it failed, or None.

        The program may have changed anything in this process.
        """
        command = [sys.executable, "-P", "-m", "charact", "recover", "--quiet", str(begun.directory)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, cwd=begun.directory.parent) as self._recovering:
            lines = self._recovering.communicate()[1].strip().splitlines()
        if self._recovering.returncode == 0:
            for line in lines:
                warn(line)
            return None
        return (lines or [f"charact recover ended with {self._recovering.returncode}"])[-1].removeprefix("error: ")


def profile(fn: Callable[..., object], *args: Any, num_iterations: int | None = None, name: str | None = None,
            out: str | Path = "runs", **kwargs: Any) -> "Run":
    """Call `fn(*args, **kwargs)` repeatedly, each call an iteration, and return the run.

        charact.profile(train_step, model, batch).iterations

    After a warm-up until calls take similar time and a GPU's clock is steady, it records calls until the median's 95 %
    interval is within 2 % of it, or for 100 calls or 15 seconds. The time of a call is the GPU's, if the function's
    tensors are on one. An error of `fn` propagates; the calls before it are written.

    Args:
        fn: function to call.
        args: its arguments.
        num_iterations: number of calls to record, instead of a target precision.
        name: name of the run; by default the function's.
        out: parent directory of the run's directory.
        kwargs: its keyword arguments; if one has a name above, use a `functools.partial`.

    Raises:
        UserError: `num_iterations` is less than 1, this process is being profiled already, or the disk is full.
    """
    if num_iterations is not None and num_iterations < 1:
        raise UserError(f"num_iterations is {num_iterations}: give 1 or more")
    from charact.measure.passes.timing import CallTimer, StopRule, ended_by, spread_frac, warm_up
    from charact.measure.passes.warm_device import warm_device
    from charact.measure.script.spans.device_clock import program_device

    rule = StopRule() if num_iterations is None else StopRule(0.0, num_iterations, float("inf"))
    timer = CallTimer(lambda: fn(*args, **kwargs))
    first_s = timer.call(wait=True)
    timer.use(program_device() or timer.device)
    warmup_ended_by, warmup_s = warm_up(lambda: timer.call(wait=True), StopRule())
    num_warmup = len(first_s) + len(warmup_s) + warm_device(timer.device, timer.work)
    wall_s: list[float] = []
    num_calls = 0
    reason: str | None = None
    begun = time.perf_counter()

    def decide() -> None:
        nonlocal reason
        reason = ended_by(wall_s, num_calls, rule, time.perf_counter() - begun)

    label = name or str(getattr(fn, "__name__", type(fn).__name__))
    with Profiler(label, out, skip=0) as profiler:
        annotations = profiler._entered()
        annotations.end_iteration()
        while reason is None:
            wall_s += timer.call()
            num_calls += 1
            annotations.end_iteration(decide)
        wall_s += timer.available(wait=True)
        annotations.note_rule({
            "num_warmup_iterations": num_warmup, "warmup_ended_by": warmup_ended_by, "ended_by": reason,
            "precision_target_frac": rule.precision_target_frac or None, "interval_frac": spread_frac(wall_s),
            "median_s": median(wall_s)})
    return profiler.run


def _print_line(line: str) -> None:
    warn(f"charact: {line}")
