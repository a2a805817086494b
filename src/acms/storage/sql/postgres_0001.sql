-- Schema 1. The tables of sql/sqlite_0001.sql; every key leads with the tenant, then the context, so that a tenant's data
-- is found, partitioned and sharded by its owner (Citus: distribute by tenant_id). JSON is kept as text, byte for byte.
-- :partitions is how many hash partitions the log and its derived rows get.
-- needs: 1

CREATE TABLE acms.contexts (
    tenant_id    text   COLLATE "C" NOT NULL,
    context_id   text   COLLATE "C" NOT NULL,
    number       bigint GENERATED ALWAYS AS IDENTITY,   -- the order in which they were made, for lists
    namespace    text   COLLATE "C" NOT NULL,
    key          text   COLLATE "C",
    root         text   COLLATE "C" NOT NULL,           -- the first ancestor, itself when not forked
    parent       text   COLLATE "C",
    fork         bigint,
    lineage      text   NOT NULL DEFAULT '[]',          -- [[owner, upto], …] oldest first
    counter      text   NOT NULL,
    settings     text,
    settings_rev bigint NOT NULL DEFAULT 0,
    created_at   bigint NOT NULL,
    deleted_at   bigint,
    -- the head
    version      bigint NOT NULL DEFAULT 0,
    messages     bigint NOT NULL DEFAULT 0,
    tokens       bigint NOT NULL DEFAULT 0,
    last_version bigint,                                -- of the newest message; its id is made from these
    last_nonce   text   COLLATE "C",
    rewrites     bigint NOT NULL DEFAULT 0,
    derived      bigint NOT NULL DEFAULT 0,             -- counts on the root only
    epoch        bigint NOT NULL DEFAULT 0,             -- counts on the root only
    chain        bytea  NOT NULL,
    before       bytea  NOT NULL,                       -- the chain before the newest append
    tail         text,
    xact         bigint NOT NULL DEFAULT 0,             -- of its newest entry
    PRIMARY KEY (tenant_id, context_id),
    CHECK ((parent IS NULL) = (fork IS NULL))
) WITH (fillfactor = 75);                               -- room for the next head on the same page
CREATE UNIQUE INDEX contexts_key ON acms.contexts (tenant_id, namespace, key) WHERE key IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX contexts_number ON acms.contexts (tenant_id, number);
CREATE INDEX contexts_parent ON acms.contexts (tenant_id, parent) WHERE parent IS NOT NULL;
CREATE INDEX contexts_root ON acms.contexts (tenant_id, root) WHERE parent IS NOT NULL;

CREATE TABLE acms.entries (
    tenant_id  text    COLLATE "C" NOT NULL,
    context_id text    COLLATE "C" NOT NULL,
    version    bigint  NOT NULL,
    kind       text    COLLATE "C" NOT NULL,
    position   bigint,
    nonce      text    COLLATE "C" NOT NULL,
    batch      bigint  NOT NULL,
    total      bigint  NOT NULL,
    created_at bigint  NOT NULL,
    tokens     bigint  NOT NULL,
    origin     text    NOT NULL,
    privacy    text,
    role       text,
    actor      text,
    markers    text,
    detected   boolean NOT NULL,
    episode    bigint  NOT NULL,
    closes     text,
    grp        text,
    covers     text,
    replaces   text,
    sources    text,
    data       text,
    metadata   text,
    state      text    COLLATE "C",
    salt       bytea,
    digest     bytea   NOT NULL,
    chain      bytea   NOT NULL,
    key        text    COLLATE "C",
    parts      text,
    found_in   text    COLLATE "C",                     -- namespace in which it is searched; NULL for what is not
    content    text    NOT NULL,
    -- The transaction that wrote it, or a later one that wrote before it to the same log: by this the feed knows what is
    -- still to come. Indexed by blocks, so that a message pays next to nothing for it.
    xact       bigint  NOT NULL,
    PRIMARY KEY (tenant_id, context_id, version)
) PARTITION BY HASH (context_id);
CREATE INDEX entries_xact ON acms.entries USING brin (xact) WITH (pages_per_range = 16, autosummarize = on);
CREATE UNIQUE INDEX entries_key ON acms.entries (tenant_id, context_id, key) WHERE key IS NOT NULL;
CREATE INDEX entries_other ON acms.entries (tenant_id, context_id, version) WHERE kind <> 'message';
CREATE INDEX entries_replacing ON acms.entries (tenant_id, context_id, version) WHERE replaces IS NOT NULL;
-- What is searched across contexts, about one entry in six: live facts, summaries and marked messages.
CREATE INDEX entries_searchable ON acms.entries (tenant_id, found_in, context_id, version) WHERE found_in IS NOT NULL;

