"""The frame of another thread, read without the lock that `sys._current_frames` takes."""

import subprocess
import sys
import textwrap
import threading

from charact.core.running_frame import frame_reader


def test_it_is_the_line_that_the_thread_runs() -> None:
    begun, ended, readers = threading.Event(), threading.Event(), []

    def wait_here() -> None:
        readers.append(frame_reader())
        begun.set()
        ended.wait(30)

    thread = threading.Thread(target=wait_here)
    thread.start()
    begun.wait(30)
    frame, names = readers[0](), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    ended.set()
    thread.join()
    assert "wait_here" in names


def test_a_garbage_collection_of_thread_locals_does_not_stop_the_program() -> None:
    """With `sys._current_frames`, this program does not end in Python 3.11."""
    program = textwrap.dedent("""
        import gc, threading, time
        from charact.core.running_frame import frame_reader

        class Cycle:
            def __init__(self):
                self.own, self.local = self, threading.local()
                self.local.value = 1

        read, end = frame_reader(), time.monotonic() + 2

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
