"""Built-in workloads of images, one family a file; each has a list named WORKLOADS."""
