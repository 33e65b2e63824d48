"""`charact import`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.errors import UserError

if TYPE_CHECKING:
    from charact.traces.files import Trace
    from charact.writer import RunWriter


def command(
    traces: Annotated[list[Path], typer.Argument(
        help="Traces of torch.profiler (.json or .json.gz), one a rank or program, or directories of them.",
        metavar="TRACE...")],
    out: Annotated[Path, typer.Option(help="Directory that the run's directory is made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(
        help="Name of the run and its cases: cases of equal names can be compared. Default: the trace's, or its "
             "directory's.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the run's path only.")] = False,
) -> int:
    """Make a run of traces that torch.profiler wrote.

    They may be from anywhere, with or without charact. Each trace becomes a case. Iterations and phases come from
    charact's marks where a trace has them, else from ProfilerStep, the marks of loaders and optimizers, calls of
    modules and autograd's nodes: then they are inferred.

    \b
      charact import trace.json.gz
      charact import --name ddp traces/              all ranks of one training
    """  # noqa: D301  (click wants the character itself)
    from charact.commands._publishing import publish_and_tell
    from charact.redaction import names_user
    from charact.traces.files import readable, stem, trace_files

    files = trace_files(traces)
    folder = files[0].resolve().parent
    label = name or (stem(files[0]) if len(files) == 1 else "" if names_user(folder) else readable(Path(folder.name)))
    label = label or "trace"
    writer = _open(out, label, files)
    try:
        _add_cases(writer, label, files, named=name is not None)
        writer.close("complete")
    except BaseException:
        writer.discard()
        raise
    return 0 if publish_and_tell(writer, quiet) else 1


def _open(out: Path, label: str, files: list[Path]) -> "RunWriter":
    import time
    from importlib.metadata import version

    from charact.traces.counters import described
    from charact.traces.files import readable
    from charact.writer import RunWriter

    return RunWriter(out, label, {
        "command_line": ["charact", *sys.argv[1:]], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {}, "software": {"charact": version("charact")}, "counters": described(),
        "options": {"traces": [readable(path) for path in files]},
    })


def _add_cases(writer: "RunWriter", label: str, files: list[Path], *, named: bool) -> None:
    """Read one trace after another into the record.

    Raises:
        UserError: one is no trace, or two are of the same rank.
    """
    from charact.traces.cases import trace_case
    from charact.traces.files import read_trace, stem

    origins: dict[str, Path] = {}
    for path in files:
        trace = read_trace(path)
        alone = len(files) == 1
        if trace.rank is not None and not (alone and (trace.world_size or 1) == 1):
            program = f"{label}-rank{trace.rank}"
        else:
            program = label if alone else f"{label}-{stem(path)}" if named else stem(path)
        entry, tables = trace_case(trace, program)
        if entry["case"] in origins:
            raise UserError(f"{origins[entry['case']]} and {path} both make the case {entry['case']}: import them one "
                            "by one")
        origins[entry["case"]] = path
        if len(origins) == 1:
            _describe(writer, trace)
        writer.add_case(entry, tables)


def _describe(writer: "RunWriter", trace: "Trace") -> None:
    """Put what a trace tells of its machine and software into the manifest."""
    kinds: list[dict[str, Any]] = []
    for one in trace.devices:
        kind = {key: value for key, value in one.items() if key != "index"}
        if kind["name"] is not None and kind not in kinds:
            kinds.append(kind)
    if kinds:
        writer.manifest["machine"] = {"num_gpus": len(trace.devices), "gpus": kinds}
    writer.manifest["software"] |= trace.versions
