"""Child process of `pm`: samples the hardware's counters while iterations of a case run.

CUPTI's profiler can be started only once per process. A process also loads only one library of a name: here it must be
the CUPTI of cupti-python, not the older one that PyTorch bundles.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from charact.measure.counters._support.cupti import cupti_errors
from charact.measure.counters._support.protocol import UnavailableError


def main(case_path: Path, answer_path: Path) -> None:
    """Sample iterations of the case; write a `Found` or an `Unavailable` as JSON."""
    try:
        with cupti_errors():
            from cupti import cupti

            cupti.get_last_error()  # any call loads the library
        from charact.measure.counters.pm.sampling import sampled_case  # imports torch

        answer = {"found": asdict(sampled_case(case_path))}
    except UnavailableError as error:
        answer = {"unavailable": asdict(error.unavailable)}
    answer_path.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
