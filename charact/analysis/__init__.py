"""Tables about a run: each function returns a DataFrame. No torch in here, and nothing is measured."""
