"""The arguments that an engine is started with, their rules, and the engine as a child process."""
