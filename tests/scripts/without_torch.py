"""A script that knows nothing of PyTorch."""

import sys

print(sum(range(10)), "torch" in sys.modules)
sys.exit(7)
