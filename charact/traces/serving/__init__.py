"""The inference server's view of a trace: its steps, and the device's work by kind of kernel."""
