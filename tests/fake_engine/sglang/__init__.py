"""Stands in for the package sglang, so that a launch of it can be tested where it is not installed."""
