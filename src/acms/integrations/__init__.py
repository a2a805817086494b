"""Adapters to agent frameworks: each translates and never decides."""
