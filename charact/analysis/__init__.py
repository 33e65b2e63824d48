"""Tables about a run: nouns that return a DataFrame. Nothing here imports torch or measures."""
