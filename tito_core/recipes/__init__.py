"""The settings that an engine serves a family with, and their rules."""
