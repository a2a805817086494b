"""Formats of model providers: what a prompt looks like there, and what it counts."""
