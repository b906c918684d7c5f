"""Declaring a family, and finding it among the installed plugins."""
