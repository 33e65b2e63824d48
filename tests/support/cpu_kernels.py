"""Skips tests of operators for which this CPU has no kernel."""

import pytest
import torch

from charact.ops import all_kinds, parse_problem

_REFUSAL = all_kinds()["gemm"].refusal(parse_problem("gemm:2x2x2"), "int8", torch.device("cpu"))

needs_int8 = pytest.mark.skipif(_REFUSAL is not None, reason=str(_REFUSAL))