-- Words as they are counted: stemmed, none left out.
CREATE TEXT SEARCH DICTIONARY acms.stem (TEMPLATE = snowball, Language = english);
CREATE TEXT SEARCH CONFIGURATION acms.words (COPY = pg_catalog.simple);
ALTER TEXT SEARCH CONFIGURATION acms.words
    ALTER MAPPING FOR asciiword, word WITH acms.stem;

-- The words of a text, as numbers: an index keeps its keys when the rows they came from are erased, and must not keep
-- words. Punctuation goes first, for the parser would read paths, addresses and tags as one word or none. No tsvector may
-- pass a megabyte, and none of 200,000 characters does.
CREATE FUNCTION acms.word_keys(content text) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN ARRAY(
        SELECT pg_catalog.hashtext(word COLLATE "C")
        FROM pg_catalog.unnest(pg_catalog.tsvector_to_array(pg_catalog.to_tsvector('acms.words',
            pg_catalog.regexp_replace(pg_catalog.left(content, 200000), '[!-/:-@[-`{-~]+', ' ', 'g')))) AS word
    );
END $$;

-- With the namespace as one more key, so that the rows of others are never looked at.
CREATE FUNCTION acms.keys(tenant text, namespace text, content text) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN
    RETURN acms.word_keys(content) OPERATOR(pg_catalog.||) pg_catalog.hashtext(
        pg_catalog.concat(pg_catalog.length(tenant), ' ', tenant, namespace) COLLATE "C");
END $$;
CREATE INDEX entries_words ON acms.entries USING gin (acms.keys(tenant_id, found_in, content))
    WITH (fastupdate = off) WHERE found_in IS NOT NULL;

CREATE TABLE acms.derived (
    tenant_id  text   COLLATE "C" NOT NULL,
    context_id text   COLLATE "C" NOT NULL,
    space      text   COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    part       bigint NOT NULL,
    seq        bigint NOT NULL,
    start      bigint NOT NULL,
    "end"      bigint NOT NULL,
    data       bytea  NOT NULL,
    PRIMARY KEY (tenant_id, context_id, space, version, part)
) PARTITION BY HASH (context_id);
CREATE INDEX derived_seq ON acms.derived (tenant_id, context_id, space, seq);

DO $$
BEGIN
    FOR n IN 0 .. :partitions - 1 LOOP
        EXECUTE format('CREATE TABLE acms.entries_%s PARTITION OF acms.entries FOR VALUES WITH (MODULUS :partitions, REMAINDER %s)', n, n);
        EXECUTE format('CREATE TABLE acms.derived_%s PARTITION OF acms.derived FOR VALUES WITH (MODULUS :partitions, REMAINDER %s)', n, n);
    END LOOP;
END $$;

CREATE TABLE acms.jobs (
    tenant_id  text   COLLATE "C" NOT NULL,
    id         bigint GENERATED ALWAYS AS IDENTITY,
    context_id text   COLLATE "C" NOT NULL,
    kind       text   COLLATE "C" NOT NULL,
    dedupe     text   COLLATE "C" NOT NULL,
    payload    text,
    state      text   COLLATE "C" NOT NULL DEFAULT 'ready',
    attempt    bigint NOT NULL DEFAULT 0,
    not_before bigint NOT NULL,
    lease      bigint,
    error      text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, id)
) WITH (fillfactor = 75);
CREATE UNIQUE INDEX jobs_dedupe ON acms.jobs (tenant_id, dedupe) WHERE state IN ('ready', 'running');
CREATE INDEX jobs_due ON acms.jobs (tenant_id, not_before) WHERE state IN ('ready', 'running');
CREATE INDEX jobs_context ON acms.jobs (tenant_id, context_id);

CREATE TABLE acms.audit (
    tenant_id  text   COLLATE "C" NOT NULL,
    context_id text   COLLATE "C" NOT NULL,
    id         bigint GENERATED ALWAYS AS IDENTITY,
    action     text   NOT NULL,
    versions   text   NOT NULL,
    detail     text,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, context_id, id)
);

