"""What an engine sampled: a completion, and its ids read back as an assistant message."""
