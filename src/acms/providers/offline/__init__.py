"""Providers that need no model: a reflector by rules and an extractive summarizer."""
