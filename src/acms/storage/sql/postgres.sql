-- Named queries of the PostgreSQL store. A dialect has the same names; `@name` is the fragment of that name.
-- Every query names the tenant, although row-level security would hide other rows anyway.

-- fragment: entry
e.version, e.kind, e.position, e.nonce, e.batch, e.total, e.created_at, e.tokens, e.origin, e.privacy, e.role, e.actor,
       e.markers, e.detected, e.episode, e.closes, e.grp, e.covers, e.replaces, e.sources, e.data, e.metadata, e.state,
       e.salt, e.digest, e.chain, e.key, e.parts, e.content

-- fragment: context
c.number, c.context_id, c.namespace, c.key, c.root, c.parent, c.fork, c.lineage, c.counter, c.settings, c.settings_rev,
       c.created_at, c.deleted_at

-- fragment: job
j.id, j.kind, j.dedupe, j.context_id, j.payload, j.state, j.attempt, j.not_before, j.lease, j.error, j.created_at,
       j.updated_at

-- Microseconds by the clock of the database: hosts may disagree, the rows are here.
-- fragment: now
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- fragment: xact
pg_current_xact_id()::text::bigint

-- fragment: listed
(c.deleted_at IS NULL OR %(deleted)s) AND c.number < %(after)s::bigint
  AND (%(inner)s::text[] IS NULL OR c.key IS NULL OR c.key <> ALL (%(inner)s::text[]))
  AND (%(where)s::jsonb IS NULL OR c.settings::jsonb @> %(where)s::jsonb)

-- name: context_by_id
SELECT @context
FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s;

-- name: context_by_key
SELECT @context
FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND c.namespace = %(namespace)s AND c.key = %(key)s AND c.deleted_at IS NULL;

-- name: contexts
SELECT @context
FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND (%(namespace)s::text IS NULL OR c.namespace = %(namespace)s)
  AND @listed
ORDER BY c.number DESC LIMIT %(limit)s;

-- name: sessions
SELECT c.context_id, c.namespace, c.key, c.settings, c.parent, c.fork, c.version, c.messages, c.tokens, c.lineage,
       c.last_version, c.last_nonce, c.counter, c.created_at, c.deleted_at
FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND (%(namespace)s::text IS NULL OR c.namespace = %(namespace)s)
  AND @listed
ORDER BY c.number DESC LIMIT %(limit)s;

-- name: contexts_of_parent
SELECT @context
FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND c.parent = %(parent)s AND (%(namespace)s::text IS NULL OR c.namespace = %(namespace)s)
  AND (%(root)s::text IS NULL OR c.root = %(root)s)
  AND @listed
ORDER BY c.number DESC LIMIT %(limit)s;

-- The root is in no index of roots: a context that was never forked costs that index nothing.
-- name: contexts_of_root
SELECT @context
FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND (c.context_id = %(root)s OR (c.root = %(root)s AND c.parent IS NOT NULL))
  AND c.root = %(root)s AND (%(namespace)s::text IS NULL OR c.namespace = %(namespace)s)
  AND @listed
ORDER BY c.number DESC LIMIT %(limit)s;

-- name: insert_context
INSERT INTO acms.contexts AS c (tenant_id, context_id, namespace, key, root, parent, fork, lineage, counter, settings,
       settings_rev, created_at, deleted_at, version, messages, tokens, last_version, last_nonce, rewrites, chain, before)
VALUES (%(tenant)s, %(context)s, %(namespace)s, %(key)s, %(root)s, %(parent)s, %(fork)s, %(lineage)s, %(counter)s,
        %(settings)s, %(settings_rev)s, %(created_at)s, %(deleted_at)s, %(version)s, %(messages)s, %(tokens)s,
        %(last_version)s, %(last_nonce)s, %(rewrites)s, %(chain)s, %(chain)s)
ON CONFLICT DO NOTHING
RETURNING @context;

-- name: ref
SELECT number FROM acms.contexts WHERE tenant_id = %(tenant)s AND context_id = %(context)s;

-- name: settings
SELECT settings FROM acms.contexts WHERE tenant_id = %(tenant)s AND context_id = %(context)s;

-- name: update_settings
UPDATE acms.contexts c SET settings = %(settings)s, settings_rev = c.settings_rev + 1, deleted_at = %(deleted_at)s
WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s AND c.settings_rev = %(rev)s
RETURNING @context;

