"""TensorBoard: a tab of charact's own, and native scalars for Time Series."""
