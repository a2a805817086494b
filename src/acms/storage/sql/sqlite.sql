-- Named queries of the SQLite store. A dialect has the same names. `@name` is the fragment of that name.

-- fragment: entry
e.row, e.kind, e.position, e.nonce, e.batch, e.total, e.created_at, e.tokens, e.origin, e.privacy, e.role, e.actor,
       e.markers, e.detected, e.episode, e.closes, e.grp, e.covers, e.replaces, e.sources, e.data, e.metadata, e.state,
       e.salt, e.digest, e.chain, e.key, e.parts, e.content

-- fragment: context
ref, id, namespace, key, (SELECT r.id FROM contexts r WHERE r.ref = c.root), parent, fork, lineage, counter,
       settings, settings_rev, created_at, deleted_at

-- fragment: job
id, kind, dedupe, context, payload, state, attempt, not_before, lease, error, created_at, updated_at

-- fragment: listed
(deleted_at IS NULL OR :deleted)
  AND (:inner IS NULL OR key IS NULL OR key NOT IN (SELECT value FROM json_each(:inner))) AND (:where IS NULL OR holds(settings, :where))

-- name: context_by_id
SELECT @context
FROM contexts c WHERE tenant = ? AND id = ?;

-- name: context_by_key
SELECT @context
FROM contexts c WHERE tenant = ? AND namespace = ? AND key = ? AND deleted_at IS NULL;

-- Through the table from its end, or from where a page ended: an index of the tenant would have all its contexts sorted
-- for one page. The condition stands alone, for SQLite seeks by no number that may be missing.
-- name: contexts
SELECT @context
FROM contexts c NOT INDEXED
WHERE tenant = :tenant AND (:namespace IS NULL OR namespace = :namespace)
  AND ref < :after AND @listed
ORDER BY ref DESC LIMIT :limit;

-- A page as a list shows it, with where each log stands; through the table as well.
-- name: sessions
SELECT id, namespace, key, settings, parent, fork, version, messages, tokens, last_message, counter, created_at, deleted_at
FROM contexts c NOT INDEXED
WHERE tenant = :tenant AND (:namespace IS NULL OR namespace = :namespace)
  AND ref < :after AND @listed
ORDER BY ref DESC LIMIT :limit;

-- One query for each way in, so that each uses its index.
-- name: contexts_of_parent
SELECT @context
FROM contexts c
WHERE tenant = :tenant AND parent = :parent AND (:namespace IS NULL OR namespace = :namespace)
  AND (:root IS NULL OR root = (SELECT ref FROM contexts WHERE tenant = :tenant AND id = :root))
  AND +ref < :after AND @listed
ORDER BY ref DESC LIMIT :limit;

-- name: contexts_of_root
SELECT @context
FROM contexts c
WHERE root = (SELECT ref FROM contexts WHERE tenant = :tenant AND id = :root) AND tenant = :tenant
  AND (:namespace IS NULL OR namespace = :namespace)
  AND +ref < :after AND @listed
ORDER BY ref DESC LIMIT :limit;

-- The root of a fork is that of its parent, whose number is :ref; any other context becomes its own root next.
-- name: insert_context
INSERT INTO contexts (tenant, id, namespace, key, root, parent, fork, lineage, counter, settings, settings_rev,
                      created_at, deleted_at, version, messages, tokens, last_message, rewrites, chain)
VALUES (:tenant, :id, :namespace, :key, coalesce((SELECT root FROM contexts WHERE ref = :ref), 0), :parent, :fork,
        :lineage, :counter, :settings, :settings_rev, :created_at, :deleted_at, :version, :messages, :tokens,
        :last_message, :rewrites, :chain);

-- name: root_itself
UPDATE contexts SET root = ref WHERE ref = ?;

-- name: ref
SELECT ref FROM contexts WHERE tenant = ? AND id = ?;

-- name: settings
SELECT settings FROM contexts WHERE ref = ?;

-- name: update_settings
UPDATE contexts SET settings = ?, settings_rev = settings_rev + 1, deleted_at = ? WHERE ref = ?;

-- name: head
SELECT c.ref, c.deleted_at, c.lineage, c.version, c.messages, c.tokens, c.last_message, c.rewrites, r.derived, r.epoch,
       c.chain, c.tail
