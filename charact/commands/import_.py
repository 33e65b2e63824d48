"""`charact import`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import options as opt
from charact.core.bounded_reading import limited_to, parse_bytes
from charact.core.errors import UserError

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt
    from charact.record.manifest import CaseEntry
    from charact.record.schema import Rows
    from charact.record.writer import RunWriter
    from charact.traces.reader import Trace


def command(
    traces: Annotated[list[Path], typer.Argument(
        help="Traces of torch.profiler, JSON dumps of the flight recorder, or memory snapshots of CUDA's allocator as "
             "JSON (.json or .json.gz), one per rank or program, or directories of them.",
        metavar="TRACE")],
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(
        help="Name of the run and its cases; cases with equal names can be compared. Default: the trace's, or its "
             "directory's.")] = None,
    max_bytes: Annotated[str | None, typer.Option(
        metavar="SIZE", help="Maximum unpacked size of a compressed trace, such as 8GiB. Default: "
                             "CHARACT_MAX_BYTES, else 4GiB.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> int:
    """Import traces of torch.profiler or memory snapshots.

    The traces may be from anywhere, with or without charact; each becomes a case. Iterations and phases come from
    marks of charact if a trace has them. Otherwise iterations come from ProfilerStep, else from steps of the
    optimizer, and phases from the program's annotations, such as forward, or they are inferred from marks of loaders
    and optimizers, module calls and autograd's nodes. A trace of an inference server, such as vLLM or SGLang,
    also gets its steps. A memory snapshot (torch.cuda.memory._snapshot) becomes a case for each of its devices.

    \b
      charact import trace.json.gz
      charact import --name ddp traces/              all ranks of one training
      charact import snapshot.json                   which lines hold GPU memory at its peak
    """  # noqa: D301  (click wants the character itself)
    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.commands._shared.publish import measure_and_publish
        from charact.record.redaction import names_user
        from charact.traces.events import clean, readable
        from charact.traces.reader import stem, trace_files

        opt.check_name(name)
        limit = None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes")
        files = trace_files(traces)
        parent = files[0].resolve().parent
        folder = "" if names_user(parent) else readable(Path(parent.name))
        label = clean(name) if name else (stem(files[0]) if len(files) == 1 else folder) or "trace"
        writer = _open(out, label, files)
        quiet = quiet or as_json
        with limited_to(limit):
            return measure_and_publish(
                writer, lambda: _add_cases(writer, label, files, interrupt, named=name is not None, quiet=quiet),
                interrupt, quiet, as_json=as_json)


def _open(out: Path, label: str, files: list[Path]) -> "RunWriter":
    import time
    from importlib.metadata import version

    from charact.record.writer import RunWriter
    from charact.traces.counters import described
    from charact.traces.events import clean, readable
    from charact.traces.snapshots.memory_snapshots import is_snapshot

    snapshots = [path for path in files if is_snapshot(path)]
    if snapshots and len(snapshots) < len(files):
        trace = next(path for path in files if path not in snapshots)
        raise UserError(f"{snapshots[0]} is a memory snapshot, and {trace} is not: import them separately")
    return RunWriter(out, label, {
        "command_line": ["charact", *map(clean, sys.argv[1:])], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {}, "software": {"charact": version("charact")}, "counters": {} if snapshots else described(),
        "options": {"snapshots" if snapshots else "traces": [readable(path) for path in files]},
    })


def _add_cases(writer: "RunWriter", label: str, files: list[Path], interrupt: "Interrupt", *, named: bool,
               quiet: bool) -> None:
    """Read the traces into the record, until a signal arrives; a terminal shows the progress."""
    origins: dict[str, Path] = {}
    for path in files:
        try:
            with interrupt.allowed():
                trace, cases = _cases(path, label, alone=len(files) == 1, named=named, quiet=quiet)
            for entry, _ in cases:
                if entry.case in origins:
                    raise UserError(f"{origins[entry.case]} and {path} both become the case {entry.case}: import "
                                    "them separately")
        except KeyboardInterrupt:
            return
        except UserError:  # a mistake of the user: trying again does not help
            writer.discard()
            raise
        if not origins and trace is not None:
            _describe(writer, trace)
        for entry, tables in cases:
            origins[entry.case] = path
            writer.add_case(entry, tables)


def _cases(path: Path, label: str, *, alone: bool, named: bool,
           quiet: bool) -> "tuple[Trace | None, list[tuple[CaseEntry, dict[str, Rows]]]]":
    """Return the trace of a file if it is one, and its cases: several for a memory snapshot of several devices."""
    from charact.core.console import Console
    from charact.traces.cases import trace_case
    from charact.traces.events import readable
    from charact.traces.reader import read_trace, stem
    from charact.traces.recorder_dumps import dump_case, is_dump
    from charact.traces.serving.step_names import stage_of_file
    from charact.traces.snapshots.memory_snapshots import is_snapshot, read_snapshot
    from charact.traces.snapshots.snapshot_cases import snapshot_cases
    from charact.views.terminal.progress import ReadingProgress

    if is_dump(path):
        return None, [dump_case(path, label, by_rank=not alone)]

    of_file = label if alone else f"{label}-{stem(path)}" if named else stem(path)
    console = Console(stderr=True)
    with ReadingProgress(console, readable(path), enabled=console.is_terminal and not quiet) as progress:
        if is_snapshot(path):
            return None, snapshot_cases(read_snapshot(path, progress), of_file)
        trace = read_trace(path, progress)
    by_rank = trace.rank is not None and not (alone and (trace.world_size or 1) == 1)
    stage = stage_of_file(stem(path))  # of one rank, SGLang writes a file for each stage
    of_rank = label if alone or stage is None else f"{label}-{stage}"
    return trace, [trace_case(trace, of_rank if by_rank else of_file, by_rank=by_rank)]


def _describe(writer: "RunWriter", trace: "Trace") -> None:
    """Add the machine and software facts of a trace to the manifest."""
    kinds: list[dict[str, Any]] = []
    for one in trace.devices:
        kind = {key: value for key, value in one.items() if key != "index"}
        if kind["name"] is not None and kind not in kinds:
            kinds.append(kind)
    if kinds:
        writer.manifest["machine"] = {"num_gpus": len(trace.devices), "gpus": kinds}
    elif trace.events.device:
        writer.manifest["machine"] = {"no_gpu_reason": "the trace’s deviceProperties do not name the device"}
    writer.manifest["software"] |= trace.versions
