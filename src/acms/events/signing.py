"""Signatures of webhooks in the form of Standard Webhooks (standardwebhooks.com): HMAC-SHA256 with a shared secret."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from hashlib import sha256

from acms.log.encoding import Entropy

__all__ = ["generate_secret", "sign_request"]

_SECRET_PREFIX = "whsec_"


def generate_secret(entropy: Entropy) -> str:
    """Return a new secret of 32 random bytes, as `whsec_` and base64."""
    return _SECRET_PREFIX + b64encode(entropy(32)).decode("ascii")


def sign_request(secret: str, id: str, timestamp: int, content: bytes) -> dict[str, str]:
    """Return the header fields with which a receiver verifies a request: its id, its time, and its signature.

    `timestamp` is the time of sending, in seconds since 1970.
    """
    key = b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed_content = f"{id}.{timestamp}.".encode() + content
    digest = hmac.new(key, signed_content, sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{b64encode(digest).decode('ascii')}",
    }
