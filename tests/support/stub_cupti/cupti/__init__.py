"""Stands for cupti-python 13.4: the parts of it that charact uses, by the same names, with a device of its own.

The device is at work while PyTorch runs an operator on the CPU: STUB_CUPTI in the environment names a way to fail, and
STUB_CUPTI_CAPACITY how many metrics fit into one pass.
"""
