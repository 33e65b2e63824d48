"""Built-in workloads, one family a file; each has a list named WORKLOADS."""
