"""The stack of another thread, read without the lock that `sys._current_frames` takes, and without a collection."""

import contextlib
import functools
import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

from charact.core.running_stack import StackReader, without_collection


def test_it_is_the_line_that_the_thread_runs() -> None:
    begun, ended, readers = threading.Event(), threading.Event(), []

    def wait_here() -> None:
        readers.append(StackReader())
        begun.set()
        ended.wait(30)

    thread = threading.Thread(target=wait_here)
    thread.start()
    begun.wait(30)
    frames, results = readers[0].read([int, list])
    innermost, _ = readers[0].read(most=1)
    names = [frame.f_code.co_name for frame in frames]
    ended.set()
    thread.join()
    assert "wait_here" in names
    assert [inner.f_back for inner in frames] == [*frames[1:], None]
    assert (innermost, results) == (frames[:1], [0, []])


def test_a_garbage_collection_of_thread_locals_does_not_stop_the_program() -> None:
    """With `sys._current_frames`, this program does not end in Python 3.11."""
    program = textwrap.dedent("""
        import gc, threading, time
        from charact.core.running_stack import StackReader

        class Cycle:
            def __init__(self):
                self.own, self.local = self, threading.local()
                self.local.value = 1

        read, end = StackReader().read, time.monotonic() + 2

        def look():
            while time.monotonic() < end:
                read()

        gc.set_threshold(1)
        thread = threading.Thread(target=look)
        thread.start()
        while time.monotonic() < end:
            Cycle()
        thread.join()
        print("ended")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ended\n"


def test_a_collection_that_lets_the_program_run_on_does_not_crash_it() -> None:
    """One that started while the object of a frame is created would do so in Python 3.11."""
    program = textwrap.dedent("""
        import gc, threading, time
        from charact.core.running_stack import StackReader

        def let_the_program_run(*_):
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.0002)

        def call(depth):
            return [depth] if depth == 0 else call(depth - 1)

        def look():
            while time.monotonic() < end:
                lengths.append(len([frame.f_code.co_name for frame in reader.read()[0]]))
                time.sleep(0.0001)

        reader, end, lengths = StackReader(), time.monotonic() + 2, []
        gc.callbacks.append(let_the_program_run)
        gc.set_threshold(3)
        thread = threading.Thread(target=look)
        thread.start()
        while time.monotonic() < end:
            call(20)
        thread.join()
        print(max(lengths))
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert 10 < int(done.stdout) <= 22


def test_collections_are_on_or_off_as_before() -> None:
    def enabled_after(call: Callable[[], object]) -> bool:
        with contextlib.suppress(ZeroDivisionError):
            without_collection(call)
        return gc.isenabled()

    error = functools.partial(divmod, 1, 0)
    try:
        assert [without_collection(gc.isenabled, [gc.isenabled]), enabled_after(error)] == [[True, False], True]
        gc.disable()
        assert [without_collection(gc.isenabled, [gc.isenabled]), enabled_after(error)] == [[False, False], False]
    finally:
        gc.enable()
