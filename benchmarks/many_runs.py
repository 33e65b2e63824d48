"""What `charact report` and `charact compare` cost for many runs: CPU seconds, peak memory and size of the HTML.

Run `python benchmarks/many_runs.py [--runs 50,100,200,300] [--shapes repeats,sweep] [--commands report,compare]`. The
runs are copies of one record with other times: repeats of the same cases, or a sweep in which each run has a workload
of its own. Both commands must be linear in the number of runs, below 1 s of CPU time a run and below 400 MB.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from charact.record.in_progress import CHECKSUM, TABLE_CHECKSUMS

RECORD = Path(__file__).parent.parent / "reports" / "xeon-2-cores" / "run"
SHAPES = ("repeats", "sweep")
_SPREAD_FRAC = 0.05

# A process inherits the peak memory of the one that starts it: this one is small.
_MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss, done.stdout]))
"""


class Cost(NamedTuple):
    """What a command took: CPU time of all its threads, and the most memory that it held at once."""

    cpu_s: float
    peak_bytes: int
    output: str


def cost(command: Sequence[str | Path]) -> Cost:
    """Run `charact` with these arguments in a process of its own.

    Raises:
        RuntimeError: it did not end with 0.
    """
    whole = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "charact", *map(str, command)]
    status, cpu_s, peak_bytes, output = json.loads(subprocess.run(whole, capture_output=True, text=True).stdout)
    if status:
        raise RuntimeError(f"charact {command[0]} ended with {status}: {output}")
    return Cost(cpu_s, peak_bytes, output)


def write_copies(record: Path, out: Path, num_runs: int, shape: str = "repeats") -> list[Path]:
    """Write copies of a record below a directory; each has its own identifier, and its own times.

    Args:
        record: the run directory that is copied.
        out: where the copies are written.
        num_runs: how many.
        shape: 'repeats' of the same cases, or a 'sweep' in which each run has a workload of its own.
    """
    manifest = json.loads((record / "run.json").read_text())
    for key in (CHECKSUM, TABLE_CHECKSUMS):  # they would be those of other files
        manifest.pop(key, None)
    tables = {path.stem: pq.read_table(path) for path in sorted(record.glob("*.parquet"))}
    chance = random.Random(0)
    runs = []
    for number in range(num_runs):
        renamed = f"{manifest['name']}_{number:03d}" if shape == "sweep" else manifest["name"]
        factor = chance.uniform(1 - _SPREAD_FRAC, 1 + _SPREAD_FRAC)
        run_id = f"20261121-{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}-{renamed}-{number:06x}"
        directory = out / run_id
        directory.mkdir(parents=True)
        cases = {case["case"]: case["case"].replace(manifest["name"], renamed) for case in manifest["cases"]}
        entries = [case | {"case": cases[case["case"]], "workload": case["workload"].replace(manifest["name"], renamed)}
                   for case in manifest["cases"]]  # fmt: skip
        copy = manifest | {"run_id": run_id, "name": renamed, "cases": entries}
        (directory / "run.json").write_text(json.dumps(copy))
        for name, rows in tables.items():
            pq.write_table(_changed(rows, cases, factor), directory / f"{name}.parquet", compression="zstd")
        runs.append(directory)
    return runs


def _changed(rows: pa.Table, cases: dict[str, str], factor: float) -> pa.Table:
    """The rows of a table with other names of cases, and times that are longer by a factor."""
    for position, field in enumerate(rows.schema):
        column: Any = rows.column(position)
        if field.name == "case":
            rows = rows.set_column(position, field, pa.array([cases[case] for case in column.to_pylist()], field.type))
        elif field.name in ("host_s", "device_s", "self_host_s", "wall_s"):
            rows = rows.set_column(position, field, pc.multiply(column, factor).cast(field.type))
    return rows


def main() -> None:
    """Print a table of costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="50,100,200,300", help="numbers of runs, in order")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--commands", default="report,compare")
    parser.add_argument("--record", type=Path, default=RECORD, help="the run that is copied")
    options = parser.parse_args()
    print("| command | shape | runs | CPU (s) | CPU a run (s) | peak memory (MB) | HTML (MB) |\n" + 7 * "|---" + "|")
    for shape in options.shapes.split(","):
        for num_runs in map(int, options.runs.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                runs = write_copies(options.record, Path(folder) / "runs", num_runs, shape)
                page = Path(folder) / "page.html"
                commands: dict[str, list[str | Path]] = {
                    "report": ["report", *runs, "--to", page, "--force"],
                    "compare": ["compare", runs[0].parent, runs[0].parent, "--to", page, "--force"],
                }  # fmt: skip
                for name in options.commands.split(","):
                    found = cost(commands[name])
                    print(f"| {name} | {shape} | {num_runs} | {found.cpu_s:.1f} | {found.cpu_s / num_runs:.3f} | "
                          f"{found.peak_bytes / 1e6:.0f} | {page.stat().st_size / 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
