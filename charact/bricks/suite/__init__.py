"""The suite on disk: its index, bricks and compositions. No torch in here."""
