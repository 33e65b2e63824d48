"""Data sets for PyTorch: the samples of images and texts that workloads read."""
