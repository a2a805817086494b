"""Statements of compound sentences: every part is a fact of its own, in its own words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from acms.providers.offline.rules.compound import parts
from acms.providers.offline.rules.phrases import mentions
from acms.providers.offline.rules.statement import Speaker, Statement
from acms.providers.offline.rules.statements import statements

SAID = datetime(2026, 3, 2, tzinfo=UTC)
USER = Speaker(name="user", role="user")


def read(text: str) -> list[Statement]:
    return [one for one in statements(text, USER, version=1) if one.confidence >= 0.7]


#: (sentence, attribute and value of each part)
COMPOUND = {
    "each with a verb of its own": [
        ("The budget is 40,000 dollars and the deadline is March 15.", "budget: 40,000 dollars|deadline: March 15"),
        ("The deadline is March 15 and the budget is 40,000 dollars.", "deadline: March 15|budget: 40,000 dollars"),
        ("The port is 8080 and the region is eu-west-1.", "port: 8080|region: eu-west-1"),
        (
            "The region is eu-west-1, the port is 8080 and the timeout is 30 s.",
            "region: eu-west-1|port: 8080|timeout: 30 s",
        ),
        ("The launch date is June 3 while the budget is $8,000.", "launch date: June 3|budget: $8,000"),
        ("The budget was cut to $30k, but the deadline stays May 5.", "budget: $30k|deadline: May 5"),
        ("The deadline moved to May 5 and the budget was raised to $50k.", "deadline: May 5|budget: $50k"),
        ("Our search engine is Typesense and our CDN is Fastly.", "search engine: Typesense|CDN: Fastly"),
        ("Our hosting provider is Render; the CI runs on Buildkite.", "hosting provider: Render|CI: Buildkite"),
        ("The API runs on port 8080 and the dashboard runs on port 9090.", "port: port 8080|port: port 9090"),
        ("The team has 5 developers and the budget is 9,000 dollars.", "team size: 5|budget: 9,000 dollars"),
        ("The client is Northwind, and the project is called Atlas.", "client: Northwind|name: Atlas"),
        (
            "The maximum upload size is 25 MB and the retention period is 90 days.",
            "maximum upload size: 25 MB|retention period: 90 days",
        ),
        (
            "The repository is github.com/acme/atlas and the default branch is trunk.",
            "repository: github.com/acme/atlas|branch: trunk",
        ),
        (
            "Finance has signed it, so the budget is 45,000 dollars and the deadline is June 1.",
            "budget: 45,000 dollars|deadline: June 1",
        ),
        ("Correction: the budget is $45k and the deadline is June 1.", "budget: $45k|deadline: June 1"),
        ("Constraint: the budget is $45k and the deadline is June 1.", "budget: $45k|deadline: June 1"),
        (
            "We use Redis for caching, the budget is 40,000 dollars, and the deadline is May 5.",
            "caching: Redis|budget: 40,000 dollars|deadline: May 5",
        ),
        ("We use Redis for caching and jobs run on Celery.", "caching: Redis|jobs: Celery"),
        ("For caching we use Redis and for queues we use RabbitMQ.", "caching: Redis|queues: RabbitMQ"),
        ("We deploy to Fly.io and we monitor with Grafana.", "deployment: Fly.io|monitoring: Grafana"),
        ("Never deploy on Fridays and always run the tests.", "rule: deploy on Fridays|rule: run the tests"),
        (
            "We tried Celery, but it failed because of a leak, so we use RQ for jobs.",
            "failure: Celery|jobs: RQ",
        ),
        (
            "We tried Redis, but the latency was too high and the budget is 40,000 dollars.",
            "failure: Redis|budget: 40,000 dollars",
        ),
    ],
    "a shared verb": [
        ("We use PostgreSQL for users and Redis for caching.", "users: PostgreSQL|caching: Redis"),
        (
            "We use PostgreSQL for orders, Redis for caching and RabbitMQ for jobs.",
            "orders: PostgreSQL|caching: Redis|jobs: RabbitMQ",
        ),
        (
            "We use PostgreSQL for orders, Redis for caching, and RabbitMQ for jobs.",
            "orders: PostgreSQL|caching: Redis|jobs: RabbitMQ",
        ),
        ("We use Vue on the frontend and Django on the backend.", "frontend: Vue|backend: Django"),
        ("We use MySQL as the database and Redis as the cache.", "database: MySQL|cache: Redis"),
        (
            "We decided on MongoDB for the events store and Redis for the cache.",
            "events store: MongoDB|cache: Redis",
        ),
        ("Let's go with Postgres for orders and Kafka for events.", "orders: Postgres|events: Kafka"),
        ("Use ruff for linting and pyright for typing.", "linting: ruff|typing: pyright"),
        ("Decision: Redis for caching and Postgres for storage.", "caching: Redis|storage: Postgres"),
        ("Decision: we use Redis for caching and NATS for messaging.", "caching: Redis|messaging: NATS"),
        ("Orders are stored in Postgres and sessions in Redis.", "orders: Postgres|sessions: Redis"),
        (
            "Orders are stored in Postgres, sessions in Redis and images in S3.",
            "orders: Postgres|sessions: Redis|images: S3",
        ),
        ("The frontend runs on Vercel and the backend on Fly.io.", "frontend: Vercel|backend: Fly.io"),
        (
            "We're switching the cache from Redis to Valkey and the queue from RabbitMQ to NATS.",
            "cache: Valkey|queue: NATS",
        ),
    ],
    "a shared subject": [
        ("My name is Dana, I live in Oslo and I work at Acme.", "name: Dana|city: Oslo|employer: Acme"),
        ("I live in Oslo and work at Acme.", "city: Oslo|employer: Acme"),
        ("I'm a nurse and I live in Porto.", "occupation: nurse|city: Porto"),
        ("I'm allergic to nuts and my favourite color is teal.", "allergy: nuts|favourite color: teal"),
        ("We use Postgres for storage and deploy to Hetzner.", "storage: Postgres|deployment: Hetzner"),
    ],
    "one statement, however many words": [
        ("We use PostgreSQL for users and orders.", "users and orders: PostgreSQL"),
        ("We use Redis for caching and for its speed.", "caching: Redis"),
        ("We use ruff and pyright for linting.", "linting: ruff and pyright"),
        ("The frontend and the backend are written in Go.", "frontend and the backend: Go"),
        ("We tried Redis, but the latency was too high.", "failure: Redis"),
        ("We drop Nagios and use Zabbix for monitoring.", "monitoring: Zabbix"),
    ],
}  # fmt: skip
ALL = [case for family in COMPOUND.values() for case in family]


@pytest.mark.parametrize(("text", "stated"), ALL, ids=[text[:50] for text, _ in ALL])
def test_every_part_of_a_sentence_is_a_fact_of_its_own(text: str, stated: str) -> None:
    assert [f"{one.attribute}: {one.value}" for one in read(text)] == stated.split("|")


@pytest.mark.parametrize("text", [text for text, _ in ALL], ids=[text[:50] for text, _ in ALL])
def test_no_part_mentions_what_another_one_states(text: str) -> None:
    found = read(text)
    for one in found:
        others = [other.value for other in found if other is not one and other.value != one.value]
        assert not [value for value in others if mentions(one.content, value)]


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (
            "The budget is 40,000 dollars and the deadline is March 15.",
            ["The budget is 40,000 dollars.", "The deadline is March 15."],
        ),
        (
            "So, we use PostgreSQL for users and Redis for caching.",
            ["We use PostgreSQL for users.", "We use Redis for caching."],
        ),
        (
            "Orders are stored in Postgres and sessions in Redis.",
            ["Orders are stored in Postgres.", "Sessions are stored in Redis."],
        ),
        ("I live in Oslo and work at Acme.", ["The user lives in Oslo.", "The user works at Acme."]),
        (
            "We tried Celery, but it failed, so we use RQ for jobs.",
            ["We tried Celery, but it failed.", "We use RQ for jobs."],
        ),
    ],
)
def test_a_part_can_be_read_alone(text: str, contents: list[str]) -> None:
    assert [one.content for one in read(text)] == contents


def test_a_date_belongs_to_the_part_that_says_it() -> None:
    found = statements("The price is 4 dollars until June 30 and the region is eu-west-1.", USER, said=SAID)
    assert [(one.value, one.valid_to is not None) for one in found] == [
        ("4 dollars", True),
        ("eu-west-1", False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "If the budget is 40,000 and the deadline is March 15, we are fine.",
        "If the deadline is March 15, the budget is 40,000 dollars and the team is small, we can start.",
        "When the budget is 40,000 dollars and the deadline is March 15 we start.",
        "We might use Redis for caching and NATS for messaging.",
        "Maybe we use PostgreSQL for users and Redis for caching.",
        "Suppose the budget is 40,000 dollars and the deadline is March 15.",
        "He said the budget is 40,000 dollars and the deadline is March 15.",
        "I heard that they use PostgreSQL for users and Redis for caching.",
        "Is the budget 40,000 dollars and the deadline March 15?",
        "Do we use PostgreSQL for users and Redis for caching?",
        "Unless the port is 8080 and the region is eu-west-1, it fails.",
        "They use Vue on the frontend and Django on the backend.",
        "My brother lives in Oslo and works at Acme.",
        "We could use MySQL for orders, and the cache could be Redis.",
        "Their budget is 40,000 dollars and their deadline is March 15.",
        "The deadline is March 15 if we sign.",
        "\"The budget is 40,000 dollars and the deadline is March 15 for everyone\" was in the ad.",
        "We talked about using PostgreSQL for users and Redis for caching.",
    ],
)  # fmt: skip
def test_a_guess_or_hearsay_reaches_over_all_parts(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    "piece", ["a and the b is ", "we use a for b and ", "x in Y, ", "and we , ", "A for b, "]
)
def test_long_sentences_are_divided_in_little_time(piece: str) -> None:
    text = (piece * 400)[:400]
    found = parts(text, marked=True)
    assert 0 < len(found) <= len(text)