-- name: head
SELECT c.deleted_at, c.lineage, c.version, c.messages, c.tokens, c.last_version, c.last_nonce, c.rewrites, r.derived,
       r.epoch, c.chain, c.tail, c.root
FROM acms.contexts c JOIN acms.contexts r ON r.tenant_id = c.tenant_id AND r.context_id = c.root
WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s;

-- name: heads_of
SELECT c.context_id, c.lineage, c.version, c.messages, c.tokens, c.last_version, c.last_nonce, c.rewrites, r.derived,
       r.epoch, c.chain, c.tail
FROM acms.contexts c JOIN acms.contexts r ON r.tenant_id = c.tenant_id AND r.context_id = c.root
WHERE c.tenant_id = %(tenant)s AND c.context_id = ANY(%(contexts)s) AND c.deleted_at IS NULL;

-- Each half of the union has a partial index.
-- name: heads
WITH live AS (
    SELECT context_id FROM acms.contexts
    WHERE tenant_id = %(tenant)s AND namespace = %(namespace)s AND deleted_at IS NULL AND key IS NOT NULL
    UNION ALL
    SELECT context_id FROM acms.contexts
    WHERE tenant_id = %(tenant)s AND namespace = %(namespace)s AND deleted_at IS NULL AND key IS NULL
)
SELECT c.context_id, c.key, c.counter, coalesce(c.fork, 0), c.version, c.rewrites, r.derived, r.epoch,
       coalesce((c.settings::jsonb ->> 'private')::boolean, false)
FROM live JOIN acms.contexts c ON c.tenant_id = %(tenant)s AND c.context_id = live.context_id
JOIN acms.contexts r ON r.tenant_id = c.tenant_id AND r.context_id = c.root
ORDER BY c.number;

-- Lock order everywhere: the root of a tree, its contexts by id, entries, jobs.
-- name: lock_context
SELECT c.version FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s FOR NO KEY UPDATE;

-- name: lock_root
SELECT r.root FROM acms.contexts r
WHERE r.tenant_id = %(tenant)s
  AND r.context_id = (SELECT c.root FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s)
FOR NO KEY UPDATE;

-- name: lock_tree
SELECT c.context_id FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND (c.context_id = %(root)s OR (c.root = %(root)s AND c.parent IS NOT NULL))
ORDER BY c.context_id FOR NO KEY UPDATE;

