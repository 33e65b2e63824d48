"""Which case of a suite's run timed the bricks of a model."""

from charact.bricks.brick import runs_as
from charact.bricks.composition import Composition
from charact.errors import UserError
from charact.store import Run


def brick_case(run: Run, composition: Composition) -> str:
    """The case of a suite's run whose bricks make a model: of its mode and precision, and cut as it was.

    Bricks of mixed precision hold its casts, and may be timed with those of fp32.

    Raises:
        UserError: the run is none of a suite, or the model is of another mode or precision, or cut otherwise.
    """
    entries = [entry for entry in run.manifest["cases"] if "bricks" in entry.get("passes", {})]
    if not entries:
        raise UserError(f"{run.path} is no run of a suite: charact bricks run makes one")
    alike = [entry for entry in entries if entry["mode"] == composition.mode
             and runs_as(entry["precision"]) == runs_as(composition.precision)]  # fmt: skip
    alike.sort(key=lambda entry: bool(entry["precision"] != composition.precision))
    if not alike:
        timed = " and ".join(dict.fromkeys(f"{entry['mode']} in {entry['precision']}" for entry in entries))
        raise UserError(f"{composition.case} is {composition.mode} in {composition.precision}, {run.path} timed "
                        f"{timed}: charact bricks run --mode {composition.mode} --precision {composition.precision}")
    case, facts = str(alike[0]["case"]), alike[0]["passes"]["bricks"]
    if (facts["g"], facts["cut_method"]) != (composition.g, composition.method):
        raise UserError(f"{composition.case} is cut by '{composition.method}' at G = {composition.g}, the bricks of "
                        f"{run.path} by '{facts['cut_method']}' at G = {facts['g']}: run a suite that is cut alike")
    return case


