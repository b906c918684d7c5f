"""The DeepSeek families: one module each, found through the entry points of this distribution."""