-- The append: one statement for many contexts, each once, with one append or with several that were computed behind a
-- chain the statement names. A context whose expectation does not hold, or that is gone, gives no row back and gets
-- nothing; the row lock orders its appends, so versions have no gaps and no two are the same. The client sends digests
-- and per draft the prefix SHA-256(d1 ‖ … ‖ dk), so the chain needs no recursion and no version has to be known. A key that is taken violates the unique index: the statement fails and is repeated one by one.
-- fragment: advance
WITH given AS (
  SELECT * FROM json_to_recordset(%(ops)s::json) AS g (op int, context text, n int, said int, tokens bigint,
         rewrites int, last int, nonce text, expect_last bool, last_version bigint, last_nonce text,
         expect_rewrites bigint, expect_version bigint, expect_chain text, reach bigint, keep bool, tail text, prefix text,
         chain text)
), u AS (
  UPDATE acms.contexts c
  SET version = c.version + g.n, messages = c.messages + g.said, tokens = c.tokens + g.tokens,
      last_version = CASE WHEN g.last IS NULL THEN c.last_version ELSE c.version + g.last END,
      last_nonce = CASE WHEN g.last IS NULL THEN c.last_nonce ELSE g.nonce END,
      rewrites = c.rewrites + g.rewrites,
      before = CASE WHEN g.n = 0 THEN c.before ELSE c.chain END,
      chain = CASE WHEN g.chain IS NOT NULL THEN decode(g.chain, 'hex') WHEN g.n = 0 THEN c.chain
                   ELSE sha256(c.chain || decode(g.prefix, 'hex')) END,
      tail = CASE WHEN g.keep THEN c.tail ELSE g.tail END,
      xact = CASE WHEN g.n = 0 THEN c.xact ELSE greatest(c.xact, @xact) END
  FROM given g
  WHERE c.tenant_id = %(tenant)s AND c.context_id = ANY(%(contexts)s::text[]) AND c.context_id = g.context
    AND c.deleted_at IS NULL AND g.reach <= c.version AND c.version + g.n <= 4294967295
    AND (NOT g.expect_last OR (c.last_version IS NOT DISTINCT FROM g.last_version
                               AND c.last_nonce IS NOT DISTINCT FROM g.last_nonce))
    AND (g.expect_rewrites IS NULL OR g.expect_rewrites = c.rewrites)
    AND (g.expect_version IS NULL OR g.expect_version = c.version)
    AND (g.expect_chain IS NULL OR decode(g.expect_chain, 'hex') = c.chain)
  RETURNING g.op, c.context_id, c.version - g.n AS base, c.messages - g.said AS said, c.tokens - g.tokens AS total,
            c.before, c.chain, c.last_version, c.last_nonce, c.rewrites, c.tail, c.lineage, c.root, c.derived, c.epoch,
            c.xact, c.namespace
), e AS (
  INSERT INTO acms.entries (tenant_id, context_id, version, kind, position, nonce, batch, total, created_at, tokens,
         origin, privacy, role, actor, markers, detected, episode, closes, grp, covers, replaces, sources, data, metadata,
         salt, digest, chain, key, parts, found_in, content, xact)
  SELECT %(tenant)s, u.context_id, u.base + d.k, d.kind, u.said + d.position, d.nonce, u.base + d.batch, u.total + d.total,
         d.created_at, d.tokens, d.origin, d.privacy, d.role, d.actor, d.markers, d.detected, d.episode, d.closes, d.grp,
         d.covers, d.replaces, d.sources, d.data, d.metadata, decode(d.salt, 'hex'), decode(d.digest, 'hex'),
         coalesce(decode(d.chain, 'hex'), sha256(u.before || decode(d.prefix, 'hex'))), d.key, d.parts,
         CASE WHEN d.kind IN ('fact', 'summary') OR (d.kind = 'message' AND d.markers IS NOT NULL) THEN u.namespace END,
         d.content, u.xact
  FROM u JOIN json_to_recordset(%(drafts)s::json) AS d (op int, k int, batch int, kind text, position int, nonce text,
         total bigint, created_at bigint, tokens bigint, origin text, privacy text, role text, actor text, markers text, detected bool,
         episode bigint, closes text, grp text, covers text, replaces text, sources text, data text, metadata text,
         salt text, digest text, prefix text, chain text, key text, parts text, content text) ON d.op = u.op
)

-- fragment: advanced
SELECT u.op, u.base, u.said, u.total, u.before, u.chain, u.last_version, u.last_nonce, u.rewrites, u.tail, u.lineage,
       CASE WHEN u.root = u.context_id THEN u.derived
            ELSE (SELECT r.derived FROM acms.contexts r WHERE r.tenant_id = %(tenant)s AND r.context_id = u.root) END,
       CASE WHEN u.root = u.context_id THEN u.epoch
            ELSE (SELECT r.epoch FROM acms.contexts r WHERE r.tenant_id = %(tenant)s AND r.context_id = u.root) END
FROM u

-- name: append
@advance
@advanced;

-- name: append_with_jobs
@advance, w AS (
  INSERT INTO acms.jobs (tenant_id, context_id, kind, dedupe, payload, not_before, created_at, updated_at)
  SELECT %(tenant)s, u.context_id, j.kind, j.dedupe, j.payload, coalesce(j.due, t.now), t.now, t.now
  FROM (SELECT @now AS now) t, u
  JOIN json_to_recordset(%(jobs)s::json) AS j (op int, kind text, dedupe text, payload text, due bigint) ON j.op = u.op
  ON CONFLICT DO NOTHING
)
@advanced;

-- Whether an append of which nobody heard again was written: its digests are random enough to know it by.
-- name: written
SELECT e.version, e.kind, e.position, e.nonce, e.chain FROM acms.entries e
WHERE e.tenant_id = %(tenant)s AND e.context_id = %(context)s AND e.version > %(after)s
  AND e.digest = ANY(%(digests)s::bytea[])
ORDER BY e.version;

