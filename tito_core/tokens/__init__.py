"""Prompt text to ids, and joining ids without re-encoding what is stored."""
