"""Sampling the hardware's counters while iterations of a case run, in a process of its own: run by `pm`.

CUPTI's profiler may be begun and ended only once in a process. And of libraries that have one name, a process gets the
one that is loaded first: that must be the CUPTI that cupti-python was made for, not the older one that PyTorch brings.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from charact.measure.counters._support.cupti import load_library
from charact.measure.counters._support.protocol import Refused


def main(case_path: Path, answer_path: Path) -> None:
    """Count over iterations of the case; the answer is a `Found` or a `Refusal`, as JSON."""
    try:
        load_library()
        from charact.measure.counters.pm.sampling_run import sampled_case  # imports torch

        answer = {"found": asdict(sampled_case(case_path))}
    except Refused as refused:
        answer = {"refusal": asdict(refused.refusal)}
    answer_path.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
