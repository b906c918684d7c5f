"""What an engine is started with: a recipe as its command line, one command a node; its own rules; and it as a child."""
