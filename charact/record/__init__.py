"""The record of a run on disk: its schema, and writing, reading and checking it. No torch in here."""
