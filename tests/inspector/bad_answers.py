"""Sessions of one namespace with five bad answers, each with another cause."""

from __future__ import annotations

from typing import Any

from acms import ACMS, ACMSConfig, Prompt, ReflectionConfig, RenderLogConfig
from acms.codecs import OpenAIChat

NAMESPACE = "user:ada"
CONFIG = ACMSConfig(renders=RenderLogConfig(enabled=True), reflection=ReflectionConfig(enabled=False))
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search_flights",
            "description": "Find flights to a city.",
            "parameters": {"type": "object", "properties": {"to": {"type": "string"}}},
        },
    }
]
RULES = " ".join(f"Rule {number}: quote the price and the time of each flight." for number in range(120))
"""System text that is long enough for a provider to cache."""


async def plant(url: str) -> None:
    """Write the sessions: `home`, `work`, and `trip`, whose requests lack what their questions need."""
    async with _open(url, "home") as home:
        await home.ingest("user", "My passport number is L4471, valid until March 2027.")
        await home.state("Ada", "city", "Vienna", scope="namespace")
    async with _open(url, "work") as work:
        for day in range(30):
            await work.ingest(
                "assistant", f"The hotel booking number of day {day} was checked, booking {day}."
            )
        await work.ingest(
            "user", "My sister keeps the code QX91 of the hotel, she brings it along to Lisbon."
        )
    async with _open(url, "trip") as trip:
        await trip.ingest("user", "I moved to Graz last week.")
        await trip.state("Ada", "city", "Graz")
        await _search_flights(trip)
        await _ask(trip, "What is the price of the seventy-seventh?", "I do not know.")
        await _ask(trip, "In which city does Ada live?", "In Vienna.")
        await _ask(trip, "What is the hotel booking number?", "It is booking 7.", tokens=120)
        await _ask(trip, "What is my passport number?", "You did not tell me.", scope="session")
        await _ask(trip, "Anything else?", "No.", system=f"Today is Monday. {RULES}")


def _open(url: str, name: str) -> ACMS:
    return ACMS(name, url, None, namespace=NAMESPACE, config=CONFIG)


async def _search_flights(trip: ACMS) -> None:
    call = {
        "id": "call-1",
        "type": "function",
        "function": {"name": "search_flights", "arguments": '{"to": "Lisbon"}'},
    }
    await trip.ingest("assistant", "", tool_calls=[call])
    flights = "\n".join(f"flight TP{number} to Lisbon costs {90 + number} EUR" for number in range(120))
    await trip.ingest("tool", flights, tool_call_id="call-1", metadata={"toolName": "search_flights"})
    await trip.ingest("assistant", "There are 120 flights.")


async def _ask(trip: ACMS, question: str, answer: str, *, system: str = RULES, **recall: Any) -> None:
    await trip.ingest("user", question)
    options: dict[str, Any] = {"tokens": 400, **recall}
    prompt = Prompt(OpenAIChat("gpt-5")).tools(TOOLS).system(system).history(trip)
    await prompt.recall(trip, question, **options).render(budget=3000)
    await trip.renders(limit=1)  # one after the other
    await trip.ingest("assistant", answer)
