"""How well a memory remembers: scenarios, metrics, and a harness for ACMS and for others."""

from acms.evaluation.baselines import MostRecent, PlainBM25, PlainVectors, ReciprocalRankFusion
from acms.evaluation.bootstrap import Interval
from acms.evaluation.cached import CachedEmbedder
from acms.evaluation.datasets import Conversation, Question, load
from acms.evaluation.metrics import carries, hit, ndcg, precision, score, stale, stale_anywhere
from acms.evaluation.nouns import Probe, Recalled, Report, Said, Scenario, Score, System, table
from acms.evaluation.peers import OpenSystem, systems
from acms.evaluation.reflectors import PerfectReflector
from acms.evaluation.retrieval import RetrievalReport, evaluate
from acms.evaluation.running import Remembering, measure, run
from acms.evaluation.scenarios import SCENARIOS, corrections, spread
from acms.evaluation.topics import Phrases, phrases

__all__ = [
    "SCENARIOS",
    "CachedEmbedder",
    "Conversation",
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
    "Said",
    "Scenario",
    "Score",
    "System",
    "carries",
    "corrections",
    "evaluate",
    "hit",
    "load",
    "measure",
    "ndcg",
    "phrases",
    "precision",
    "run",
    "score",
    "spread",
    "stale",
    "stale_anywhere",
    "systems",
    "table",
]
