"""TensorBoard plugin: the Characterization tab, and scalars for Time Series."""
