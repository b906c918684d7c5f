"""Token-in token-out: the ids that an engine sampled are the ids that a trainer learns from."""
