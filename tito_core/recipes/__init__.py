"""What an engine is started with: a recipe as its command line, one command a node, and the engine's own rules."""
