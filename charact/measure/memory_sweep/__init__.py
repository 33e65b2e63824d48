"""Memory over batch sizes and input sizes, and the largest sizes that fit."""
