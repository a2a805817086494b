-- Schema 3. Key-value memory: JSON under a key, for pins and stored summaries. A rowid table: values may be long.

CREATE TABLE kv (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    data       TEXT    NOT NULL,                      -- JSON as it was written, byte for byte
    metadata   TEXT,                                  -- NULL when empty
    created_at INTEGER NOT NULL,                      -- microseconds since 1970
    updated_at INTEGER NOT NULL,
    revision   TEXT    NOT NULL,                      -- random, new with every write
    PRIMARY KEY (tenant, key)
);
