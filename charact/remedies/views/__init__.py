"""The result of `charact try` as items of the document."""
