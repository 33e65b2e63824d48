"""Records as a whole: passes, FLOP, imported traces, graphs, compiled models, and settings of the program's own."""

from gpu.checks.session import SCRIPTS, Session, last_words, on_cuda

from charact import Run

PUBLISHED_FLOP = 2 * 4.089e9
"""FLOP of ResNet-50's forward pass for an image of 224 pixels."""


def check_passes(session: Session) -> None:
    """Every pass of every case ends well, and a pass that is ok holds something."""
    runs = {"big": session.big()}
    if session.on_cuda:
        runs["half"] = session.profiled("half", "resnet18", "--input-sizes", "64", "--batch-sizes", "16", "--mode",
                                        "train,infer", "--precision", "fp16", "--channels-last", "--max-seconds", "2")
    for name, run in runs.items():
        for entry in run.manifest["cases"]:
            unavailable = set() if session.on_cuda else {"kernels", "counters"}
            bad = {key: facts.get("reason") for key, facts in entry["passes"].items()
                   if facts["status"] != "ok" and key not in unavailable}
            session.holds(f"{name}: passes of {entry['case']}", entry["status"] == "ok" and not bad,
                          bad or entry["status"], "all ok")
            if session.on_cuda:
                _check_tables(session, name, run, entry["case"])


def _check_tables(session: Session, name: str, run: Run, case: str) -> None:
    kernels = run.kernels[run.kernels["case"] == case]
    operators = run.operators[run.operators["case"] == case]
    times = run.iterations[run.iterations["case"] == case]["device_s"]
    session.holds(f"{name}: kernels of {case}", len(kernels) > 0, len(kernels), "> 0 rows where the pass is ok")
    if len(kernels):
        session.within(f"{name}: operators/kernels device time of {case}",
                       operators["device_s"].sum() / kernels["device_s"].sum(), 0.97, 1.001)
        session.within(f"{name}: kernels with an operator, {case}", kernels["operator"].notna().mean(), 0.95, 1)
    session.holds(f"{name}: no negative phase in {case}", bool((times >= 0).all()), float(times.min()), ">= 0")


@on_cuda
def check_flop(session: Session) -> None:
    """FLOP of ResNet-50 against the published ones, and rates below their ceilings."""
    run = session.big()
    for entry in run.manifest["cases"]:
        precision, passes = entry["precision"], entry["passes"]
        rows = run.flop[run.flop["case"] == entry["case"]]
        forward = rows[rows["phase"] == "forward"]["flop"].sum() / entry["batch_size"]
        session.within(f"FLOP of ResNet-50's forward / published, {precision}", forward / PUBLISHED_FLOP, 0.99, 1.01)
        session.within(f"FLOP that found no operator, {precision}",
                       passes["flop"]["unplaced_flop"] / rows["flop"].sum(), 0, 0.01)
        ceiling = next((row["value"] for row in run.manifest["ceilings"]
                        if (row["ceiling"], row["precision"]) == ("gemm", precision)), None)
        if ceiling:
            rate = rows["flop"].sum() / passes["timing"]["median_s"]
            session.within(f"rate / ceiling, {precision}", rate / ceiling, 0.05, 1.0)


def check_import(session: Session) -> None:
    """charact's own trace, imported, against the pass that wrote it."""
    run = session.big()
    case = run.manifest["cases"][0]["case"]
    traces = sorted((run.path / "trace").glob(f"{case}*.json.gz"))
    session.holds("a trace is kept", len(traces) == 1, [path.name for path in traces], "1")
    imported = session.record("imported", "import", str(traces[0]))
    operators, kernels, iterations = (table[table["case"] == case]
                                      for table in (run.operators, run.kernels, run.iterations))
    session.within("imported/pass, operator calls",
                   imported.operators["num_calls"].sum() / operators["num_calls"].sum(), 0.98, 1.02)
    if session.on_cuda:
        session.within("imported/pass, kernel launches",
                       imported.kernels["num_calls"].sum() / kernels["num_calls"].sum(), 0.99, 1.01)
        session.within("imported/pass, kernel time",
                       imported.kernels["device_s"].sum() / kernels["device_s"].sum(), 0.97, 1.03)
        timed, of_trace = (table.groupby("phase")["device_s"].median() for table in (iterations, imported.iterations))
        for phase in ("forward", "backward"):
            session.within(f"imported/timed device time, {phase}", of_trace[phase] / timed[phase], 0.95, 1.10)


@on_cuda
def check_graphs(session: Session) -> None:
    """A program that captures a CUDA graph runs under `charact run` as it does alone."""
    script = str(SCRIPTS / "graph_capture.py")
    alone = session.run(script, timeout=90)
    watched = session.run("-m", "charact", "run", script, folder="graphs")
    session.holds("graph capture alone", "GRAPH True" in alone.output, alone.status, "works")
    session.holds("graph capture under charact run", "GRAPH True" in watched.output,
                  f"{watched.status} {last_words(watched)}", "works as alone")
    session.holds("charact run goes on measuring", "stopped measuring" not in last_words(watched), "",
                  "no 'stopped measuring'")


def check_precision_api(session: Session) -> None:
    """A model whose module sets float32's precision by PyTorch's interface of 2.9 and later."""
    ended = session.run(
        "-m", "charact", "profile", "--model", "support.tf32_nets:net", "--input-spec", "3xSxS -> int64[10]",
        "--input-sizes", "8", "--batch-sizes", "4", "--mode", "train", "--max-iterations", "6", "--device",
        session.device.type, "--counters", "none", "--quiet", folder="precision-api")
    session.holds("a model that sets torch.backends.cuda.matmul.fp32_precision", ended.status == 0,
                  ended.status if ended.status == 0 else last_words(ended), "exit status 0")


@on_cuda
def check_compile(session: Session) -> None:
    """All passes of a compiled case succeed, and its operators hold its kernels' time."""
    run = session.profiled("compiled", "resnet18", "--input-sizes", "64", "--batch-sizes", "32", "--mode", "train",
                           "--compile", "--precision", "bf16", "--max-seconds", "2", "--counters", "none")
    (entry,) = run.manifest["cases"]
    bad = {key: facts["reason"] for key, facts in entry["passes"].items()
           if facts["status"] != "ok" and key != "counters"}
    session.holds("compiled: passes", entry["status"] == "ok" and not bad, bad or entry["reason"] or "ok", "all ok")
    if entry["status"] == "ok" and len(run.kernels):
        session.within("compiled: operators/kernels device time",
                       run.operators["device_s"].sum() / run.kernels["device_s"].sum(), 0.95, 1.001)
