"""Erasure: content that goes for ever, and the proof that it is gone."""
