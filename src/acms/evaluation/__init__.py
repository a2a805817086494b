"""How well a memory remembers: scenarios, metrics, and a harness for ACMS and for others."""

from acms.evaluation.baselines import MostRecent, PlainBM25, PlainVectors, ReciprocalRankFusion
from acms.evaluation.bootstrap import Interval
from acms.evaluation.cached import CachedEmbedder
from acms.evaluation.composite import WEIGHTS, Composite, composite
from acms.evaluation.datasets import Conversation, Question, load
from acms.evaluation.items import GoldItem, evaluation_result
from acms.evaluation.metrics import (
    carries,
    hit,
    hit_at,
    ndcg,
    outdated,
    precision,
    score,
    stale,
    stale_anywhere,
    surfaced,
)
from acms.evaluation.nouns import Probe, Recalled, Report, Said, Scenario, Score, System, table
from acms.evaluation.peers import OpenSystem, systems
from acms.evaluation.reflectors import PerfectReflector
from acms.evaluation.retrieval import RetrievalReport, evaluate
from acms.evaluation.running import Remembering, measure, run
from acms.evaluation.scenarios import SCENARIOS, corrections, spread
from acms.evaluation.topics import Phrases, phrases

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
    "carries",
    "composite",
    "corrections",
    "evaluate",
    "evaluation_result",
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
]
