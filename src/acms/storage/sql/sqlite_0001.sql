-- Schema 1. One row per entry, one B-tree per log: `row` is the context's number << 32 | version, so a log is one
-- contiguous range of the table and every key leads with the context, which belongs to one tenant.
-- PostgreSQL spells the same keys out: PRIMARY KEY (tenant_id, context_id, version), hash-partitioned by tenant_id.

CREATE TABLE contexts (
    ref          INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant       TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    namespace    TEXT    NOT NULL,
    key          TEXT,
    root         INTEGER NOT NULL,                 -- ref of the first ancestor, its own when not forked
    parent       TEXT,
    fork         INTEGER,
    lineage      TEXT    NOT NULL DEFAULT '[]',    -- [[owner, upto], …] oldest first
    counter      TEXT    NOT NULL,
    settings     TEXT,
    settings_rev INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    deleted_at   INTEGER,
    -- the head
    version      INTEGER NOT NULL DEFAULT 0,
    messages     INTEGER NOT NULL DEFAULT 0,
    tokens       INTEGER NOT NULL DEFAULT 0,
    last_message TEXT,
    rewrites     INTEGER NOT NULL DEFAULT 0,
    derived      INTEGER NOT NULL DEFAULT 0,
    epoch        INTEGER NOT NULL DEFAULT 0,       -- counts on the root only
    chain        BLOB    NOT NULL,
    tail         TEXT,
    CHECK ((parent IS NULL) = (fork IS NULL))
);
CREATE UNIQUE INDEX contexts_id ON contexts (tenant, id);
CREATE UNIQUE INDEX contexts_key ON contexts (tenant, namespace, key) WHERE key IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX contexts_parent ON contexts (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX contexts_root ON contexts (root);

CREATE TABLE entries (
    row        INTEGER PRIMARY KEY,
    kind       TEXT    NOT NULL,
    position   INTEGER,
    nonce      TEXT    NOT NULL,                   -- the random end of the id; the rest of an id is its place
    batch      INTEGER NOT NULL,
    total      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,
    origin     TEXT    NOT NULL,
    privacy    TEXT,                               -- NULL: allow
    role       TEXT,
    actor      TEXT,
    markers    TEXT,                               -- JSON, NULL when empty; so are all the following
    detected   INTEGER NOT NULL,
    episode    INTEGER NOT NULL,
    closes     TEXT,
    grp        TEXT,
    covers     TEXT,
    replaces   TEXT,
    sources    TEXT,
    data       TEXT,
    metadata   TEXT,
    state      TEXT,                               -- NULL: live
    salt       BLOB,
    digest     BLOB    NOT NULL,
    chain      BLOB    NOT NULL,
    key        TEXT,                               -- unique by the table `keys`: rows without one pay nothing
    parts      TEXT,
    content    TEXT    NOT NULL
);
CREATE INDEX entries_other ON entries (row) WHERE kind <> 'message';
CREATE INDEX entries_replacing ON entries (row) WHERE replaces IS NOT NULL;

CREATE TABLE keys (
    ref     INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (ref, key)
) WITHOUT ROWID;

CREATE TABLE derived (
    ref     INTEGER NOT NULL,
    space   TEXT    NOT NULL,
    version INTEGER NOT NULL,
    part    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    start   INTEGER NOT NULL,
    "end"   INTEGER NOT NULL,
    data    BLOB    NOT NULL
);
CREATE UNIQUE INDEX derived_part ON derived (ref, space, version, part);
CREATE INDEX derived_seq ON derived (ref, space, seq);

CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT    NOT NULL,
    context    TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    dedupe     TEXT    NOT NULL,
    payload    TEXT,
    state      TEXT    NOT NULL DEFAULT 'ready',
    attempt    INTEGER NOT NULL DEFAULT 0,
    not_before INTEGER NOT NULL,
    lease      INTEGER,
    error      TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX jobs_dedupe ON jobs (tenant, dedupe) WHERE state IN ('ready', 'running');
CREATE INDEX jobs_due ON jobs (tenant, not_before) WHERE state IN ('ready', 'running');
CREATE INDEX jobs_context ON jobs (tenant, context);

CREATE TABLE audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT    NOT NULL,
    context    TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    versions   TEXT    NOT NULL,
    detail     TEXT,
    created_at INTEGER NOT NULL
);

CREATE TABLE migrations (
    version    INTEGER PRIMARY KEY,
    checksum   TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
);