FROM contexts c JOIN contexts r ON r.ref = c.root
WHERE c.tenant = ? AND c.id = ?;

-- name: heads_of
SELECT c.id, c.version, c.messages, c.tokens, c.last_message, c.rewrites, r.derived, r.epoch, c.chain, c.tail
FROM json_each(:contexts) asked CROSS JOIN contexts c JOIN contexts r ON r.ref = c.root
WHERE c.tenant = :tenant AND c.id = asked.value AND c.deleted_at IS NULL;

-- Each half of the union has a partial index.
-- name: heads
WITH live AS (
    SELECT ref FROM contexts
    WHERE tenant = :tenant AND namespace = :namespace AND deleted_at IS NULL AND key IS NOT NULL
    UNION ALL
    SELECT ref FROM contexts WHERE tenant = :tenant AND namespace = :namespace AND deleted_at IS NULL AND key IS NULL
)
SELECT c.id, c.key, c.counter, coalesce(c.fork, 0), c.version, c.rewrites, r.derived, r.epoch,
       coalesce(c.settings ->> '$.private', 0)
FROM live JOIN contexts c ON c.ref = live.ref JOIN contexts r ON r.ref = c.root ORDER BY c.ref;

-- The append. SQLite has one writer, so inside BEGIN IMMEDIATE the head is read, checked and written:
--   head, key_version, inherited (of a fork), insert_entry per entry, insert_key per key, advance, insert_job per job, finish_job.
-- PostgreSQL does the same in one statement that locks the context row: `append` in postgres.sql.

-- name: key_version
SELECT version FROM keys WHERE ref = ? AND key = ?;

-- Of [[ref, last version, …], …] and keys, what has one of them; the newest last.
-- name: inherited
SELECT @entry
FROM json_each(?) o CROSS JOIN json_each(?) n
CROSS JOIN keys k ON k.ref = o.value ->> 0 AND k.key = n.value AND k.version <= o.value ->> 1
CROSS JOIN entries e ON e.row = k.ref << 32 | k.version
ORDER BY o.key;

-- name: insert_key
INSERT INTO keys (ref, key, version) VALUES (?, ?, ?);

