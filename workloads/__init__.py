"""Built-in workloads, one family a file; each holds a list named WORKLOADS."""
