"""How well the device is used: ceilings, roofline, bottleneck, utilization, counters."""
