"""Vectors in Chroma, beside another store."""
