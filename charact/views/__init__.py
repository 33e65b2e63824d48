"""Views of a run: terminal, HTML, TensorBoard and exports. They sort, scale units and format."""
