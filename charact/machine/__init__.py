"""The machine and its devices: facts, datasheets, cache sizes, and the cache of measured ceilings."""
