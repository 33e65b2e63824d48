"""Start of a program on several ranks of this machine, by torchrun's elastic agent, and their end with it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from charact.core.errors import UserError
from charact.core.output import warn
from charact.machine.facts import usable_cores
from charact.machine.rank_identity import rank_identity

AGENT = "CHARACT_AGENT"
"""Environment variable with the number of the process that started the ranks; programs do not see it."""
_CHECK_S = 0.5
_GRACE_S = 10.0
"""Time in which the rank may end by SIGTERM: a rank that waits for others inside of C++ does not handle it."""
_THREADS = "OMP_NUM_THREADS"
_OPTION = "--nproc"


def launch(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run a command of charact in each rank, wait for all of them, and return the exit status.

    The agent ends the other ranks if one fails, and chooses a free port. If the agent is killed, the ranks end, too.
    """
    identity = rank_identity(os.environ)
    if identity is not None:
        raise UserError(f"this process is rank {identity.rank} of {identity.world_size} already ({identity.launcher} "
                        "started it): leave out --nproc")
    divide_threads(num_ranks, usable_cores(), os.environ)
    os.environ[AGENT] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    called = Path(sys.argv[0])  # a rank's modules must not come before those of the script's directory
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = "charact" if spec is None else spec.name.removesuffix(".__main__")
    program = [str(called)] if called.is_file() and called.name == "charact" else ["-m", module]
    command = [sys.executable, *program, *without_option(arguments)]
    try:
        main(["--standalone", "--nproc-per-node", str(num_ranks), "--no-python", *command])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"by signal {-failure.exitcode}" if failure.exitcode < 0 else f"with exit status {failure.exitcode}"
        warn(f"charact: rank {rank} ended first, {how}; the others were ended")
        return int(failure.exitcode) if failure.exitcode > 0 else 1
    except SignalException as error:
        return 128 + int(error.sigval)
    except (RuntimeError, OSError) as error:
        raise UserError(f"the ranks cannot be started ({' '.join(str(error).split())[:200]}): try again, or use "
                        "torchrun --no-python charact run") from error
    return 0


def divide_threads(num_ranks: int, num_cores: int, environment: MutableMapping[str, str]) -> None:
    """Give each rank its part of the cores as threads, unless the user chose a number; warn if there are too few."""
    warn_of_few_cores(num_ranks, num_cores)
    environment.setdefault(_THREADS, str(max(num_cores // num_ranks, 1)))


def warn_of_few_cores(num_ranks: int, num_cores: int) -> None:
    """Warn if there are more ranks than cores."""
    if num_ranks > num_cores:
        warn(f"charact: {num_ranks} ranks share {num_cores} cores: each computes in one thread and waits for a core, "
             f"so all times are too long; up to {num_cores} ranks have a core each")


def without_option(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the first `--nproc` and its number."""
    for place, argument in enumerate(arguments):
        if argument == _OPTION:
            return [*arguments[:place], *arguments[place + 2:]]
        if argument.startswith(f"{_OPTION}="):
            return [*arguments[:place], *arguments[place + 1:]]
    return list(arguments)


def end_with_agent(environment: MutableMapping[str, str]) -> None:
    """Start a thread that ends this rank soon after its agent has ended; nothing to do without one."""
    agent = environment.pop(AGENT, "")
    if agent.isdecimal():
        threading.Thread(target=_watch, args=(int(agent), os.getppid, os.kill), name="charact-agent",
                         daemon=True).start()


def _watch(agent: int, parent: Callable[[], int], kill: Callable[[int, int], None]) -> None:
    while parent() == agent:
        time.sleep(_CHECK_S)
    warn("charact: the process that started the ranks has ended: this rank ends, too")
    kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    kill(os.getpid(), signal.SIGKILL)
