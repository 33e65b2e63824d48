"""The published studies: the cases of each, and the chapter of the report that shows them."""
