"""How well a memory remembers: scenarios, metrics, and a harness for ACMS and for others."""

from acms_eval.baselines import MostRecent, PlainBM25, PlainVectors, ReciprocalRankFusion, WindowBM25
from acms_eval.bootstrap import Interval
from acms_eval.cached import CachedEmbedder
from acms_eval.composite import WEIGHTS, Composite, composite
from acms_eval.datasets import Conversation, Question, load
from acms_eval.items import GoldItem, evaluation_result
from acms_eval.metrics import (
    carries,
    exact_match,
    hit,
    hit_at,
    ndcg,
    outdated,
    precision,
    score,
    stale,
    stale_anywhere,
    surfaced,
    token_f1,
)
from acms_eval.nouns import Probe, Recalled, Report, Said, Scenario, Score, System, table
from acms_eval.peers import OpenSystem, systems
from acms_eval.reflectors import PerfectReflector
from acms_eval.retrieval import RetrievalReport, evaluate
from acms_eval.running import Remembering, measure, run
from acms_eval.scenarios import SCENARIOS, corrections, spread
from acms_eval.topics import Phrases, phrases

__all__ = [  # noqa: RUF022 - in the order of `sorted`, as every door
    "CachedEmbedder",
    "Composite",
    "Conversation",
    "GoldItem",
    "Interval",
    "MostRecent",
    "OpenSystem",
    "PerfectReflector",
    "Phrases",
    "PlainBM25",
    "PlainVectors",
    "Probe",
    "Question",
    "Recalled",
    "ReciprocalRankFusion",
    "Remembering",
    "Report",
    "RetrievalReport",
    "SCENARIOS",
    "Said",
    "Scenario",
    "Score",
    "System",
    "WEIGHTS",
    "WindowBM25",
    "carries",
    "composite",
    "corrections",
    "evaluate",
    "evaluation_result",
    "exact_match",
    "hit",
    "hit_at",
    "load",
    "measure",
    "ndcg",
    "outdated",
    "phrases",
    "precision",
    "run",
    "score",
    "spread",
    "stale",
    "stale_anywhere",
    "surfaced",
    "systems",
    "table",
    "token_f1",
]
