"""Turns, their ids, and what a trainer may learn from them."""
