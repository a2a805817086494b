-- Named queries of key-value memory on PostgreSQL. A dialect has the same names. `@name` is the fragment of that name.
-- Each runs in a transaction that named its tenant first; a call may be repeated after its answer was lost, so what this
-- very revision has written already is written again.

-- fragment: insert
INSERT INTO acms.kv (tenant_id, key, data, metadata, created_at, updated_at, revision)
VALUES (%(tenant)s, %(key)s, %(data)s, %(metadata)s, %(now)s, %(now)s, %(revision)s)

-- name: get
SELECT data, metadata, created_at, updated_at, revision
FROM acms.kv WHERE tenant_id = %(tenant)s AND key = %(key)s;

-- name: list
SELECT key, data, metadata, created_at, updated_at, revision
FROM acms.kv WHERE tenant_id = %(tenant)s AND key > %(after)s AND key >= %(prefix)s
  AND (%(end)s::text IS NULL OR key < %(end)s)
ORDER BY key LIMIT %(limit)s;

-- name: set
@insert
ON CONFLICT (tenant_id, key) DO UPDATE SET
    data = excluded.data, metadata = excluded.metadata, revision = excluded.revision,
    updated_at = greatest(kv.updated_at, excluded.updated_at)
RETURNING created_at, updated_at;

-- name: set_new
@insert
ON CONFLICT (tenant_id, key) DO UPDATE SET data = excluded.data WHERE kv.revision = excluded.revision
RETURNING created_at, updated_at;

-- name: set_known
UPDATE acms.kv SET data = %(data)s, metadata = %(metadata)s, revision = %(revision)s,
    updated_at = greatest(updated_at, %(now)s)
WHERE tenant_id = %(tenant)s AND key = %(key)s AND revision IN (%(expect)s, %(revision)s)
RETURNING created_at, updated_at;

-- name: delete
DELETE FROM acms.kv WHERE tenant_id = %(tenant)s AND key = %(key)s
RETURNING key;
