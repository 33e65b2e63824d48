"""Tells everything that a script is given: arguments, input, directory, its own name and where it looks for modules."""

import os
import sys

import torch

print(sys.argv, sys.stdin.read(), os.getcwd(), __name__, __file__, sys.path[0])
print(sorted(name for name in globals() if name.startswith("__")), __spec__, __doc__)
print(torch.nn.Linear(1, 1).forward.__name__, file=sys.stderr)
sys.exit("no more input")
