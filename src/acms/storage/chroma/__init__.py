"""Vectors in Chroma, next to another store."""
