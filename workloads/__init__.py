"""Built-in workloads, one family a file, those of images in a folder; each file has a list named WORKLOADS."""
