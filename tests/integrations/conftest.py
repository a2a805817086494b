"""Tests of frameworks that the default environment does not have: `python -m tests.integrations` runs them."""

from importlib.metadata import distributions

NEEDS = {
    "test_agent_framework.py": "agent-framework-core",
    "test_google_adk.py": "google-adk",
    "test_llama_index.py": "llama-index-core",
    "test_pydantic_ai.py": "pydantic-ai-slim",
    "test_pydantic_ai_store.py": "pydantic-ai-slim",
}

_installed = {found.name for found in distributions()}
collect_ignore = [file for file, package in NEEDS.items() if package not in _installed]
