"""Helpers shared by data sets: requests, specs, downloads, vocabularies."""
