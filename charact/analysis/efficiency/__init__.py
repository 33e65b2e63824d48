"""Utilization of the device: ceilings, roofline, bottleneck, counters."""