-- What a log has under some keys, its own and what it inherits; the newest last.
-- name: keyed
SELECT @entry, e.context_id
FROM unnest(%(owners)s::text[], %(upto)s::bigint[]) AS w (owner, upto)
JOIN acms.entries e ON e.context_id = w.owner AND e.version <= w.upto
WHERE e.tenant_id = %(tenant)s AND e.key = ANY(%(keys)s::text[])
ORDER BY e.version;

-- name: cited
SELECT e.version, e.kind, e.nonce, e.context_id, e.state FROM acms.entries e
JOIN unnest(%(contexts)s::text[], %(versions)s::bigint[]) AS w (context, version)
  ON e.context_id = w.context AND e.version = w.version
WHERE e.tenant_id = %(tenant)s
ORDER BY e.context_id, e.version FOR SHARE OF e;

-- A log that is moved here: the entries as they are.
-- name: insert_entry
INSERT INTO acms.entries (tenant_id, context_id, version, kind, position, nonce, batch, total, created_at, tokens, origin,
       privacy, role, actor, markers, detected, episode, closes, grp, covers, replaces, sources, data, metadata, state,
       salt, digest, chain, key, parts, found_in, content, xact)
SELECT %(tenant)s, %(context)s, d.version, d.kind, d.position, d.nonce, d.batch, d.total, d.created_at, d.tokens, d.origin,
       d.privacy, d.role, d.actor, d.markers, d.detected, d.episode, d.closes, d.grp, d.covers, d.replaces, d.sources,
       d.data, d.metadata, d.state, decode(d.salt, 'hex'), decode(d.digest, 'hex'), decode(d.chain, 'hex'), d.key,
       d.parts,
       CASE WHEN d.state IS NULL AND (d.kind IN ('fact', 'summary') OR (d.kind = 'message' AND d.markers IS NOT NULL))
            THEN (SELECT c.namespace FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s) END,
       d.content,
       greatest(@xact, (SELECT c.xact FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s))
FROM json_to_recordset(%(drafts)s::json) AS d (version bigint, kind text, position bigint, nonce text, batch bigint,
       total bigint, created_at bigint, tokens bigint, origin text, privacy text, role text, actor text, markers text,
       detected bool, episode bigint, closes text, grp text, covers text, replaces text, sources text, data text,
       metadata text, state text, salt text, digest text, chain text, key text, parts text, content text);

-- name: advance_restored
UPDATE acms.contexts SET version = %(version)s, messages = %(messages)s, tokens = %(tokens)s,
       last_version = %(last_version)s, last_nonce = %(last_nonce)s, rewrites = %(rewrites)s, before = chain,
       chain = %(chain)s, tail = NULL, xact = greatest(xact, @xact)
WHERE tenant_id = %(tenant)s AND context_id = %(context)s;

-- name: entries_at
SELECT @entry, e.context_id
FROM unnest(%(contexts)s::text[], %(versions)s::bigint[]) AS w (context, version)
JOIN acms.entries e ON e.context_id = w.context AND e.version = w.version
WHERE e.tenant_id = %(tenant)s;

-- fragment: run
e.tenant_id = %(tenant)s AND e.context_id = %(context)s AND e.version BETWEEN %(first)s AND %(last)s
  AND (%(kinds)s::text[] IS NULL OR e.kind = ANY(%(kinds)s::text[]))

-- name: entries_forward
SELECT @entry
FROM acms.entries e WHERE @run
ORDER BY e.version LIMIT %(limit)s;

-- name: entries_backward
SELECT @entry
FROM acms.entries e WHERE @run
ORDER BY e.version DESC LIMIT %(limit)s;

-- name: others_forward
SELECT @entry
FROM acms.entries e WHERE e.kind <> 'message' AND @run
ORDER BY e.version LIMIT %(limit)s;

-- name: others_backward
SELECT @entry
FROM acms.entries e WHERE e.kind <> 'message' AND @run
ORDER BY e.version DESC LIMIT %(limit)s;

-- name: replacing_forward
SELECT @entry
FROM acms.entries e WHERE e.replaces IS NOT NULL AND @run
ORDER BY e.version LIMIT %(limit)s;

-- name: replacing_backward
SELECT @entry
FROM acms.entries e WHERE e.replaces IS NOT NULL AND @run
ORDER BY e.version DESC LIMIT %(limit)s;

