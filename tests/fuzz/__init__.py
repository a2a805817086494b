"""Hostile bytes for everything that reads what others wrote."""
