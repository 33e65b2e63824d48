"""Memory snapshots of CUDA's caching allocator: their files, the replay of their history, and cases."""
