"""Numbers of the chapters that need the runs of several workloads."""
