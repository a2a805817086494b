"""Observability: events, structured logs and traces."""
