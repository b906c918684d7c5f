"""Proving a family's promises on generated conversations and whole sessions."""
