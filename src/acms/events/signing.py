"""Signatures of webhooks, as Standard Webhooks has them (standardwebhooks.com): HMAC-SHA256 under a shared secret."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from hashlib import sha256

from acms.log.encoding import Entropy

__all__ = ["new_secret", "sign_request"]

_PREFIX = "whsec_"


def new_secret(entropy: Entropy) -> str:
    """Return a new secret as its receiver keeps it: `whsec_` and base64."""
    return _PREFIX + b64encode(entropy(32)).decode("ascii")


def sign_request(secret: str, id: str, seconds: int, content: bytes) -> dict[str, str]:
    """Return the header fields that let a receiver check a request: its id, when it was sent, and the signature."""
    key = b64decode(secret.removeprefix(_PREFIX))
    digest = hmac.new(key, f"{id}.{seconds}.".encode() + content, sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{b64encode(digest).decode('ascii')}",
    }
