"""The fields of a message that a caller of ACMS gives: every interface derives its lists from these."""

from __future__ import annotations

CONTENT = ("role", "content", "parts", "tool_calls", "tool_call_id")
"""What was said, and by which role."""
ATTRIBUTES = ("markers", "actor_id", "metadata", "created_at", "origin", "privacy")
"""What is known about it; every interface takes them under these names."""
KEYS = ("key", "idempotency_key")
"""Two names of the key that prevents a message from being stored twice."""
