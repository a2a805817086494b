"""ACMS: a context engine for LLM agents. Every public name, and nothing else."""

from typing import TYPE_CHECKING

from acms import config, errors
from acms.config import *
from acms.errors import *
from acms.knowledge import Decision, Fact, Proposal, Reflection, Retired
from acms.log.policy import ResolvedPolicy
from acms.model import (
    Entry,
    Job,
    JobState,
    Kind,
    MarkerType,
    Media,
    Origin,
    Privacy,
    Raw,
    Reasoning,
    Redaction,
    Role,
    Source,
    State,
    Text,
    ToolCall,
    ToolResult,
)
from acms.observability.events import (
    EpisodeClosed,
    Event,
    Ingested,
    JobFailed,
    JobFinished,
    PinsLoaded,
    PinsSkipped,
    PinsTruncated,
    Planned,
    PromptFailed,
    PromptRendered,
    Reflected,
    Rewritten,
    ScopeShrunk,
)
from acms.observability.logging import JSONFormatter, correlation
from acms.ports import (
    Embedder,
    ReflectionRequest,
    Reflector,
    Reranker,
    StorageBackend,
    Summarizer,
    SummaryRequest,
    TokenCounter,
    Turn,
)
from acms.prompt_types import LoggedRender, RenderBlock, RenderDetails
from acms.providers.tokens import BPETokenCounter, EstimatingTokenCounter, HeuristicTokenCounter
from acms.results import (
    Band,
    Branch,
    Certainty,
    Change,
    Compaction,
    ContextItem,
    ContextItems,
    Delta,
    Diff,
    Episode,
    Erasure,
    HistoryEntry,
    HistoryPage,
    Ledger,
    Lost,
    MessageReceipt,
    Remaining,
    SessionStats,
    Synced,
    Tree,
    Verdict,
)
from acms.runtime.lazy import lazily as _lazily
from acms.session import ACMS
from acms.storage import open_storage
from acms.view import View

if TYPE_CHECKING:
    from acms.log.merges import MergeConflict, Merged
    from acms.prompt.builder import Prompt
    from acms.runtime.version import __version__

__getattr__, __dir__ = _lazily(
    __name__,
    {
        "MergeConflict": "acms.log.merges",
        "Merged": "acms.log.merges",
        "Prompt": "acms.prompt.builder",
        "__version__": "acms.runtime.version",
    },
)

__all__ = [
    "ACMS",
    "BPETokenCounter",
    "Band",
    "Branch",
    "Certainty",
    "Change",
    "Compaction",
    "ContextItem",
    "ContextItems",
    "Decision",
    "Delta",
    "Diff",
    "Embedder",
    "Entry",
    "Episode",
    "EpisodeClosed",
    "Erasure",
    "EstimatingTokenCounter",
    "Event",
    "Fact",
    "HeuristicTokenCounter",
    "HistoryEntry",
    "HistoryPage",
    "Ingested",
    "JSONFormatter",
    "Job",
    "JobFailed",
    "JobFinished",
    "JobState",
    "Kind",
    "Ledger",
    "LoggedRender",
    "Lost",
    "MarkerType",
    "Media",
    "MergeConflict",
    "Merged",
    "MessageReceipt",
    "Origin",
    "PinsLoaded",
    "PinsSkipped",
    "PinsTruncated",
    "Planned",
    "Privacy",
    "Prompt",
    "PromptFailed",
    "PromptRendered",
    "Proposal",
    "Raw",
    "Reasoning",
    "Redaction",
    "Reflected",
    "Reflection",
    "ReflectionRequest",
    "Reflector",
    "Remaining",
    "RenderBlock",
    "RenderDetails",
    "Reranker",
    "ResolvedPolicy",
    "Retired",
    "Rewritten",
    "Role",
    "ScopeShrunk",
    "SessionStats",
    "Source",
    "State",
    "StorageBackend",
    "Summarizer",
    "SummaryRequest",
    "Synced",
    "Text",
    "TokenCounter",
    "ToolCall",
    "ToolResult",
    "Tree",
    "Turn",
    "Verdict",
    "View",
    "__version__",
    "correlation",
    "open_storage",
]
__all__ += config.__all__
__all__ += errors.__all__
