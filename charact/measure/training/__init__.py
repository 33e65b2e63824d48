"""Training over epochs and inference over a data set, with times by stage."""
