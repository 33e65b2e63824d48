"""`charact bricks`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from charact.commands._shared import options as opt
from charact.commands._shared import user_model_options as own_model
from charact.commands.bricks import options as brick_options
from charact.core.bounded_reading import parse_bytes
from charact.core.errors import UserError
from charact.record.schema import MODES, PRECISIONS

group = typer.Typer(rich_markup_mode=None, help="""Cut models into bricks, and build latencies from their times.

A brick is a short row of layers with the shapes that it is fed, as it stands in a model. Models share many of them,
so each is timed once, and the latency of a model is built from its bricks, on machines where it never ran.

\b
  charact bricks generate resnet18 vgg11 mlp --out suite   cut models into a suite of bricks
  charact bricks run suite                                 time the bricks on this machine
  charact bricks calibrate runs/<run>                      once a machine: what bricks cannot see
  charact bricks construct all runs/<run>                  every model's latency here
  charact bricks show suite                                what models were cut into, and what repeats
  charact bricks audit suite                               what the suite tells others of the models
""")


@group.command()
def generate(
    models: Annotated[list[str], typer.Argument(
        metavar="MODEL...", help="Workloads (see `charact list`), your own models as package.module:factory, or "
                                 "exported programs as file.pt2.")],
    g: Annotated[str, typer.Option(
        "-g", metavar="NUMBER|auto", help="Most layers of a brick. auto tries 1, 2, 4 and 8 here, and takes the one "
                                          "that costs least among the best.")] = "1",
    out: Annotated[Path, typer.Option(help="Directory of the suite; one that is there is extended.")] = Path("suite"),
    cut: Annotated[str | None, typer.Option(
        help="Where models are cut: chains (a row of layers that nobody else reads from), heavy (a heavy layer with "
             "the light ones behind it), paper (as the study did). Default: chains, for training heavy.")] = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    mode: opt.Modes = "infer",
    precision: opt.Precision = "fp32",
    variant: opt.Variant = None,
    model_args: own_model.ModelArgs = None,
    input_spec: brick_options.InputSpec = None,
    loss: own_model.Loss = None,
    optimizer: own_model.Optimizer = None,
    learning_rate: own_model.LearningRate = None,
    fallback: Annotated[str | None, typer.Option(
        help="hooks cuts what cannot be exported where modules begin and end.")] = None,
    decoys: Annotated[int, typer.Option(
        min=0, max=10_000, help="Mix in so many bricks of models that were not asked for.")] = 0,
    seed: opt.Seed = 0,
    quiet: opt.Quiet = False,
) -> int:
    """Cut models into bricks, and keep each different one once.

    The suite holds bricks as JSON: operators, their arguments and shapes, no names, weights or order. Which bricks make
    which model stands apart, in SUITE.private, which stays with you. A suite that is there gets the bricks that it
    lacks. A model that cannot be captured is named with what stopped it, and the others go on.

    \b
      charact bricks generate resnet18 vgg11 mlp -g 2 --out suite
      charact bricks generate resnet50 --batch-sizes 1,8 --mode infer,train --cut heavy --out suite
      charact bricks generate transformers_models:bert --input-spec "int64[30522] S" --input-sizes 128
      charact bricks generate exported.pt2 --decoys 50
      charact bricks generate resnet18 googlenet mlp -g auto
    """  # noqa: D301  (click wants the character itself)
    names = brick_options.parse_models(models)
    modes = opt.parse_choices(mode, "--mode", MODES)
    asked = brick_options.said_of_models(input_sizes, batch_sizes, variant, {
        "--model-args": model_args, "--input-spec": input_spec, "--loss": loss, "--optimizer": optimizer,
        "--learning-rate": learning_rate})
    asked |= {"precisions": opt.parse_choices(precision, "--precision", PRECISIONS), "seed": seed}
    method = opt.parse_choice(cut, "--cut", brick_options.CUTS) if cut else "heavy" if modes == ["train"] else "chains"
    if fallback is not None:
        opt.parse_choice(fallback, "--fallback", brick_options.FALLBACKS)
    most = brick_options.parse_most_layers(g)

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.commands.bricks.generate import generate_suite
        from charact.commands.bricks.models import Asked

        return brick_options.status_of(interrupt, lambda: generate_suite(
            Asked(names=names, modes=modes, **asked), out, most, method, fallback, decoys, quiet, interrupt))


@group.command()
def run(
    suite: Annotated[Path | None, typer.Argument(metavar="SUITE", help="Directory of a suite of bricks.")] = None,
    mode: Annotated[str | None, typer.Option(help="train, infer or both. Default: what the suite has.")] = None,
    precision: Annotated[str | None, typer.Option(
        help="Of what the suite was cut in. Default: all of it.")] = None,
    batch_sizes: Annotated[str | None, typer.Option(
        help="Only bricks of models at these batch sizes. Default: all.")] = None,
    method: Annotated[str, typer.Option(
        help="contextual times a brick among all others, as in a model; paper repeats it back to back.")]
    = "contextual",
    share: Annotated[float, typer.Option(
        help="Time only this share of the bricks, those that tell most of the models and some of every kind; "
             "construct predicts the others' times from theirs, by sizes. Inference only.")] = 1.0,
    precision_target: Annotated[float, typer.Option(
        min=0, max=1, help="Stop when the 95 % interval of all bricks' time is within this share.")] = 0.02,
    max_rounds: Annotated[int, typer.Option(min=1, help="Or after so many rounds over all bricks.")] = 100,
    max_seconds: Annotated[float, typer.Option(
        min=0, max=604_800, help="Or after so many seconds and 6 rounds.")] = 600.0,
    resume: Annotated[Path | None, typer.Option(
        help="Go on with a run that was killed or interrupted: its directory, runs/.partial-...")] = None,
    max_bytes: brick_options.MaxBytes = None,
    threads: opt.Threads = None,
    device: opt.Device = "auto",
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: bricks and the suite's.")] = None,
    quiet: opt.Quiet = False,
) -> int:
    """Time every brick of a suite on this machine.

    Bricks take turns, with weights as far away as in their models, so that they take as long as there. Each round
    is kept: what was killed is gone on with. A brick that fails, runs out of memory or crashes is recorded; the others
    go on: a suite may come from anybody, and runs in a process of its own.

    \b
      charact bricks run suite
      charact bricks run suite --batch-sizes 8 --mode train --max-seconds 120 --threads 1
      charact bricks run suite --share 0.2   about a third of the cost, for some more error
      charact bricks run suite --method paper
      charact bricks run --resume runs/.partial-20261121-100000-bricks-suite-0a1b2c
    """  # noqa: D301  (click wants the character itself)
    if (suite is None) == (resume is None):
        raise UserError("name the suite to run, as in charact bricks run suite, or a run to --resume: one of them")
    opt.check_name(name)
    options: dict[str, Any] = {
        "modes": None if mode is None else opt.parse_choices(mode, "--mode", MODES),
        "precisions": None if precision is None else opt.parse_choices(precision, "--precision", PRECISIONS),
        "batch_sizes": brick_options.parse_sizes(batch_sizes, "--batch-sizes"),
        "method": opt.parse_choice(method, "--method", brick_options.METHODS), "max_rounds": max_rounds,
        "precision_target_frac": precision_target, "max_seconds": max_seconds, "device": device,
        "share_frac": brick_options.parse_share(share),
        "max_bytes": None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes"),
    }

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.commands.bricks.run import go_on, start

        if resume is not None:
            return go_on(resume, quiet, interrupt)
        assert suite is not None
        return start(suite, options, out, name, threads, quiet, interrupt)


@group.command()
def calibrate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run of a suite on this machine.")],
    models: Annotated[list[str] | None, typer.Argument(
        metavar="[MODEL]...", help="Models to measure. Default: up to 8 that stand for the suite's others.")] = None,
    model: brick_options.OwnModels = None,
    loss: brick_options.OwnLosses = None,
    compositions: brick_options.Compositions = None,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="Times that each model has its turn.")] = 3,
    max_seconds: Annotated[float, typer.Option(min=0, max=86_400, help="Longest turn of a model.")] = 5.0,
    quiet: opt.Quiet = False,
) -> int:
    """Measure some whole models, and learn what bricks cannot see.

    The time of a model is close to the sum of its bricks. What is left is nearly the same share of all models, and so
    much for each call of a module: both are fitted here, kept for this machine, and used by construct.

    \b
      charact bricks calibrate runs/20261121-100000-bricks-suite-0a1b2c
      charact bricks calibrate runs/20261121-100000-bricks-suite-0a1b2c resnet18 mlp vgg11
    """  # noqa: D301  (click wants the character itself)
    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.commands.bricks.calibrate import calibrate_machine
        from charact.commands.bricks.models import Named

        names = brick_options.parse_models(models or [])
        own = Named.on_command_line(model or [], loss or [], names)
        return brick_options.status_of(interrupt, lambda: calibrate_machine(
            run, names, own, compositions, turns, max_seconds, quiet, interrupt))


@group.command()
def construct(
    what: Annotated[list[str], typer.Argument(
        metavar="MODEL... RUN...", help="Models, or all, and runs of a suite, of one machine or several.")],
    compositions: brick_options.Compositions = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    variant: opt.Variant = None,
    model_args: own_model.ModelArgs = None,
    input_spec: brick_options.InputSpec = None,
    model: brick_options.OwnModels = None,
    loss: brick_options.OwnLosses = None,
    verify: Annotated[bool, typer.Option(
        "--verify", help="Run the models themselves, too, where a run is of this machine, and tell the error.")]
    = False,
    precision_target: Annotated[float, typer.Option(
        min=0, max=1, help="Stop verifying a model when its median's 95 % interval is within this share.")] = 0.02,
    max_iterations: Annotated[int, typer.Option(min=1, help="Or after so many iterations.")] = 100,
    max_seconds: Annotated[float, typer.Option(
        min=0, max=86_400, help="Or after so many seconds and 6 iterations.")] = 15.0,
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the record. Default: constructed and the suite's.")] = None,
    quiet: opt.Quiet = False,
) -> int:
    """Build models' latencies from the times of their bricks.

    The plain sum of a model's bricks and its longest path are told, and, where the machine was calibrated, the
    corrected sum, each with an interval. A model that the suite was not made of is captured anew; it can be built
    where the suite holds all its bricks. Several runs give a table of models by machines.

    \b
      charact bricks construct all runs/20261121-100000-bricks-suite-0a1b2c
      charact bricks construct resnet18 mlp runs/20261121-100000-bricks-suite-0a1b2c --verify
      charact bricks construct all runs/laptop runs/server --compositions suite.private
      charact bricks construct all runs/<run> --verify --model "nets:Net(depth=50)"
    """  # noqa: D301  (click wants the character itself)
    opt.check_name(name)
    if (model or loss) and not verify:
        raise UserError(f"{'--model' if model else '--loss'} names what --verify may run: add --verify, or leave it "
                        "out")
    asked = brick_options.said_of_models(input_sizes, batch_sizes, variant,
                                         {"--model-args": model_args, "--input-spec": input_spec})

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.commands.bricks.construct import construct_models
        from charact.measure.passes.timing import StopRule

        stop = StopRule(precision_target, max_iterations, max_seconds) if verify else None
        return brick_options.status_of(interrupt, lambda: construct_models(
            what, asked, (model or [], loss or []), compositions, stop, out, name, quiet, interrupt))


@group.command()
def show(suite: brick_options.Suite, compositions: brick_options.Compositions = None) -> int:
    """Tell what models were cut into, and how much is different.

    \b
      charact bricks show suite
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.bricks.suites import show_suite

    return show_suite(suite, compositions)


@group.command()
def audit(suite: brick_options.Suite) -> int:
    """Tell what a suite shows of its models to others.

    That is without its private part. The exit status is 1 where it shows more than the operators and shapes of its
    bricks.

    \b
      charact bricks audit suite
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.bricks.suites import audit_suite

    return audit_suite(suite)


@group.command()
def merge(
    suites: Annotated[list[Path], typer.Argument(metavar="SUITE...", help="Suites of the same -g and cut.")],
    out: Annotated[Path, typer.Option(help="Directory of the new suite.")],
) -> int:
    """Make one suite of several, each brick once.

    \b
      charact bricks merge suite-of-vision suite-of-text --out suite
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.bricks.suites import merge_suites

    return merge_suites(suites, out)