-- name: count_replacing
SELECT count(*) FROM acms.entries e
WHERE e.tenant_id = %(tenant)s AND e.context_id = %(context)s AND e.replaces IS NOT NULL
  AND e.version BETWEEN %(first)s AND %(last)s;

-- name: blank_entry
UPDATE acms.entries e
SET state = %(state)s, content = '', parts = NULL, data = NULL, metadata = NULL, salt = NULL,
    found_in = NULL, key = CASE WHEN %(state)s = 'erased' THEN NULL ELSE e.key END,
    actor = CASE WHEN %(state)s = 'erased' THEN NULL ELSE e.actor END
WHERE e.tenant_id = %(tenant)s AND e.context_id = %(context)s AND e.version = ANY(%(versions)s::bigint[])
  AND e.state IS DISTINCT FROM %(state)s AND e.state IS DISTINCT FROM 'erased'
RETURNING e.version, e.kind, e.nonce;

-- The spaces a context has rows in, each found by one step of the index: all rows of a version are then a few seeks.
-- fragment: spaces
spaces (space) AS (
  (SELECT min(d.space) FROM acms.derived d WHERE d.tenant_id = %(tenant)s AND d.context_id = %(context)s)
  UNION ALL
  SELECT (SELECT min(d.space) FROM acms.derived d
          WHERE d.tenant_id = %(tenant)s AND d.context_id = %(context)s AND d.space > spaces.space)
  FROM spaces WHERE spaces.space IS NOT NULL
)

-- name: spaces_of
WITH RECURSIVE @spaces
SELECT space FROM spaces WHERE space IS NOT NULL ORDER BY space COLLATE "C";

-- name: delete_derived
WITH RECURSIVE @spaces
DELETE FROM acms.derived d
WHERE d.tenant_id = %(tenant)s AND d.context_id = %(context)s AND d.space IN (SELECT space FROM spaces)
  AND d.version = ANY(%(versions)s::bigint[]);

-- Rows that belong to no entry, or to an erased one.
-- name: stray_derived
SELECT DISTINCT d.space, d.version
FROM acms.derived d
LEFT JOIN acms.entries e ON e.tenant_id = d.tenant_id AND e.context_id = d.context_id AND e.version = d.version
WHERE d.tenant_id = %(tenant)s AND d.context_id = %(context)s AND (e.version IS NULL OR e.state = 'erased')
ORDER BY d.space, d.version;

-- name: delete_stray_derived
DELETE FROM acms.derived d
WHERE d.tenant_id = %(tenant)s AND d.context_id = %(context)s
  AND NOT EXISTS (SELECT FROM acms.entries e
                  WHERE e.tenant_id = d.tenant_id AND e.context_id = d.context_id AND e.version = d.version
                    AND e.state IS DISTINCT FROM 'erased');

-- A job of any context of the fork tree may name the entry.
-- name: delete_payload
UPDATE acms.jobs SET payload = NULL
WHERE tenant_id = %(tenant)s AND context_id = ANY(%(contexts)s::text[]) AND payload IS NOT NULL
  AND jsonb_exists_any(payload::jsonb -> 'ids', %(ids)s::text[]);

-- name: left_keys
SELECT count(*) FROM acms.entries
WHERE tenant_id = %(tenant)s AND context_id = %(context)s AND version = ANY(%(versions)s::bigint[]) AND key IS NOT NULL;

-- name: left_derived
WITH RECURSIVE @spaces
SELECT count(*) FROM acms.derived d
WHERE d.tenant_id = %(tenant)s AND d.context_id = %(context)s AND d.space IN (SELECT space FROM spaces)
  AND d.version = ANY(%(versions)s::bigint[]);

-- name: left_values
SELECT key, concat_ws(chr(10), data, metadata) FROM acms.kv WHERE tenant_id = %(tenant)s;

-- name: find_messages
SELECT e.context_id, e.version, e.nonce FROM acms.entries e
WHERE e.tenant_id = %(tenant)s AND e.kind = 'message' AND e.state IS NULL
  AND (e.created_at = ANY(%(times)s::bigint[]) OR e.key = ANY(%(keys)s::text[]));

-- name: raise_epoch
UPDATE acms.contexts SET epoch = epoch + 1 WHERE tenant_id = %(tenant)s AND context_id = %(root)s;

