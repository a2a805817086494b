-- Schema 4. Records beside a log: small JSON objects by name, derived state that moves nothing of the head. A rowid table:
-- data may be long.

CREATE TABLE records (
    ref  INTEGER NOT NULL,
    name TEXT    NOT NULL,
    rev  INTEGER NOT NULL,                         -- counts the times it was put, from 1
    seq  INTEGER NOT NULL,                         -- the order in which those of a context were put
    data TEXT    NOT NULL,                         -- JSON as it was written, byte for byte
    PRIMARY KEY (ref, name)
);
