"""PyTorch datasets of images and texts that workloads read."""
