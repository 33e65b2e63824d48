"""Run records on disk: schema, writing, reading and checking. Imports no torch."""
