"""A run that is being published is never taken for one that was killed."""

import threading
from pathlib import Path

from charact.record.rank_parts import is_written
from charact.record.writer import RunWriter


def test_the_lock_is_held_until_the_run_has_its_final_name(tmp_path: Path) -> None:
    for number in range(20):
        writer = RunWriter(tmp_path, f"run{number}", {})
        writer.close("complete")
        hidden, seen, published = writer.directory, [], threading.Event()

        def watch(hidden: Path = hidden, seen: list[bool] = seen, published: threading.Event = published) -> None:
            while not published.is_set() and hidden.exists():
                written = is_written(hidden)
                seen.append(written or not hidden.exists())

        watcher = threading.Thread(target=watch)
        watcher.start()
        final = writer.publish()
        published.set()
        watcher.join()
        assert all(seen)
        assert sorted(path.name for path in final.iterdir()) == ["run.json"]
