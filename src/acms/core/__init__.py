"""Modules under the names they had before; see docs/architecture.md."""
