"""The command tito: one file a command."""
