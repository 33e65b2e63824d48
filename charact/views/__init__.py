"""What a person looks at: terminal, HTML, TensorBoard, exports. Views sort, scale units and format."""
