"""Erasure: permanent removal of content, and the proof of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acms.runtime.lazy import lazy_attributes

if TYPE_CHECKING:
    from acms.erasure.erase import erase_context, erase_subject, erase_tenant

__all__ = ["erase_context", "erase_subject", "erase_tenant"]

__getattr__, __dir__ = lazy_attributes(__name__, dict.fromkeys(__all__, "acms.erasure.erase"))