-- name: insert_entry
INSERT INTO entries (row, kind, position, nonce, batch, total, created_at, tokens, origin, privacy, role, actor,
                     markers, detected, episode, closes, grp, covers, replaces, sources, data, metadata, state, salt,
                     digest, chain, key, parts, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: advance
UPDATE contexts SET version = ?, messages = ?, tokens = ?, last_message = ?, rewrites = ?, chain = ?, tail = ?
WHERE ref = ? AND version = ? AND chain = ? AND rewrites = ? AND deleted_at IS NULL
  AND (SELECT r.derived, r.epoch FROM contexts r WHERE r.ref = contexts.root) = (?, ?);

-- name: advance_restored
UPDATE contexts SET version = ?, messages = ?, tokens = ?, last_message = ?, rewrites = ?, chain = ?, tail = NULL
WHERE ref = ?;

-- name: entries_at
SELECT @entry
FROM entries e WHERE e.row IN (SELECT value FROM json_each(?));

-- name: entries_forward
SELECT @entry
FROM entries e
WHERE e.row BETWEEN :first AND :last AND (:kinds IS NULL OR e.kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY e.row LIMIT :limit;

-- name: entries_backward
SELECT @entry
FROM entries e
WHERE e.row BETWEEN :first AND :last AND (:kinds IS NULL OR e.kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY e.row DESC LIMIT :limit;

-- name: others_forward
SELECT @entry
FROM entries e INDEXED BY entries_other
WHERE e.kind <> 'message' AND e.row BETWEEN :first AND :last AND e.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY e.row LIMIT :limit;

-- name: others_backward
SELECT @entry
FROM entries e INDEXED BY entries_other
WHERE e.kind <> 'message' AND e.row BETWEEN :first AND :last AND e.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY e.row DESC LIMIT :limit;

-- name: replacing_forward
SELECT @entry
FROM entries e INDEXED BY entries_replacing
WHERE e.replaces IS NOT NULL AND e.row BETWEEN :first AND :last
  AND (:kinds IS NULL OR e.kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY e.row LIMIT :limit;

-- name: replacing_backward
SELECT @entry
FROM entries e INDEXED BY entries_replacing
WHERE e.replaces IS NOT NULL AND e.row BETWEEN :first AND :last
  AND (:kinds IS NULL OR e.kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY e.row DESC LIMIT :limit;

-- name: count_replacing
SELECT count(*) FROM entries INDEXED BY entries_replacing WHERE replaces IS NOT NULL AND row BETWEEN ? AND ?;

-- name: blank_entry
UPDATE entries SET state = ?1, content = '', parts = NULL, data = NULL, metadata = NULL, salt = NULL,
       key = CASE WHEN ?1 = 'erased' THEN NULL ELSE key END, actor = CASE WHEN ?1 = 'erased' THEN NULL ELSE actor END
WHERE row = ?2;

-- name: forget_key
DELETE FROM keys WHERE ref = ? AND key = ?;

-- The spaces a context has rows in, each found by one step of the index: all rows of a version are then a few seeks.
-- fragment: spaces
spaces (space) AS (
  SELECT min(space) FROM derived WHERE ref = ?1
  UNION ALL SELECT (SELECT min(space) FROM derived WHERE ref = ?1 AND space > spaces.space) FROM spaces
  WHERE spaces.space IS NOT NULL
)

-- name: spaces_of
WITH RECURSIVE @spaces
SELECT space FROM spaces WHERE space IS NOT NULL ORDER BY space;

-- name: delete_derived
WITH RECURSIVE @spaces
DELETE FROM derived WHERE ref = ?1 AND space IN (SELECT space FROM spaces) AND version = ?2;

-- Rows that belong to no entry, or to an erased one.
-- name: stray_derived
SELECT DISTINCT d.space, d.version
FROM derived d LEFT JOIN entries e ON e.row = d.ref << 32 | d.version
WHERE d.ref = ? AND (e.row IS NULL OR e.state = 'erased')
ORDER BY d.space, d.version;

-- name: delete_stray_derived
DELETE FROM derived
WHERE ref = ? AND NOT EXISTS (SELECT 1 FROM entries e
                              WHERE e.row = derived.ref << 32 | derived.version AND e.state IS NOT 'erased');

-- A job of any context of the fork tree may name the entry.
-- name: delete_payload
UPDATE jobs SET payload = NULL
WHERE tenant = ?1 AND context IN (SELECT id FROM contexts WHERE root = (SELECT root FROM contexts WHERE ref = ?2))
  AND EXISTS (SELECT 1 FROM json_each(jobs.payload, '$.ids') WHERE value = ?3);

-- What should be gone with an erased entry: its rows beside the log.
-- name: left_keys
SELECT count(*) FROM keys WHERE ref = ? AND version IN (SELECT value FROM json_each(?));

-- name: left_derived
WITH RECURSIVE @spaces
SELECT count(*) FROM derived
WHERE ref = ?1 AND space IN (SELECT space FROM spaces) AND version IN (SELECT value FROM json_each(?2));

-- name: left_values
SELECT key, concat_ws(char(10), data, metadata) FROM kv WHERE tenant = ?;

-- name: find_messages
SELECT c.id, e.row & 4294967295, e.nonce
FROM entries e JOIN contexts c ON c.ref = e.row >> 32
WHERE c.tenant = ?1 AND e.kind = 'message' AND e.state IS NULL
  AND (e.created_at IN (SELECT value FROM json_each(?2)) OR e.key IN (SELECT value FROM json_each(?3)));

-- Everything that may be in the file because it is not erased, of every tenant: one text a row.
-- name: stored_texts
SELECT concat_ws(char(10), kind, privacy, role, origin, markers, closes, grp, sources,
                 CASE WHEN state IS NOT 'erased' THEN concat_ws(char(10), content, parts, data, metadata, key, actor) END)
FROM entries
UNION ALL SELECT concat_ws(char(10), tenant, id, namespace, key, lineage, counter, settings, last_message, tail)
FROM contexts
UNION ALL SELECT concat_ws(char(10), context, kind, dedupe, state) FROM jobs
UNION ALL SELECT concat_ws(char(10), action, detail) FROM audit
UNION ALL SELECT DISTINCT space FROM derived
UNION ALL SELECT concat_ws(char(10), name, data) FROM records
UNION ALL SELECT concat_ws(char(10), tenant, key, data, metadata) FROM kv
UNION ALL SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL;

-- name: raise_epoch
UPDATE contexts SET epoch = epoch + 1 WHERE ref = (SELECT root FROM contexts WHERE ref = ?);

-- A restored log may bring tombstones: an epoch of 0 says that there are none.
-- name: note_blanks
UPDATE contexts SET epoch = max(epoch, 1) WHERE ref = (SELECT root FROM contexts WHERE ref = ?);

-- In every context of the fork tree: a worker of a fork must notice that what it read was blanked (T07).
-- name: count_rewrite
UPDATE contexts SET rewrites = rewrites + 1 WHERE root = (SELECT root FROM contexts WHERE ref = ?);

-- name: insert_audit
INSERT INTO audit (tenant, context, action, versions, detail, created_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: live
SELECT row FROM entries WHERE row IN (SELECT value FROM json_each(?)) AND state IS NULL;

-- name: put_derived
INSERT INTO derived (ref, space, version, part, seq, start, "end", data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (ref, space, version, part)
DO UPDATE SET seq = excluded.seq, start = excluded.start, "end" = excluded."end", data = excluded.data;

-- One counter per fork tree, as the epoch: a child's reader sees every row of its lineage behind one watermark.
-- name: count_derived
UPDATE contexts SET derived = ? WHERE ref = (SELECT root FROM contexts WHERE ref = ?);

-- Not above the head that was read before: the owners of a lineage are asked one after the other, and a row that is
-- stored meanwhile must not be skipped by a reader who goes on behind the highest number it got.
-- name: derived
SELECT version, part, start, "end", data, seq FROM derived
WHERE ref = ? AND space = ? AND seq > ? AND seq <= ? AND version BETWEEN ? AND ? ORDER BY seq;

-- name: record
SELECT c.deleted_at, r.rev, r.data
FROM contexts c LEFT JOIN records r ON r.ref = c.ref AND r.name = :name
WHERE c.tenant = :tenant AND c.id = :context;

-- Gives no row back where it is not at the revision; what there is is never at 0.
-- name: put_record
INSERT INTO records (ref, name, rev, seq, data)
SELECT :ref, :name, 1, (SELECT coalesce(max(seq), 0) + 1 FROM records WHERE ref = :ref), :data
WHERE :rev = 0 OR EXISTS (SELECT 1 FROM records WHERE ref = :ref AND name = :name)
ON CONFLICT (ref, name) DO UPDATE SET rev = records.rev + 1, seq = excluded.seq, data = excluded.data
WHERE records.rev = :rev
RETURNING rev;

-- name: bound_records
DELETE FROM records
WHERE ref = :ref AND seq <= (SELECT seq FROM records WHERE ref = :ref ORDER BY seq DESC LIMIT 1 OFFSET :kept);

-- name: delete_records
DELETE FROM records WHERE ref = ?;

-- What was shown where names entries by id, whichever of the tree showed it.
-- name: delete_records_of_tree
DELETE FROM records WHERE ref IN (SELECT ref FROM contexts WHERE root = (SELECT root FROM contexts WHERE ref = ?));

-- name: live_logs
SELECT id, ref, coalesce(fork, 0) + 1, version FROM contexts WHERE tenant = ? AND deleted_at IS NULL ORDER BY ref;

-- Counted from the index alone: where every version is covered, no entry need be read.
-- name: count_covered
SELECT count(DISTINCT version) FROM derived WHERE ref = ? AND space = ? AND version BETWEEN ? AND ?;

-- name: missing
SELECT e.row & 4294967295
FROM entries e
WHERE e.row BETWEEN (?1 << 32 | ?3) AND (?1 << 32 | ?4)
  AND e.state IS NULL AND e.kind IN ('message', 'fact', 'summary') AND e.content <> ''
  AND NOT EXISTS (SELECT 1 FROM derived d WHERE d.ref = ?1 AND d.space = ?2 AND d.version = e.row & 4294967295)
ORDER BY e.row LIMIT ?5;

-- name: searchable
SELECT c.id, e.row & 4294967295, e.kind, e.nonce, e.content
FROM contexts c JOIN entries e ON e.row BETWEEN (c.ref << 32) AND (c.ref << 32 | 4294967295)
WHERE c.tenant = ? AND c.namespace = ? AND c.deleted_at IS NULL AND e.state IS NULL
  AND (e.kind IN ('fact', 'summary') OR (e.kind = 'message' AND e.markers IS NOT NULL))
ORDER BY e.row;

-- name: searchable_vectors
SELECT c.id, d.version, d.data
FROM contexts c JOIN derived d ON d.ref = c.ref AND d.space = ?
WHERE c.tenant = ? AND c.namespace = ? AND c.deleted_at IS NULL
ORDER BY d.ref, d.version, d.part;

-- name: insert_job
INSERT INTO jobs (tenant, context, kind, dedupe, payload, not_before, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: finish_job
UPDATE jobs SET state = 'done', lease = NULL, error = NULL, updated_at = ?
WHERE tenant = ? AND id = ? AND attempt = ? AND state = 'running' RETURNING id;

-- Asked twice: to see whether there is work, which takes no lock, and to claim it.
-- name: due_jobs
SELECT id, state FROM jobs
WHERE tenant = :tenant AND kind IN (SELECT value FROM json_each(:kinds)) AND state IN ('ready', 'running')
  AND not_before <= :now AND (state = 'ready' OR (state = 'running' AND lease <= :now))
ORDER BY not_before, id LIMIT :limit;

-- What was changed in the future was changed under a clock that has been set back since, and its times may lie days from
-- now. So it is due as well; a worker that still holds such a job is fenced off by its attempt. Reads every unfinished
-- job: asked only when there is one of these.
-- name: due_jobs_ahead
SELECT id, state FROM jobs
WHERE tenant = :tenant AND kind IN (SELECT value FROM json_each(:kinds)) AND state IN ('ready', 'running')
  AND ((state = 'ready' AND not_before <= :now) OR (state = 'running' AND lease <= :now) OR updated_at > :changed)
ORDER BY not_before, id LIMIT :limit;

-- name: jobs_ahead
SELECT 1 FROM jobs WHERE tenant = ? AND state IN ('ready', 'running') AND updated_at > ? LIMIT 1;

-- name: claim_job
UPDATE jobs SET state = 'running', attempt = attempt + 1, lease = ?, updated_at = ? WHERE tenant = ? AND id = ?;

-- name: extend_job
UPDATE jobs SET lease = ?, updated_at = ?
WHERE tenant = ? AND id = ? AND attempt = ? AND state = 'running' RETURNING id;

-- An attempt is ended from the state in which whoever ends it saw the job: a worker whose job was cancelled does not bring
-- it back. What is done stays done.
-- name: settle_job
UPDATE jobs SET state = ?, error = ?, not_before = ?, lease = NULL, updated_at = ?
WHERE tenant = ? AND id = ? AND attempt = ? AND state = ? AND state <> 'done' RETURNING id;

-- Another unfinished job of the same name.
-- name: twin
SELECT id FROM jobs WHERE tenant = ? AND dedupe = ? AND state IN ('ready', 'running') AND id <> ?;

-- name: job
SELECT @job
FROM jobs WHERE tenant = ? AND id = ?;

-- name: jobs
SELECT @job
FROM jobs
WHERE tenant = :tenant AND (:context IS NULL OR context = :context)
  AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
  AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
  AND (:after IS NULL OR id < :after)
ORDER BY id DESC LIMIT :limit;

-- The same of those that have not ended: they have an index, and the others become many.
-- name: unfinished_jobs
SELECT @job
FROM jobs INDEXED BY jobs_due
WHERE tenant = :tenant AND state IN ('ready', 'running') AND (:context IS NULL OR context = :context)
  AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
  AND state IN (SELECT value FROM json_each(:states))
  AND (:after IS NULL OR id < :after)
ORDER BY id DESC LIMIT :limit;
