"""Execution of one case without instruments: devices, batches, precision, interrupts, outcomes."""
