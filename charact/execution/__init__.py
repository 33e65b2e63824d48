"""One case and its iterations, without any instrument: devices, batches, precision, interrupts, outcomes."""
