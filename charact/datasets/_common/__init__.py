"""What all data sets share: requests, specs, downloads, vocabularies."""
