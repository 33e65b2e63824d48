"""Records of traces of inference servers."""

import tempfile
from pathlib import Path

from charact.traces.cases import trace_case
from charact.traces.reader import read_trace
from support.kept import written_once
from support.records import publish
from support.serving_traces import LAYER, ServerTrace, decoding

DECODE, PREFILL, MIXED = ("execute_context_0(0)_generation_8(8)", "execute_context_2(1024)_generation_0(0)",
                          "execute_context_2(1024)_generation_30(30)")


def server() -> ServerTrace:
    """Return a trace of a prefill, twelve decodes, a mixed step and one of unknown kind, with kernels outside."""
    made = decoding([PREFILL, *[DECODE] * 12, MIXED, "step[IDLE bs=0]"])
    made.eager(700, 720, [("<script>alert(1)</script>", 40)], by=made.operator("aten::argmax", 690, 30))
    return made


def write_trace(out: Path, made: ServerTrace, name: str = "server") -> Path:
    """A run of one imported trace."""
    with tempfile.TemporaryDirectory() as directory:
        entry, tables = trace_case(read_trace(made.write(Path(directory) / f"{name}.json")), name)
    return publish(out, name, {"command_line": ["charact", "import", f"{name}.json"]}, (entry, tables))


@written_once
def write_server(out: Path) -> Path:
    """A run of the trace of `server`, and one of replays alone."""
    replays = ServerTrace()
    for number, layers in enumerate([1, 2, 1, 1]):
        replays.replay(1000 * number, 1000 * number + 20, [*LAYER] * layers)
    with tempfile.TemporaryDirectory() as directory:
        cases = [trace_case(read_trace(made.write(Path(directory) / f"{name}.json")), name)
                 for name, made in (("server", server()), ("replays", replays))]
    return publish(out, "servers", {"command_line": ["charact", "import", "traces"]}, *cases)
