"""How well a memory remembers: scenarios, metrics, and a harness for ACMS and for others."""

from acms.evaluation.baselines import MostRecent, PlainBM25
from acms.evaluation.metrics import carries, hit, ndcg, precision, score, stale, stale_anywhere
from acms.evaluation.nouns import Probe, Recalled, Report, Said, Scenario, Score, System, table
from acms.evaluation.reflectors import PerfectReflector
from acms.evaluation.running import Remembering, measure, run
from acms.evaluation.scenarios import SCENARIOS, corrections, spread
from acms.evaluation.topics import Phrases, phrases

__all__ = [
    "MostRecent",
    "PerfectReflector",
    "Phrases",
    "PlainBM25",
    "Probe",
    "Recalled",
    "Remembering",
    "Report",
    "SCENARIOS",
    "Said",
    "Scenario",
    "Score",
    "System",
    "carries",
    "corrections",
    "hit",
    "measure",
    "ndcg",
    "phrases",
    "precision",
    "run",
    "score",
    "spread",
    "stale",
    "stale_anywhere",
    "table",
]