-- A restored log may bring tombstones: an epoch of 0 says that there are none.
-- name: note_blanks
UPDATE acms.contexts SET epoch = greatest(epoch, 1)
WHERE tenant_id = %(tenant)s
  AND context_id = (SELECT c.root FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s);

-- In every context of the fork tree: a worker of a fork must notice that what it read was blanked (T07).
-- name: count_rewrite
UPDATE acms.contexts SET rewrites = rewrites + 1
WHERE tenant_id = %(tenant)s AND context_id = ANY(%(contexts)s::text[]);

-- name: insert_audit
INSERT INTO acms.audit (tenant_id, context_id, action, versions, detail, created_at)
VALUES (%(tenant)s, %(context)s, %(action)s, %(versions)s, %(detail)s, @now);

-- After the root was locked by a statement of its own: what is erased meanwhile is seen, so that nothing of it comes back.
-- name: put_derived
WITH given AS (
  SELECT g.*, row_number() OVER (ORDER BY g.ordinal) AS n,
         lead(true) OVER (PARTITION BY g.owner, g.space, g.version, g.part ORDER BY g.ordinal) AS again
  FROM unnest(%(owners)s::text[], %(versions)s::bigint[], %(spaces)s::text[], %(parts)s::bigint[], %(starts)s::bigint[],
              %(ends)s::bigint[], %(datas)s::bytea[])
       WITH ORDINALITY AS g (owner, version, space, part, start, "end", data, ordinal)
  JOIN acms.entries e ON e.tenant_id = %(tenant)s AND e.context_id = g.owner AND e.version = g.version
  WHERE e.state IS NULL
    AND EXISTS (SELECT FROM acms.contexts c
                WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s AND c.deleted_at IS NULL)
), r AS (
  UPDATE acms.contexts SET derived = derived + (SELECT count(*) FROM given)
  WHERE tenant_id = %(tenant)s
    AND context_id = (SELECT c.root FROM acms.contexts c WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s)
  RETURNING derived - (SELECT count(*) FROM given) AS derived
), d AS (
  INSERT INTO acms.derived (tenant_id, context_id, space, version, part, seq, start, "end", data)
  SELECT %(tenant)s, g.owner, g.space, g.version, g.part, r.derived + g.n, g.start, g."end", g.data
  FROM given g, r WHERE g.again IS NULL
  ON CONFLICT (tenant_id, context_id, space, version, part)
  DO UPDATE SET seq = excluded.seq, start = excluded.start, "end" = excluded."end", data = excluded.data
)
SELECT count(*) FROM given;

-- Whoever asks leaves out what is above the head that was read before: the owners of a lineage are asked one after the
-- other, and a row that is stored meanwhile must not be skipped by a reader who goes on behind the highest number it got.
-- name: derived
SELECT version, part, start, "end", data, seq FROM acms.derived
WHERE tenant_id = %(tenant)s AND context_id = %(context)s AND space = %(space)s AND seq > %(after)s
  AND version BETWEEN %(first)s AND %(last)s
ORDER BY seq;

-- name: record
SELECT c.deleted_at, r.rev, r.data
FROM acms.contexts c
LEFT JOIN acms.records r ON r.tenant_id = c.tenant_id AND r.context_id = c.context_id AND r.name = %(name)s
WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s;

-- Gives no row back where it is not at the revision; what there is is never at 0. The context was locked by a statement of
-- its own, so that nothing is put behind an erasure that goes on, and the number of records is that of others' puts too.
-- What is derived needs no standby: its commit waits for none.
-- name: put_record
INSERT INTO acms.records AS r (tenant_id, context_id, name, rev, seq, data)
SELECT %(tenant)s, %(context)s, %(name)s, 1,
       (SELECT coalesce(max(o.seq), 0) + 1 FROM acms.records o
        WHERE o.tenant_id = %(tenant)s AND o.context_id = %(context)s),
       %(data)s
FROM acms.contexts c
WHERE c.tenant_id = %(tenant)s AND c.context_id = %(context)s AND c.deleted_at IS NULL
  AND (%(rev)s = 0 OR EXISTS (SELECT FROM acms.records o
                              WHERE o.tenant_id = %(tenant)s AND o.context_id = %(context)s AND o.name = %(name)s))
