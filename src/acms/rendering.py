"""Rendering: a prompt as a provider's request within a budget, with the reasons for everything in it.

Reads come first, decisions after: sessions are read and plugins asked, the tree is fitted with every recall as large as
it may become, then the past is asked for what that does not show, and the whole is fitted again. Only `Codec.count` says
whether it fits. Each render has a state of its own, so any number of them may run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from acms.composition import CacheMark, Count, PromptMessage, Tool, Usage
from acms.core import content, validate
from acms.core.content import Recalling, Step
from acms.core.fit import fit
from acms.core.layout import laid_out
from acms.core.nodes import Composed, Fitted, NeedSummary, Placed, Scope
from acms.core.nodes import Step as Shrunk
from acms.core.pairs import paired
from acms.errors import ACMSError, ConfigurationError
from acms.events import Event, PromptFailed, PromptRendered, ScopeShrunk
from acms.logs import shown, tell
from acms.model import Json, Role
from acms.projections import ContextItems, Ledger
from acms.protocols import Codec
from acms.resolving import Request, Resolved, Resolver
from acms.telemetry import RenderSpan, render_span

if TYPE_CHECKING:
    from acms.prompt import Prompt

__all__ = ["Rendered", "Request"]
