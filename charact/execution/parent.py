"""A process that ends with the one that started it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def die_with_parent(parent: int) -> None:
    """Request that the kernel kills this process when its parent ends (Linux); exit if it has ended already.

    `parent` is the ID of that process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request
        os._exit(1)
