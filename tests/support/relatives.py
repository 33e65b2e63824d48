"""Workloads that are relatives of others: tests of them show nearly the same, and take longer."""

DEEPER = frozenset([
    "resnet101", "resnet152", "resnet152v2", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"])
"""Deeper forms of another workload."""
