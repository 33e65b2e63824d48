"""`charact ops`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.record.schema import OPERATION_PRECISIONS

if TYPE_CHECKING:
    from charact.ops import Problem


def command(
    suite: Annotated[str | None, typer.Option(
        help="Suite of problems: deepbench, vo, modern or crossover; see above.")] = None,
    part: Annotated[str | None, typer.Option("--set", help="Parts of the suite, e.g. training. Default: all.")] = None,
    problem: Annotated[list[str] | None, typer.Option(
        help="A problem, e.g. gemm:3072x128x1024; may be repeated.")] = None,
    operations: Annotated[str | None, typer.Option(
        help="Kinds of operations to run, e.g. gemm,convolution. Default: all.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Run only every N-th problem of the suite.")] = 1,
    precision: Annotated[str, typer.Option(help="Number formats: fp32, tf32 (CUDA), bf16, fp16, int8.")] = "fp32",
    layouts: Annotated[str, typer.Option(
        help="Layouts of sparse matrices without one in the problem: csr, csc, coo, bsr, or dense to compare.")]
    = "csr,dense",
    hot: Annotated[bool, typer.Option(
        "--hot", help="Reuse the same inputs, which a cache may hold. Default: rotate inputs.")] = False,
    ranks: Annotated[int, typer.Option(min=1, max=1024, help="Number of processes of an all_reduce.")] = 1,
    device: opt.Device = "auto",
    threads: opt.Threads = None,
    precision_target: Annotated[float, typer.Option(
        min=0, max=1, help="Stop a problem when the 95 % interval of its median is within this share.")] = 0.02,
    max_repetitions: Annotated[int, typer.Option(min=1, help="Or after this many repetitions.")] = 100,
    max_seconds: Annotated[float, typer.Option(
        min=0, max=86_400, help="Or after this many seconds and 6 repetitions.")] = 3.0,
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the suite's or the operation's.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> int:
    """Time basic operations: products, convolutions and others.

    Each problem is an operation of given sizes. It is timed forward and, if it has gradients, for each gradient. Its
    result is checked against float64. A problem that cannot run is recorded with the reason.

    \b
      charact ops --suite vo
      charact ops --suite deepbench --set training --operations gemm,convolution --sample 10
      charact ops --problem gemm:3072x128x1024 --problem gemm:4096x4096x4096 --precision fp32,bf16
      charact ops --problem sparse_gemm:7680x64x2560:s0.95 --layouts csr,csc,coo,bsr,dense
      charact ops --problem all_reduce:16777216 --ranks 4

    Suites: deepbench (sets training, inference_server, inference_device), vo (dmm, smm, convolve2d, rnn), modern, of
    transformers (gpt2-small, gpt-1.3b, 7b), and crossover, of sparse products with increasing sparsity.

    Problems:

    \b
      gemm:MxNxK[:nt|tn|tt]                                 K is the inner dimension; t: stored transposed
      sparse_gemm:MxNxK:sZEROS|dNONZEROS[:csr|csc|coo|bsr|dense]      s0.9 and d0.1: 90 % are zero
      convolution:NxCxHxW:KxRxS[:pPAD][:sSTRIDE]            images, filters
      rnn:relu|tanh|lstm|gru:HIDDENxBATCHxSTEPS[xINPUT]
      attention:BATCHxHEADSxQUERIESxKEYSxWIDTH[:causal]
      normalization:batch_norm:BATCHxCHANNELSxHEIGHTxWIDTH or normalization:layer_norm:ROWSxWIDTH
      softmax:ROWSxWIDTH
      embedding:WORDSxWIDTHxTOKENS[:zipf|:uniform]
      optimizer:sgd|adam|adamw:PARAMETERS[xTENSORS][:single|:foreach|:fused]
      copy:NUMBERS[:host_to_device|:device_to_host]
      all_reduce:NUMBERS[xRANKS]
    """  # noqa: D301  (click wants the character itself)
    precisions = opt.parse_choices(precision, "--precision", OPERATION_PRECISIONS)
    opt.check_name(name)
    if suite is None and part is not None:
        raise UserError("--set selects a part of a suite: give --suite")
    if suite is None and not problem:
        raise UserError("nothing to run: give a --suite or a --problem, as in --problem gemm:3072x128x1024")
    options: dict[str, Any] = {
        "suite": suite or "", "set": part or "", "problem": problem or [], "operations": operations or "",
        "sample": sample, "layouts": layouts, "hot": hot, "ranks": ranks,
        "precision_target_frac": precision_target, "max_repetitions": max_repetitions, "max_seconds": max_seconds,
    }

    from charact.execution.interrupt import Interrupt

    with Interrupt() as interrupt:
        from charact.commands._shared.run_cases import run_and_publish
        from charact.machine.facts import resolve_device
        from charact.measure.microbench.cases import operation_cases, run_operations
        from charact.measure.passes.timing import StopRule
        from charact.ops import all_kinds, parse_problem

        kinds = all_kinds() if operations is None else opt.parse_choices(operations, "--operations", all_kinds())
        problems = [each for each in _of_suite(suite, part) if each.operation in kinds][::sample] if suite else []
        problems += [each for each in map(parse_problem, problem or []) if each.operation in kinds]
        if not problems:
            raise UserError(f"nothing to run: --operations {operations} matches none of the problems")
        several = len({each.operation for each in problems}) > 1
        cases = operation_cases(_varied(problems, layouts, ranks), precisions, resolve_device(device))
        reasons = [case.refusal() for case in cases]
        if all(reasons):
            raise UserError(str(reasons[0]))
        rule = StopRule(precision_target, max_repetitions, max_seconds)
        return run_and_publish(
            lambda writer, progress: run_operations(cases, rule, writer, progress, interrupt, hot=hot), out,
            name or suite or ("operations" if several else problems[0].operation), options, threads, quiet, interrupt,
            [str(case.device) for case in cases], measures_ceilings=True, as_json=as_json)


def _of_suite(name: str, part: str | None) -> "list[Problem]":
    from charact.ops import all_suites

    suites = all_suites()
    suite = suites[opt.parse_choice(name, "--suite", suites)]
    if part is None:
        return suite.problems()
    if not suite.sets:
        raise UserError(f"--set: {name} has no parts: leave it out")
    parts = opt.parse_choices(part, "--set", suite.sets)
    return [problem for problem in suite.problems() if problem.set in parts]


def _varied(problems: "list[Problem]", layouts: str, num_ranks: int) -> "list[Problem]":
    """Return sparse products in each layout, and all_reduce problems with this number of ranks."""
    from charact.ops.kinds.all_reduce import with_ranks
    from charact.ops.kinds.sparse_gemm import LAYOUTS, with_layouts

    chosen = opt.parse_choices(layouts, "--layouts", LAYOUTS)
    varied: list[Problem] = []
    for problem in problems:
        if problem.operation == "sparse_gemm":
            varied += with_layouts(problem, chosen)
        elif problem.operation == "all_reduce":
            varied.append(with_ranks(problem, num_ranks))
        else:
            varied.append(problem)
    return varied
