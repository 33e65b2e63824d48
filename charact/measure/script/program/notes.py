"""Reader of an event log's notes about a program's settings and its events that are not spans. No torch in here."""

from collections import defaultdict
from typing import Any, NamedTuple


class LoaderStart(NamedTuple):
    """Start of a loader: its ID, the time at which the program asked for and got its iterator, and the first fetch."""

    loader: int
    begin_ns: int
    ready_ns: int
    owner: int
    fetch_ns: int
    end_ns: int


class ProgramNotes:
    """Contents of the notes about settings and events."""

    def __init__(self) -> None:
        self.began_ns: int | None = None
        """Time at which charact began to watch the program; None in the logs of older versions."""
        self.own_start_ns = 0
        """Time that charact took to install its patches."""
        self.shapes: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        """Times and shapes of the inputs of each model, by its owner ID, where they changed."""
        self.starts: list[LoaderStart] = []
        self.loaders: dict[int, dict[str, Any]] = {}
        """Settings of the loaders, by ID."""
        self.frozen_rows: dict[int, tuple[int, int]] = {}
        """Numbers of compared and of repeated rows of each frozen model's inputs, by its owner ID."""
        self.sizes: dict[int, list[tuple[int, int]]] = {}
        """Numbers of hooks and of modules of each model, at its first use and later, by its owner ID."""
        self.process: dict[str, Any] | None = None
        """Settings of PyTorch in the program's process; None if they were not recorded."""
        self.collections: list[tuple[int, int]] = []
        """Start and end of each long collection of the garbage collector."""
        self.memory: list[tuple[int, int, int | None]] = []
        """Times, the program's resident set, and the bytes in the CUDA allocator."""
        self.workers_memory: list[tuple[int, int]] = []
        """Times, and the unshared memory of the loaders' workers."""
        self.worker_fetch_ns: dict[int, int] = {}
        """Time in which forked workers fetched, by the loader's ID."""
        self.num_backwards = self.num_anomalous = 0
        self.create_graph: dict[str, Any] | None = None
        """File and line of the first backward with `create_graph=True`."""

    def add(self, note: dict[str, Any]) -> None:
        """Add a note of the event log; notes of other kinds are ignored."""
        kind = note["note"]
        if kind == "began":
            self.began_ns = note["time_ns"]
        elif kind == "started":
            self.own_start_ns = note["own_ns"]
        elif kind == "input shapes":
            for time_ns, owner, shapes in note["rows"]:
                self.shapes[owner].append((time_ns, shapes))
        elif kind == "epochs":
            self.starts += [LoaderStart(*row) for row in note["rows"]]
        elif kind == "loader":
            self.loaders[note["loader"]] = note["settings"]
        elif kind == "owner" and "num_hooks" in (settings := note.get("settings", {})):
            self.sizes.setdefault(note["owner"], []).append((settings["num_hooks"], settings["num_modules"]))
        elif kind == "frozen models":
            self.frozen_rows |= {owner: (num_rows, num_repeated) for owner, num_rows, num_repeated in note["rows"]}
        elif kind == "settings":
            self.process = note["settings"]
        elif kind == "collections":
            self.collections += [(begin_ns, end_ns) for begin_ns, end_ns in note["rows"]]
        elif kind == "memory":
            self.memory += [(time_ns, rss, allocated) for time_ns, rss, allocated in note["rows"]]
        elif kind == "workers' memory":
            self.workers_memory += [(time_ns, total) for time_ns, total in note["rows"]]
        elif kind == "worker fetch":
            self.worker_fetch_ns |= dict(note["rows"])
        elif kind == "backwards":
            self.num_backwards, self.num_anomalous = note["total"], note["anomalous"]
            self.create_graph = note.get("create_graph")