ON CONFLICT (tenant_id, context_id, name) DO UPDATE SET rev = r.rev + 1, seq = excluded.seq, data = excluded.data
WHERE r.rev = %(rev)s
RETURNING r.rev, set_config('synchronous_commit',
                            CASE current_setting('synchronous_commit') WHEN 'off' THEN 'off' ELSE 'local' END, true);

-- name: bound_records
DELETE FROM acms.records r
WHERE r.tenant_id = %(tenant)s AND r.context_id = %(context)s
  AND r.seq <= (SELECT o.seq FROM acms.records o
                WHERE o.tenant_id = %(tenant)s AND o.context_id = %(context)s
                ORDER BY o.seq DESC LIMIT 1 OFFSET %(kept)s);

-- name: delete_records
DELETE FROM acms.records WHERE tenant_id = %(tenant)s AND context_id = ANY(%(contexts)s::text[]);

-- name: live_logs
SELECT context_id, coalesce(fork, 0) + 1, version FROM acms.contexts
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL ORDER BY number;

-- name: missing
SELECT e.version FROM acms.entries e
WHERE e.tenant_id = %(tenant)s AND e.context_id = %(context)s AND e.version BETWEEN %(first)s AND %(last)s
  AND e.state IS NULL AND e.kind IN ('message', 'fact', 'summary') AND e.content <> ''
  AND NOT EXISTS (SELECT FROM acms.derived d
                  WHERE d.tenant_id = e.tenant_id AND d.context_id = e.context_id AND d.space = %(space)s
                    AND d.version = e.version)
ORDER BY e.version LIMIT %(limit)s;

-- name: count_searchable
SELECT count(*) FROM (SELECT FROM acms.entries e WHERE e.tenant_id = %(tenant)s AND e.found_in = %(namespace)s LIMIT %(limit)s) n;

-- fragment: in_namespace
FROM acms.entries e
JOIN acms.contexts c ON c.tenant_id = e.tenant_id AND c.context_id = e.context_id AND c.deleted_at IS NULL

-- name: searchable
SELECT e.context_id, e.version, e.kind, e.nonce, e.content
@in_namespace
WHERE e.tenant_id = %(tenant)s AND e.found_in = %(namespace)s
ORDER BY e.context_id, e.version;

-- name: searchable_vectors
SELECT d.context_id, d.version, d.data
@in_namespace
JOIN acms.derived d ON d.tenant_id = e.tenant_id AND d.context_id = e.context_id AND d.space = %(space)s
                   AND d.version = e.version
WHERE e.tenant_id = %(tenant)s AND e.found_in = %(namespace)s
ORDER BY d.context_id, d.version, d.part;

-- Where the rarest of some words stand.
-- name: places
SELECT context_id, version, counts
FROM acms.places(%(tenant)s, %(namespace)s, %(words)s::text[], %(counted)s::integer, %(limit)s::integer);

-- What lies nearest to a vector.
-- name: nearest
SELECT context_id, version
FROM acms.nearest(%(tenant)s, %(namespace)s, %(space)s, %(vector)s::real[], %(exact)s::integer, %(limit)s::integer);

-- Each by its key, whatever is known of the namespace.
-- fragment: places
unnest(%(contexts)s::text[], %(versions)s::bigint[]) AS w (context, version)
CROSS JOIN LATERAL (
  SELECT e.tenant_id, e.context_id, e.version, e.kind, e.nonce, e.content, e.found_in FROM acms.entries e
  WHERE e.tenant_id = %(tenant)s AND e.context_id = w.context AND e.version = w.version OFFSET 0
) e

-- name: searchable_at
SELECT e.context_id, e.version, e.kind, e.nonce, e.content
FROM @places
JOIN acms.contexts c ON c.tenant_id = e.tenant_id AND c.context_id = e.context_id AND c.deleted_at IS NULL
WHERE e.found_in = %(namespace)s
ORDER BY e.context_id, e.version;

-- name: searchable_vectors_at
SELECT d.context_id, d.version, d.data
FROM @places
CROSS JOIN LATERAL (
  SELECT d.context_id, d.version, d.part, d.data FROM acms.derived d
  WHERE d.tenant_id = e.tenant_id AND d.context_id = e.context_id AND d.space = %(space)s AND d.version = e.version OFFSET 0
) d
WHERE e.found_in = %(namespace)s
ORDER BY d.context_id, d.version, d.part;

