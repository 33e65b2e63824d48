"""`charact bricks`."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.bounded_reading import parse_bytes
from charact.core.errors import UserError
from charact.core.output import warn
from charact.record.schema import MODES, PRECISIONS

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt

CUTS = ("chains", "paper", "heavy")

Suite = Annotated[Path, typer.Argument(metavar="SUITE", help="Directory of a suite of bricks.")]
InputSpec = Annotated[str | None, typer.Option(
    help="Inputs of your own models; see charact profile --help.")]
OwnModels = Annotated[list[str] | None, typer.Option(
    "--model", metavar="MODULE:NAME[(ARGS)]",
    help="Your own model that may be imported and run. Compositions also name models, but may "
         "come from others: only models named here are run. Repeatable.")]
OwnLosses = Annotated[list[str] | None, typer.Option(
    "--loss", metavar="MODULE:NAME", help="Loss function of your own that may be imported. Repeatable.")]
MaxBytes = Annotated[str | None, typer.Option(
    metavar="SIZE", help="Memory limit of a brick, and of unpacked files, such as 32GiB. Default: 16GiB for a brick.")]
Compositions = Annotated[Path | None, typer.Option(
    help="Directory of the compositions, which list the bricks of each model. Default: SUITE.private, next to the "
         "suite.")]


def _models_and_runs(incomplete: str) -> list[str]:
    return ["all", *completion.workload_names(incomplete), *completion.runs(incomplete)]


def parse_models(words: list[str]) -> list[str]:
    """Return the names of models, each once, in order."""
    return list(dict.fromkeys(part for word in words for part in opt.parse_list(word, "MODEL")))


def exit_status(interrupt: "Interrupt", work: Callable[[], int]) -> int:
    """Run `work` and return its exit status, or that of an interrupted command that wrote nothing."""
    try:
        return work()
    except KeyboardInterrupt:
        warn("interrupted: nothing is written")
        return 128 + (interrupt.signal or signal.SIGINT)


def parse_sizes(text: str | None, option: str) -> list[int] | None:
    """Parse sizes, if given."""
    return None if text is None else opt.parse_sizes(text, option)


group = typer.Typer(rich_markup_mode=None, help="""Cut models into bricks, and construct latencies.

A brick is a short sequence of layers with its input shapes. Models share many bricks, so each brick is timed once. The
latency of a model is constructed from its bricks, also on machines where it never ran.

\b
  charact bricks generate resnet18 vgg11 mlp --out suite   cut models into a suite of bricks
  charact bricks run suite                                 time the bricks on this machine
  charact bricks calibrate runs/<run>                      once per machine: fit a correction on whole models
  charact bricks construct all runs/<run>                  construct every model's latency here
  charact bricks show suite                                show the bricks of the models, and their reuse
  charact bricks audit suite                               show what the suite reveals about its models