-- Key-value memory: JSON under a key, for pins and stored summaries.
CREATE TABLE acms.kv (
    tenant_id  text   COLLATE "C" NOT NULL,
    key        text   COLLATE "C" NOT NULL,
    data       text   NOT NULL,                         -- JSON as it was written, byte for byte
    metadata   text,                                    -- NULL when empty
    created_at bigint NOT NULL,                         -- microseconds since 1970
    updated_at bigint NOT NULL,
    revision   text   COLLATE "C" NOT NULL,             -- random, new with every write
    PRIMARY KEY (tenant_id, key)
);

-- The net under the tenant predicates of every query: a role that owns nothing sees the rows of one tenant, named by a
-- setting of the transaction; without it there are none.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['contexts', 'entries', 'derived', 'jobs', 'audit', 'kv'] LOOP
        EXECUTE format('ALTER TABLE acms.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE acms.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON acms.%I USING (tenant_id = current_setting(''acms.tenant'', true))', name);
    END LOOP;
END $$;
GRANT USAGE ON SCHEMA acms TO acms_app;
-- Only what the queries do: a log is never deleted, and the record of erasures can be neither read nor changed.
GRANT SELECT, INSERT, UPDATE ON acms.contexts, acms.entries, acms.jobs TO acms_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON acms.derived, acms.kv TO acms_app;
GRANT INSERT ON acms.audit TO acms_app;
GRANT SELECT ON acms.migrations TO acms_app;

-- Row-level security keeps every index of words from being used: what overlaps is not proven to leak nothing. So one
-- function runs as a role that sees all tenants, and gives back no more than where the words of one tenant stand.
GRANT USAGE ON SCHEMA acms TO acms_search;
GRANT SELECT ON acms.contexts, acms.entries TO acms_search;
CREATE POLICY search ON acms.contexts FOR SELECT TO acms_search USING (true);
CREATE POLICY search ON acms.entries FOR SELECT TO acms_search USING (true);

-- The places that match the rarest of some words, best first, and for each word in how many places it stands, counted up
-- to `counted`. A word that the parser divides stands where all of its pieces do. A plan made for any tenant and any words is
-- thirty times as slow as one that is made anew (2 ms).
CREATE FUNCTION acms.places(tenant text, namespace text, words text[], counted integer, most integer)
RETURNS TABLE (context_id text, version bigint, counts bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
    IF tenant IS DISTINCT FROM current_setting('acms.tenant', true) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a search of another tenant than that of the transaction';
    END IF;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT w.n, acms.word_keys(w.word) AS found, acms.keys(places.tenant, places.namespace, w.word) AS wanted
        FROM unnest(places.words) WITH ORDINALITY AS w (word, n)
    ), matching AS MATERIALIZED (
        SELECT a.n, m.context_id, m.version
        FROM asked a CROSS JOIN LATERAL (
            SELECT e.context_id, e.version
            FROM acms.entries e
            WHERE e.found_in IS NOT NULL AND acms.keys(e.tenant_id, e.found_in, e.content) @> a.wanted
              AND e.tenant_id = places.tenant AND e.found_in = places.namespace
              AND EXISTS (SELECT FROM acms.contexts c
                          WHERE c.tenant_id = e.tenant_id AND c.context_id = e.context_id AND c.deleted_at IS NULL)
            LIMIT places.counted
        ) m
        WHERE a.found <> '{}'
    ), weights AS (
        SELECT m.n, count(*) AS matches FROM matching m GROUP BY m.n
    ), best AS (
        SELECT m.context_id, m.version FROM matching m JOIN weights w USING (n)
        GROUP BY m.context_id, m.version
        ORDER BY sum(ln(1 + places.counted / w.matches::float8)) DESC, m.version DESC, m.context_id
        LIMIT places.most
    )
    SELECT b.context_id, b.version,
           ARRAY(SELECT coalesce(w.matches, 0) FROM asked a LEFT JOIN weights w USING (n) ORDER BY a.n)
    FROM best b;
END $$;
REVOKE ALL ON FUNCTION acms.places FROM PUBLIC;
GRANT EXECUTE ON FUNCTION acms.places TO acms_app;
GRANT CREATE ON SCHEMA acms TO acms_search;
ALTER FUNCTION acms.places OWNER TO acms_search;
REVOKE CREATE ON SCHEMA acms FROM acms_search;