-- name: finish_job
UPDATE acms.jobs SET state = 'done', lease = NULL, error = NULL, updated_at = @now
WHERE tenant_id = %(tenant)s AND id = %(id)s AND attempt = %(attempt)s AND state = 'running' RETURNING id;

-- What was changed in the future was changed under a clock that has been set back since (a failover to another host).
-- name: claim_job
WITH t AS (SELECT @now AS now), due AS (
  SELECT j.id, j.state FROM acms.jobs j, t
  WHERE j.tenant_id = %(tenant)s AND j.kind = ANY(%(kinds)s::text[]) AND j.state IN ('ready', 'running')
    AND ((j.state = 'ready' AND j.not_before <= t.now) OR (j.state = 'running' AND j.lease <= t.now)
         OR j.updated_at > t.now + %(differ)s)
  ORDER BY j.not_before, j.id LIMIT %(limit)s FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE acms.jobs j SET state = 'running', attempt = j.attempt + 1, lease = t.now + %(lease)s, updated_at = t.now
FROM due, t WHERE j.tenant_id = %(tenant)s AND j.id = due.id
RETURNING @job, due.state;

-- name: extend_job
UPDATE acms.jobs j SET lease = @now + %(by)s, updated_at = @now
WHERE j.tenant_id = %(tenant)s AND j.id = %(id)s AND j.attempt = %(attempt)s AND j.state = 'running' RETURNING @job;

-- An attempt is ended from the state in which whoever ends it saw the job: a worker whose job was cancelled does not bring
-- it back. What is done stays done.
-- name: settle_job
UPDATE acms.jobs j SET state = %(state)s, error = %(error)s, not_before = %(not_before)s, lease = NULL, updated_at = @now
WHERE j.tenant_id = %(tenant)s AND j.id = %(id)s AND j.attempt = %(attempt)s AND j.state = %(seen)s AND j.state <> 'done'
RETURNING @job;

-- Another unfinished job of the same name.
-- name: twin
SELECT id FROM acms.jobs
WHERE tenant_id = %(tenant)s AND dedupe = %(dedupe)s AND state IN ('ready', 'running') AND id <> %(id)s;

-- name: job
SELECT @job
FROM acms.jobs j WHERE j.tenant_id = %(tenant)s AND j.id = %(id)s;

-- name: jobs
SELECT @job
FROM acms.jobs j
WHERE j.tenant_id = %(tenant)s AND (%(context)s::text IS NULL OR j.context_id = %(context)s)
  AND (%(ids)s::bigint[] IS NULL OR j.id = ANY(%(ids)s::bigint[]))
  AND (%(states)s::text[] IS NULL OR j.state = ANY(%(states)s::text[]))
  AND (%(after)s::bigint IS NULL OR j.id < %(after)s)
ORDER BY j.id DESC LIMIT %(limit)s;

-- The same of those that have not ended: they have an index, and the others become many.
-- name: unfinished_jobs
SELECT @job
FROM acms.jobs j
WHERE j.tenant_id = %(tenant)s AND j.state IN ('ready', 'running')
  AND (%(context)s::text IS NULL OR j.context_id = %(context)s)
  AND (%(ids)s::bigint[] IS NULL OR j.id = ANY(%(ids)s::bigint[]))
  AND j.state = ANY(%(states)s::text[])
  AND (%(after)s::bigint IS NULL OR j.id < %(after)s)
ORDER BY j.id DESC LIMIT %(limit)s;

-- Every transaction before this one has ended: what it wrote is there, or never will be.
-- name: horizon
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- What the transactions from `low` to before `high` wrote, log by log. Numbers this server has not reached yet came
-- with a dump of another one: they belong to the beginning.
-- name: feed
SELECT @entry, e.context_id
FROM acms.entries e
WHERE e.tenant_id = %(tenant)s AND (e.context_id, e.version) > (%(context)s, %(version)s)
  AND ((e.xact >= %(low)s AND e.xact < %(high)s)
       OR (%(low)s = 0 AND e.xact >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint))
ORDER BY e.context_id, e.version LIMIT %(limit)s;

-- name: hint
SELECT pg_notify(%(channel)s, %(tenant)s);