""")


@group.command()
def generate(
    models: Annotated[list[str], typer.Argument(
        metavar="MODEL", help="Workloads (see `charact list`), or your own models as package.module:factory.",
        autocompletion=completion.workload_names)],
    g: Annotated[int, typer.Option("-g", min=1, max=9999, help="Maximum number of layers in a brick.")] = 1,
    out: Annotated[Path, typer.Option(help="Directory of the suite; an existing suite is extended.")] = Path("suite"),
    cut: Annotated[str | None, typer.Option(
        help="How models are cut: chains (sequences of layers whose intermediate results nobody else reads), heavy (a "
             "heavy layer with the light ones after it), paper (as in the study). Default: chains, for training "
             "heavy.")] = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    mode: opt.Modes = "infer",
    precision: opt.Precision = "fp32",
    variant: opt.Variant = None,
    model_args: opt.ModelArgs = None,
    input_spec: InputSpec = None,
    loss: opt.Loss = None,
    optimizer: opt.Optimizer = None,
    learning_rate: opt.LearningRate = None,
    decoys: Annotated[int, typer.Option(
        min=0, max=10_000, help="Add this number of bricks of other models, to hide yours.")] = 0,
    seed: opt.Seed = 0,
    quiet: opt.Quiet = False,
) -> int:
    """Cut models into bricks, and write each distinct brick once.

    The suite holds bricks as JSON: operators, their arguments and shapes, without names, weights or order. The
    separate directory SUITE.private lists the bricks of each model; keep it private. An existing suite gets the bricks
    that it lacks. A model that cannot be captured is reported with the reason, and the others continue.

    \b
      charact bricks generate resnet18 vgg11 mlp -g 2 --out suite
      charact bricks generate resnet50 --batch-sizes 1,8 --mode infer,train --cut heavy --out suite
      charact bricks generate transformers_models:bert --input-spec "int64[30522] S" --input-sizes 128
      charact bricks generate resnet18 --decoys 50
    """  # noqa: D301  (click wants the character itself)
    names = parse_models(models)
    modes = opt.parse_choices(mode, "--mode", MODES)
    precisions = opt.parse_choices(precision, "--precision", PRECISIONS)
    sizes = parse_sizes(input_sizes, "--input-sizes"), parse_sizes(batch_sizes, "--batch-sizes")
    own = {"model_args": model_args, "input_spec": input_spec, "loss": loss, "optimizer": optimizer,
           "learning_rate": learning_rate}
    method = opt.parse_choice(cut, "--cut", CUTS) if cut else "heavy" if modes == ["train"] else "chains"

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.bricks.commands._generate import generate_suite
        from charact.bricks.commands._models import Asked

        asked = Asked(names, modes, precisions, *sizes, variant, own, seed)
        return exit_status(interrupt, lambda: generate_suite(asked, out, g, method, decoys, quiet, interrupt))


@group.command()
def run(
    suite: Annotated[Path | None, typer.Argument(metavar="SUITE", help="Directory of a suite of bricks.")] = None,
    mode: Annotated[str | None, typer.Option(
        help="train, infer, or train,infer for both. Default: all modes of the suite.",
        autocompletion=completion.modes)] = None,
    precision: Annotated[str | None, typer.Option(
        help="Precisions of the suite's models. Default: all.", autocompletion=completion.precisions)] = None,
    batch_sizes: Annotated[str | None, typer.Option(
        help="Only bricks of models at these batch sizes. Default: all.")] = None,
    share: Annotated[float, typer.Option(
        help="Time only this share of the bricks: those that matter most for the models, and some of every kind. "
             "construct predicts the times of the others. Inference only.")] = 1.0,
    precision_target: Annotated[float, typer.Option(
        min=0, max=1, help="Stop when the 95 % interval of the bricks' total time is within this share.")] = 0.02,
    max_rounds: Annotated[int, typer.Option(min=1, help="Or after this number of rounds over all bricks.")] = 100,
    max_seconds: Annotated[float, typer.Option(
        min=0, max=604_800, help="Or after this number of seconds and 6 rounds.")] = 600.0,
    resume: Annotated[Path | None, typer.Option(
        help="Resume a killed or interrupted run: its directory, runs/.partial-...",
        autocompletion=completion.partial_runs)] = None,
    max_bytes: MaxBytes = None,
    threads: opt.Threads = None,
    device: opt.Device = "auto",
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: bricks and the suite's.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> int:
    """Time every brick of a suite on this machine.

    Bricks run in turn, with weights as cold in cache as in their models, so that they take as long as there. A
    killed run can be resumed after its last complete round. A brick that fails, runs out of memory or crashes is
    recorded, and the others continue. The suite may come from others: it runs in a separate process.

    \b
      charact bricks run suite
      charact bricks run suite --batch-sizes 8 --mode train --max-seconds 120 --threads 1
      charact bricks run suite --share 0.2   about a third of the cost, with a larger error
      charact bricks run --resume runs/.partial-20261121-100000-bricks-suite-0a1b2c
    """  # noqa: D301  (click wants the character itself)
    if (suite is None) == (resume is None):
        raise UserError("name the suite to run, as in charact bricks run suite, or a run to --resume: one of them")
    if not 0 < share <= 1:
        raise UserError(f"--share: {share:g} is not a share: give a number above 0, up to 1")
    opt.check_forks("charact bricks run")
    opt.check_name(name)
    options: dict[str, Any] = {
        "modes": None if mode is None else opt.parse_choices(mode, "--mode", MODES),
        "precisions": None if precision is None else opt.parse_choices(precision, "--precision", PRECISIONS),
        "batch_sizes": parse_sizes(batch_sizes, "--batch-sizes"),
        "max_rounds": max_rounds, "precision_target_frac": precision_target, "max_seconds": max_seconds,
        "device": device, "share_frac": share,
        "max_bytes": None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes"),
    }

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.bricks.commands._run import resume_run, start_run

        if resume is not None:
            return resume_run(resume, quiet, interrupt, as_json=as_json)
        assert suite is not None
        return start_run(suite, options, out, name, threads, quiet, interrupt, as_json=as_json)


@group.command()
def calibrate(
    run: Annotated[Path, typer.Argument(
        metavar="RUN", help="Run of a suite on this machine.", autocompletion=completion.runs)],
    models: Annotated[list[str] | None, typer.Argument(
        metavar="MODEL", help="Models to measure. Default: up to 8 typical models of the suite.",
        autocompletion=completion.workload_names)] = None,
    model: OwnModels = None,
    loss: OwnLosses = None,
    compositions: Compositions = None,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="Number of turns of each model.")] = 3,
    max_seconds: Annotated[float, typer.Option(min=0, max=86_400, help="Maximum duration of a turn in seconds.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the corrections, as JSON.")] = False,
    quiet: opt.Quiet = False,
) -> int:
    """Fit a correction for constructed latencies.

    The time of a model is close to the sum of its bricks. The difference is nearly the same share for all models, plus
    a time for each module call. Both are fitted here, stored for this machine, and used by construct.

    \b
      charact bricks calibrate runs/20261121-100000-bricks-suite-0a1b2c
      charact bricks calibrate runs/20261121-100000-bricks-suite-0a1b2c resnet18 mlp vgg11
    """  # noqa: D301  (click wants the character itself)
    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.bricks.commands._calibrate import calibrate_machine
        from charact.bricks.commands._models import Named

        names = parse_models(models or [])
        own = Named.from_command_line(model or [], loss or [], names)
        return exit_status(interrupt, lambda: calibrate_machine(
            run, names, own, compositions, turns, max_seconds, quiet, interrupt, as_json=as_json))


@group.command()
def construct(
    what: Annotated[list[str], typer.Argument(
        metavar="MODELS RUNS", help="Models, or all, and runs of a suite, of one machine or several.",
        autocompletion=_models_and_runs)],
    compositions: Compositions = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    variant: opt.Variant = None,
    model_args: opt.ModelArgs = None,
    input_spec: InputSpec = None,
    model: OwnModels = None,
    loss: OwnLosses = None,
    verify: Annotated[bool, typer.Option(
        "--verify", help="Also run the models themselves if a run is of this machine, and report the error.")]
    = False,
    precision_target: Annotated[float, typer.Option(
        min=0, max=1, help="Stop verifying a model when its median's 95 % interval is within this share.")] = 0.02,
    max_iterations: Annotated[int, typer.Option(min=1, help="Or after this number of iterations.")] = 100,
    max_seconds: Annotated[float, typer.Option(
        min=0, max=86_400, help="Or after this number of seconds and 6 iterations.")] = 15.0,
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the record. Default: constructed and the suite's.")] = None,
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print only the summary of the record, as charact show --json does; of several runs, a list.")]
    = False,
    quiet: opt.Quiet = False,
) -> int:
    """Construct models' latencies from the times of their bricks.

    Reports the plain sum of a model's bricks, its longest path and, on a calibrated machine, the corrected sum, each
    with an interval. A model that is not in the suite is captured; it can be constructed if the suite holds all its
    bricks. Several runs give a table of models by machine.

    \b
      charact bricks construct all runs/20261121-100000-bricks-suite-0a1b2c
      charact bricks construct resnet18 mlp runs/20261121-100000-bricks-suite-0a1b2c --verify
      charact bricks construct all runs/laptop runs/server --compositions suite.private
      charact bricks construct all runs/<run> --verify --model "nets:Net(depth=50)"
    """  # noqa: D301  (click wants the character itself)
    opt.check_name(name)
    if (model or loss) and not verify:
        raise UserError(f"{'--model' if model else '--loss'} is only for --verify: add --verify, or leave it out")
    asked: dict[str, Any] = {
        "input_sizes": parse_sizes(input_sizes, "--input-sizes"), "variant": variant,
        "batch_sizes": parse_sizes(batch_sizes, "--batch-sizes"),
        "own": {"model_args": model_args, "input_spec": input_spec}}

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.bricks.commands._construct import construct_models
        from charact.measure.passes.timing import StopRule

        stop = StopRule(precision_target, max_iterations, max_seconds) if verify else None
        return exit_status(interrupt, lambda: construct_models(
            what, asked, (model or [], loss or []), compositions, stop, out, name, quiet, interrupt, as_json=as_json))


@group.command()
def show(suite: Suite, compositions: Compositions = None) -> int:
    """Show the bricks of the models, and how many are distinct.

    \b
      charact bricks show suite
    """  # noqa: D301  (click wants the character itself)
    from charact.bricks.commands._generate import show_suite

    return show_suite(suite, compositions)


@group.command()
def audit(suite: Suite) -> int:
    """Show what a suite reveals about its models.

    The exit status is 1 if its directory holds other files.

    \b
      charact bricks audit suite
    """  # noqa: D301  (click wants the character itself)
    from charact.bricks.commands._generate import audit_suite

    return audit_suite(suite)
