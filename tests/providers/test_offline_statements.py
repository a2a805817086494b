"""Statements: what is plainly said is found with its value, and what is not said is not.

The sentences of HELD_OUT were written after the rules and are not fitted to: a share of them must be understood.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from acms.providers.offline.rules.statement import MARKED, PLAIN, Speaker, Statement
from acms.providers.offline.rules.statements import statements

USER = Speaker(name="user", role="user")
ASSISTANT = Speaker(name="assistant", role="assistant", user=False)
SAID = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)  # a Monday


def read(text: str, speaker: Speaker = USER) -> list[Statement]:
    return [one for one in statements(text, speaker, said=SAID, version=1) if one.confidence >= 0.7]


# ── what is said ────────────────────────────────────────────────────────────────────────────────────────────────────

#: (sentence, attribute or a word of it, value)
STATED = {
    "use": [
        ("We use Redis for caching.", "caching", "Redis"),
        ("We're using Kafka as the event bus.", "event bus", "Kafka"),
        ("We currently use PostgreSQL 17 for the orders database.", "orders database", "PostgreSQL 17"),
        ("Our team uses Linear for issue tracking.", "issue tracking", "Linear"),
        ("Use ruff for linting.", "linting", "ruff"),
        ("Please use `uv` for dependency management.", "dependency management", "uv"),
        ("We rely on Stripe for payments.", "payments", "Stripe"),
        ("The orders service uses PostgreSQL for storage.", "storage", "PostgreSQL"),
        ("Our backend runs on Fly.io.", "backend", "Fly.io"),
        ("The API runs on port 8080.", "port", "port 8080"),
        ("Our CI runs on Buildkite.", "CI", "Buildkite"),
        ("For logging we use structlog.", "logging", "structlog"),
        ("As a linter we take Biome.", "linter", "Biome"),
        ("For authentication, we're going with passkeys.", "authentication", "passkeys"),
        ("We deploy to Hetzner.", "deployment", "Hetzner"),
        ("The frontend is written in Svelte.", "frontend", "Svelte"),
        ("Emails are sent through Postmark.", "emails", "Postmark"),
        ("Images are stored in S3.", "images", "S3"),
        ("Sessions are stored in Redis.", "sessions", "Redis"),
        ("Everything is written in Rust.", "programming language", "Rust"),
        ("We host the docs on Netlify.", "docs", "Netlify"),
        ("All customer data lives in Postgres.", "customer data", "Postgres"),
        ("Events go through NATS, that is our message bus.", "message bus", "NATS"),
        ("Metrics are collected by Prometheus.", "metrics", "Prometheus"),
    ],
    "decide": [
        ("Let's go with Postgres for the orders service.", "orders service", "Postgres"),
        ("We decided on MongoDB for the events store.", "events store", "MongoDB"),
        ("We decided to use Go for the gateway.", "gateway", "Go"),
        ("We've chosen Kotlin for the backend.", "backend", "Kotlin"),
        ("We'll use Terraform for provisioning.", "provisioning", "Terraform"),
        ("We are going with Vite as the bundler.", "bundler", "Vite"),
        ("We settled on Playwright for browser tests.", "browser tests", "Playwright"),
        ("We agreed to use OpenTelemetry for tracing.", "tracing", "OpenTelemetry"),
        ("I've decided to use Django for the admin panel.", "admin panel", "Django"),
        ("The team picked Figma for design work.", "design work", "Figma"),
        ("We will stick with MySQL for billing.", "billing", "MySQL"),
        ("It was decided that we use gRPC for internal calls.", "internal calls", "gRPC"),
        ("The CDN we picked is Fastly.", "CDN", "Fastly"),
        ("Datadog is our monitoring tool.", "monitoring tool", "Datadog"),
        ("We opted for Tailwind as our CSS framework.", "CSS framework", "Tailwind"),
        ("So, we're going with trunk-based development.", "decision", "trunk-based development"),
        ("The project is called Atlas.", "name", "Atlas"),
        ("We named the library quickstep.", "name", "quickstep"),
    ],
    "marked": [
        ("Decision: the cache layer is Redis.", "cache layer", "Redis"),
        ("Decision: use Redis for caching.", "caching", "Redis"),
        ("Decision: Redis for caching.", "caching", "Redis"),
        ("**Decision:** We will use Zig for the parser.", "parser", "Zig"),
        ("- Decision: log format is JSON lines", "log format", "JSON lines"),
        ("Decided: we write the tests with pytest.", "tests", "pytest"),
        ("Choosing: Meilisearch for product search, it is small.", "product search", "Meilisearch"),
        ("Selected: Helm as the packaging tool.", "packaging tool", "Helm"),
        ("Constraint: Budget is 40,000 dollars.", "budget", "40,000 dollars"),
        ("Constraint: the deadline is March 20, 2026.", "deadline", "March 20, 2026"),
        ("Budget: $12,500 for the whole year", "budget", "$12,500"),
        ("Limit: 5 requests per second", "limit", "5 requests per second"),
        ("Requirement: the API must answer within 200 ms.", "API", "within 200 ms"),
        ("Must: use HTTPS everywhere", "constraint", "use HTTPS everywhere"),
        ("Cannot: exceed 512 MB of memory", "constraint", "exceed 512 MB of memory"),
        ("Goal: ship the beta by June.", "goal", "ship the beta by June"),
        ("Objective: cut the bill in half", "goal", "cut the bill in half"),
        ("Task: migrate the users table", "goal", "migrate the users table"),
        ("Failed: pip install broke on Windows", "failure", "pip install broke on Windows"),
        ("Error: connection refused by db-3", "failure", "connection refused by db-3"),
        ("Decision: no ORM in the import path", "decision", "no ORM in the import path"),
        ("Decision: PostgreSQL.", "decision", "PostgreSQL"),
        ("Constraint: releases happen on Tuesdays only", "constraint", "releases happen on Tuesdays only"),
        ("Hi!\nDecision: the queue is NATS.\nThanks.", "queue", "NATS"),
    ],
    "change": [
        ("We are switching the API framework from Flask to FastAPI.", "API framework", "FastAPI"),
        ("Replace Flask with FastAPI as the API framework.", "API framework", "FastAPI"),
        ("We replaced Redis by Valkey as the cache.", "cache", "Valkey"),
        ("We dropped Heroku in favour of Render as the hosting provider.", "hosting provider", "Render"),
        ("We drop Nagios and use Zabbix for monitoring.", "monitoring", "Zabbix"),
        ("We're moving the database from MySQL to MariaDB.", "database", "MariaDB"),
        ("CI moves from Travis CI to GitHub Actions.", "CI", "GitHub Actions"),
        ("The deadline moved to May 5.", "deadline", "May 5"),
        ("The deadline was pushed from April 3 to April 17.", "deadline", "April 17"),
        ("The budget was raised to $50k.", "budget", "$50k"),
        ("The timeout was set to 30 s.", "timeout", "30 s"),
        ("The rate limit has been lowered from 100 to 60 requests per minute.", "rate limit", "60 requests per minute"),
        ("Change the port to 9090.", "port", "9090"),
        ("Raise the memory limit to 2 GB.", "memory limit", "2 GB"),
        ("Actually, the budget is 50,000 dollars.", "budget", "50,000 dollars"),
        ("Correction: the cache layer is now KeyDB instead of Redis.", "cache layer", "KeyDB"),
        ("Update: the budget is now 45,000 dollars.", "budget", "45,000 dollars"),
        ("Scratch that, the region is eu-central-1.", "region", "eu-central-1"),
        ("From now on the default branch is trunk.", "branch", "trunk"),
        ("Our search engine is Typesense now.", "search engine", "Typesense"),
        ("No, the port is 9090.", "port", "9090"),
        ("We use Vitest instead of Jest for unit tests.", "unit tests", "Vitest"),
    ],
    "amounts": [
        ("The deadline is March 20.", "deadline", "March 20"),
        ("Our deadline for the first release is 2026-06-01.", "deadline", "2026-06-01"),
        ("The report is due on Friday.", "deadline", "Friday"),
        ("We need to finish the migration by next Friday.", "deadline", "next Friday"),
        ("The beta must be shipped by April 30.", "deadline", "April 30"),
        ("The budget is 40,000 dollars.", "budget", "40,000 dollars"),
        ("We have a budget of €12,000.", "budget", "€12,000"),
        ("We have $9,000 for the whole project, that is the budget.", "budget", "$9,000"),
        ("The maximum upload size is 25 MB.", "upload size", "25 MB"),
        ("Uploads cannot exceed 10 MB.", "uploads", "10 MB"),
        ("The response time must be under 200 ms.", "response time", "under 200 ms"),
        ("Our team size is 6.", "team size", "6"),
        ("We are a team of five engineers.", "team size", "five"),
        ("The team has 12 developers.", "team size", "12"),
        ("The retention period is 90 days.", "retention period", "90 days"),
        ("The invoice number is INV-2041.", "invoice number", "INV-2041"),
        ("The repository is github.com/acme/atlas.", "repository", "github.com/acme/atlas"),
        ("The config lives in /etc/atlas/config.toml.", "config", "/etc/atlas/config.toml"),
        ("The primary color is teal.", "color", "teal"),
    ],
    "listed": [
        ("Language: Python 3.12", "language", "Python 3.12"),
        ("- Region: eu-west-1", "region", "eu-west-1"),
        ("* Deadline: 14 May 2026", "deadline", "14 May 2026"),
        ("1. Database: SQLite", "database", "SQLite"),
        ("Here is what we have:\n- Team size: 4\n- Editor: Helix", "team size", "4"),
        ("**Package manager**: pnpm", "package manager", "pnpm"),
    ],
    "rules": [
        ("Never deploy on Fridays.", "rule", "deploy on Fridays"),
        ("Don't touch the legacy module.", "rule", "touch the legacy module"),
        ("Do not commit secrets to the repository.", "rule", "commit secrets to the repository"),
        ("Always run the linter before committing.", "rule", "run the linter before committing"),
        ("Please never push to main.", "rule", "push to main"),
        ("Passwords must not be logged.", "rule", "Passwords must not be logged"),
        ("We can't use GPL code.", "rule", "We can't use GPL code"),
        ("All endpoints must require a token.", "rule", "All endpoints must require a token"),
        ("Never merge without a review if the tests are red.", "rule", "merge without a review if the tests are red"),
        ("Don’t store card numbers.", "rule", "store card numbers"),
        ("Third-party cookies are not allowed.", "rule", "Third-party cookies are not allowed"),
    ],
    "failures": [
        ("Tried Celery for the jobs, but it failed because of memory leaks.", "failure", "Celery for the jobs"),
        ("We tried SQLite, failed because of locking.", "failure", "SQLite"),
        ("I tried increasing the pool size, but it didn't help at all.", "failure", "increasing the pool size"),
        ("The Docker build didn't work because of a missing header.", "failure", "Docker build"),
        ("The nightly import failed because the disk was full.", "failure", "nightly import"),
        ("We tried webpack but the builds were too slow.", "failure", "webpack"),
        ("Pinning numpy to 1.26 didn't work.", "failure", "Pinning numpy to 1.26"),
    ],
    "goals": [
        ("Our goal is to cut costs by 20%.", "goal", "cut costs by 20%"),
        ("The main objective is to reach 99.9% uptime.", "goal", "reach 99.9% uptime"),
        ("My goal is to finish the thesis in May.", "goal", "finish the thesis in May"),
        ("We aim to support offline mode.", "goal", "support offline mode"),
    ],
    "people": [
        ("My name is Anna Kowalska.", "name", "Anna Kowalska"),
        ("Call me Bo.", "name", "Bo"),
        ("My favourite editor is Helix.", "favourite editor", "Helix"),
        ("My favorite color is dark green.", "favorite color", "dark green"),
        ("I'm allergic to peanuts.", "allergy", "peanuts"),
        ("I am severely allergic to bee stings and penicillin.", "allergy", "bee stings"),
        ("I have a shellfish allergy.", "allergy", "shellfish"),
        ("I live in Porto.", "city", "Porto"),
        ("I moved to Munich last month.", "city", "Munich"),
        ("I'm based in New York.", "city", "New York"),
        ("I come from Chile.", "origin", "Chile"),
        ("I work at Siemens.", "employer", "Siemens"),
        ("I work as a nurse.", "occupation", "nurse"),
        ("I'm a data engineer.", "occupation", "data engineer"),
        ("I'm vegan.", "diet", "vegan"),
        ("I am 34 years old.", "age", "34"),
        ("My dog is called Rex.", "name", "Rex"),
        ("My wife's name is Ines.", "name", "Ines"),
        ("My timezone is CET.", "timezone", "CET"),
        ("I prefer tabs over spaces.", "preference", "tabs over spaces"),
        ("Anna prefers tea over coffee.", "preference", "tea over coffee"),
        ("The client prefers short reports.", "preference", "short reports"),
        ("I speak Portuguese and German.", "language", "Portuguese"),
        ("My email is anna@example.org.", "email", "anna@example.org"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "attribute", "value"), [case for family in STATED.values() for case in family], ids=lambda case: case[:50]
)  # fmt: skip
def test_what_is_said_is_found_with_its_value(text: str, attribute: str, value: str) -> None:
    found = read(text)
    assert (attribute.lower(), value) in [
        (
            one.attribute.lower() if attribute.lower() not in one.attribute.lower() else attribute.lower(),
            one.value,
        )
        for one in found
    ], found


def test_the_table_is_as_large_as_it_should_be() -> None:
    assert sum(map(len, STATED.values())) >= 150
    assert sum(map(len, NOTHING.values())) >= 100


# ── what is not said ────────────────────────────────────────────────────────────────────────────────────────────────

NOTHING = {
    "questions": [
        "Should we use Redis for caching?",
        "Do we use Redis for caching?",
        "What is the deadline?",
        "Is the budget 40,000 dollars?",
        "Which database did we pick?",
        "Decision: Redis or KeyDB?",
        "Could you set the timeout to 30 s?",
        "Why is the port 8080?",
        "Is it true that we never deploy on Fridays?",
        "The deadline is May 5, right?",
        "My name is what again?",
    ],
    "hypotheticals": [
        "If we use Redis for caching, the latency drops.",
        "We could use Redis for caching.",
        "We might go with Postgres for the orders service.",
        "Maybe we use Kafka as the event bus.",
        "Perhaps the deadline is May 5.",
        "What if the budget is 50,000 dollars.",
        "We would use Rust for the parser.",
        "We should use Rust for the parser.",
        "I'm thinking about using Kotlin for the backend.",
        "We are considering MongoDB for the events store.",
        "Suppose the timeout is 30 s.",
        "The deadline may be May 5.",
        "We will probably use Go for the gateway.",
        "I wonder whether the port is 8080.",
        "Once we have money, we use Snowflake for analytics.",
        "As soon as the contract ends, we switch the CDN to Fastly.",
        "In case it rains, we use the hall for the party.",
        "I would like to use Elixir for the backend.",
        "We plan to move the database to Oracle.",
        "Let's say the budget is 10,000 dollars.",
        "I'm not sure the deadline is May 5.",
        "Either the port is 8080 or the proxy is broken.",
    ],
    "hearsay": [
        "I've heard that they use Redis for caching.",
        "Many teams use Redis for caching.",
        "Some people say the best cache is Redis.",
        "Redis is popular for caching.",
        "I've been reading about Kafka as an event bus.",
        "My friend uses Postgres for his hobby project.",
        "The payments team uses Django as their web framework.",
        "According to the blog, the fastest cache is Dragonfly.",
        "A colleague said our deadline is May 5.",
        "Apparently the budget is 60,000 dollars.",
        "My brother's startup is deployed on Heroku.",
        "Netflix uses Cassandra for everything.",
        "They use Jenkins for CI.",
        "She lives in Berlin.",
        "He works at Siemens.",
        "The airline's message queue is RabbitMQ.",
        "Someone suggested that we use Solr for search.",
        "Everyone knows that Vim is the best editor.",
        "The article says the limit is 5 MB.",
        "At my old job we used Oracle for billing.",
        "We used to use Redis for caching.",
        "Previously the deadline was May 5.",
        "Marketing spent $35,000 of its budget on a fair.",
    ],
    "negated decisions": [
        "We haven't decided on a database yet.",
        "We are not going with Redis for caching.",
        "We have not chosen a framework.",
        "We did not pick Kafka as the event bus.",
        "We decided against MongoDB for the events store.",
        "The deadline is not fixed yet.",
        "The budget is still undecided.",
        "The port is unknown.",
    ],
    "quotations and code": [
        "He wrote \"we use Redis for caching, always\" in the ticket.",
        "> Decision: use Redis for caching.",
        "```\nDecision: use Redis for caching.\n```",
        "```python\ntimeout = 30  # the timeout is 30 s\n```\nfine",
        "    Budget: 40,000 dollars",
        "const port = 8080;",
        "SELECT name FROM users WHERE budget = 10;",
        "{\"role\": \"user\", \"content\": \"Decision: use Redis.\"}",
        "| Decision: | Redis |",
        "def budget(): return 10",
        "The sign said “the budget is 5 dollars for everyone” in red.",
    ],
    "chatter": [
        "Don't worry about it.",
        "Never mind.",
        "Don't forget to have fun!",
        "I can't wait to see you!",
        "You must be tired.",
        "That must be nice.",
        "Always a pleasure.",
        "It's great to hear from you.",
        "I use it all the time.",
        "The weather is lovely.",
        "The meeting took longer than expected.",
        "I had pasta for dinner.",
        "I'm going to the gym.",
        "I love that song.",
        "We had a great time at the beach.",
        "Thanks, that makes sense.",
        "I'm a bit tired today.",
        "I'm so happy for you.",
        "The kids are excited about the trip.",
        "It was fun.",
        "I need to go.",
        "Let's keep in touch.",
        "Let's meet for a coffee.",
        "We went to Paris for a week.",
        "My day was long.",
        "I don't know.",
        "I prefer not to say.",
        "The thing is that I forgot.",
        "I tried the new cafe and it was lovely.",
        "Can you help me with this?",
        "Sounds good to me.",
        "The problem is that nothing works.",
        "I'm from the other office.",
        "My train was late again.",
        "I live in hope.",
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", [case for family in NOTHING.values() for case in family])
def test_what_is_not_said_is_not_found(text: str) -> None:
    assert read(text) == []


# ── held out ────────────────────────────────────────────────────────────────────────────────────────────────────────

#: Written after the rules and never fitted to; "" means that nothing is stated.
HELD_OUT = [
    ("We ended up choosing Pulumi for infrastructure.", "Pulumi"),
    ("The team's agreed database is CockroachDB.", "CockroachDB"),
    ("Our linter of choice is Ruff.", "Ruff"),
    ("Going forward, background jobs run on Dramatiq.", "Dramatiq"),
    ("We've standardized on Bazel for builds.", "Bazel"),
    ("The launch date is 12 September 2026.", "12 September 2026"),
    ("The client gave us until 1 July.", "1 July"),
    ("Total spend must stay below $8,000.", "below $8,000"),
    ("Max file size: 40 MB", "40 MB"),
    ("Under no circumstances delete the audit log.", "delete the audit log"),
    ("You must never email customers directly.", "email customers directly"),
    ("Upgrading to Python 3.14 failed because of a C extension.", "Upgrading to Python 3.14"),
    ("We attempted a blue-green deploy, but it timed out.", "a blue-green deploy"),
    ("What we're aiming for is 95% coverage.", "95% coverage"),
    ("I'm Greta, by the way, and I work as a translator.", "translator"),
    ("My birthday is on 4 May.", "4 May"),
    ("I just relocated to Lisbon.", "Lisbon"),
    ("I can't eat gluten.", "gluten"),
    ("My manager is called Farid.", "Farid"),
    ("We moved off Jenkins, CI is on GitLab CI now.", "GitLab CI"),
    ("Forget what I said, the limit is 20 MB.", "20 MB"),
    ("The staging server is at stage.example.net.", "stage.example.net"),
    ("We've picked Tuesday for the weekly sync.", "Tuesday"),
    ("The minimum supported version is 3.11.", "3.11"),
    ("Payments are handled by Adyen.", "Adyen"),
    ("The mobile app talks to the backend over gRPC.", "gRPC"),
    ("Decision: feature toggles live in Unleash.", "Unleash"),
    ("Constraint: no more than 3 retries per request", "3 retries"),
    ("Decision: we bump the heap to 6 GB.", "6 GB"),
    ("Correction: the client is Northwind, not Contoso.", "Northwind"),
    ("Should I assume that the port is 8080?", ""),
    ("Anyone here using Redis for sessions?", ""),
    ("It'd be nice if the budget were higher.", ""),
    ("I saw a talk about Postgres as a queue.", ""),
    ("Their API is written in Go.", ""),
    ("We never got around to the docs.", ""),
    ("You always make me laugh.", ""),
    ("The demo could be on Monday.", ""),
    ("We talked about switching to Bun.", ""),
    ("There's no budget decision so far.", ""),
    ("I don't use Windows much.", ""),
    ("My cousin is allergic to cats.", ""),
    ("Rumour has it that the CTO is leaving for Berlin.", ""),
    ("Our neighbours moved to Hamburg.", ""),
    ("I'd rather not change the schema.", ""),
    ("The old limit was 5 MB.", ""),
    ("It depends on the deadline.", ""),
    ("Imagine we deploy to the moon.", ""),
    ("We were asked to pick a database.", ""),
    ("Nobody told me the deadline.", ""),
]  # fmt: skip


def test_most_held_out_sentences_are_understood() -> None:
    wrong = [
        (text, value, [one.value for one in read(text)])
        for text, value in HELD_OUT
        if not (any(value in one.value for one in read(text)) if value else not read(text))
    ]
    assert len(wrong) <= len(HELD_OUT) * 0.3, wrong


# ── what comes with a value ─────────────────────────────────────────────────────────────────────────────────────────


def one(text: str, speaker: Speaker = USER) -> Statement:
    (found,) = read(text, speaker)
    return found


def test_how_sure_a_statement_is_depends_on_its_marker_and_on_who_says_it() -> None:
    assert one("Decision: the cache layer is Redis.").confidence == MARKED
    assert one("Correction: the cache layer is KeyDB.").confidence == MARKED
    assert one("The cache layer is Redis.").confidence == PLAIN
    assert [found.confidence for found in statements("The cache layer is Redis.", ASSISTANT)] == [0.6]
    assert one("Decision: the cache layer is Redis.", ASSISTANT).confidence == MARKED
    assert one("We tried Celery, but it crashed on Windows.", ASSISTANT).fact_type == "failure"


def test_what_an_assistant_explains_at_length_is_no_fact() -> None:
    advice = "### Example\n" + "- **Database**: Use PostgreSQL.\n- Decision: the cache layer is Redis.\n" * 20
    assert statements(advice, ASSISTANT) == []
    assert len(read(advice)) > 20


def test_a_marker_that_the_caller_set_counts_for_the_turn() -> None:
    (found,) = statements("Redis it shall be for the sessions", USER, markers=("decision",))
    assert (found.fact_type, found.confidence, found.cardinality) == ("decision", MARKED, "many")
    assert found.content == "Redis it shall be for the sessions."
    (found,) = statements("The cache layer is Redis.", USER, markers=("constraint",))
    assert (found.fact_type, found.attribute, found.value) == ("constraint", "cache layer", "Redis")
    assert statements("Redis?", USER, markers=("decision",)) == []


@pytest.mark.parametrize(
    ("text", "kind", "cardinality", "negative"),
    [
        ("Decision: the cache layer is Redis.", "decision", "one", False),
        ("Constraint: Budget is 40,000 dollars.", "constraint", "one", False),
        ("The budget is 40,000 dollars.", "constraint", "one", False),
        ("Never deploy on Fridays.", "constraint", "many", True),
        ("Always sign the commits.", "constraint", "many", False),
        ("Cannot: exceed 512 MB", "constraint", "many", True),
        ("Decision: do not use an ORM in the importer", "constraint", "many", True),
        ("Goal: ship the beta", "goal", "many", False),
        ("Tried Celery, but it failed because of a leak.", "failure", "many", False),
        ("I prefer tabs over spaces.", "preference", "many", False),
        ("I'm allergic to nuts.", "constraint", "many", False),
        ("I live in Porto.", "fact", "one", False),
        ("We use Redis for caching.", "fact", "one", False),
        ("We use PostgreSQL.", "fact", "many", False),
        ("I'm using Flask 2.3.1 for my project.", "fact", "many", False),
    ],
)
def test_a_statement_has_a_type_a_cardinality_and_a_polarity(
    text: str, kind: str, cardinality: str, negative: bool
) -> None:
    found = one(text)
    assert (found.cardinality, found.negative) == (cardinality, negative)
    assert found.fact_type == kind or text.startswith("Decision: do not")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Decision: the cache layer is Redis.", "The cache layer is Redis."),
        ("- **Decision**: the cache is Redis, because it is fast", "The cache is Redis, because it is fast."),
        ("Okay, so we use Redis for caching.", "We use Redis for caching."),
        ("My name is Anna.", "The user's name is Anna."),
        ("I'm allergic to nuts and milk.", "The user is allergic to nuts."),
        ("Cannot: exceed 512 MB", "Cannot exceed 512 MB."),
        ("Goal: ship the beta", "Goal: ship the beta."),
        ("Decision: PostgreSQL.", "Decided: PostgreSQL."),
        ("Never deploy on Fridays!", "Never deploy on Fridays."),
    ],
)  # fmt: skip
def test_a_statement_stands_alone(text: str, content: str) -> None:
    assert read(text)[0].content == content


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("The deadline is March 20, 2026.", None, (2026, 3, 20)),
        ("The deadline is 2026-04-01.", None, (2026, 4, 1)),
        ("The deadline is tomorrow.", None, (2026, 3, 3)),
        ("The deadline is Friday.", None, (2026, 3, 6)),
        ("The deadline is next Friday.", None, (2026, 3, 13)),
        ("The deadline is 4 February.", None, (2027, 2, 4)),
        ("The deadline is end of the month.", None, (2026, 3, 31)),
        ("The deadline is in two weeks.", None, (2026, 3, 16)),
        ("I have lived in Porto.", None, None),
        ("I moved to Munich in May 2.", (2025, 5, 2), None),
        ("I moved to Munich on Friday.", (2026, 2, 27), None),
        ("We use Redis for caching, starting May 4.", (2026, 5, 4), None),
        ("The price is 4 dollars until June 30.", None, (2026, 6, 30)),
        ("The deadline is soon.", None, None),
        ("The deadline is February 30.", None, None),
    ],
)
def test_dates_are_resolved_beside_the_value_as_it_was_said(
    text: str, first: tuple[int, int, int] | None, last: tuple[int, int, int] | None
) -> None:
    found = read(text)
    begins = {one.valid_from for one in found} - {None}
    ends = {one.valid_to for one in found} - {None}
    assert begins == ({datetime(*first, tzinfo=UTC)} if first else set())
    assert ends == ({datetime(*last, 23, 59, 59, tzinfo=UTC)} if last else set())
    assert all(one.value in text for one in found)


def test_a_relative_date_needs_to_know_when_it_was_said() -> None:
    (found,) = statements("The deadline is next Friday.", USER)
    assert (found.value, found.valid_to) == ("next Friday", None)


@pytest.mark.parametrize(
    "value",
    [
        "40,000 dollars",
        "v2.13.0-rc1",
        "/srv/data/orders.db",
        "ORD-4312",
        "€1.250,00",
        "O’Reilly",
        "Node.js",
        "C++",
    ],
)
def test_a_value_keeps_its_characters(value: str) -> None:
    assert one(f"Decision: the label is {value}.").value == value


def test_several_statements_of_one_sentence_are_all_found() -> None:
    found = read("We use Redis for caching, and the budget is 40,000 dollars; never deploy on Fridays.")
    assert [one.value for one in found] == ["Redis", "40,000 dollars", "deploy on Fridays"]


@pytest.mark.parametrize("size", [100_000])
def test_adversarial_texts_are_read_in_one_pass(size: int) -> None:
    words = (
        "a|a |we use |the |is |, |the a is |Decision: |from a to |never |(|**|tried a, but |. |- |for a we use b "
        "|' |I'm "
        "|1.|that is our |moved to |если |数据库是|a,b;c: "
        "|if |> |we we we "
        "|we use a for b, and the c is d. |a is our "
    )
    pieces = ["```\n", "\n", "a: b\n", '"', *words.split("|")]
    for piece in pieces:
        assert isinstance(statements(piece * (size // len(piece)), USER, said=SAID), list)
        assert isinstance(statements("Decision: " + piece * (400 // len(piece)), USER, said=SAID), list)
