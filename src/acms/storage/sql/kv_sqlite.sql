-- Named queries of key-value memory on SQLite. A dialect has the same names. `@name` is the fragment of that name.

-- fragment: insert
INSERT INTO kv (tenant, key, data, metadata, created_at, updated_at, revision)
VALUES (:tenant, :key, :data, :metadata, :now, :now, :revision)

-- name: get
SELECT data, metadata, created_at, updated_at, revision
FROM kv WHERE tenant = :tenant AND key = :key;

-- name: list
SELECT key, data, metadata, created_at, updated_at, revision
FROM kv WHERE tenant = :tenant AND key > :after AND key >= :prefix AND (:end IS NULL OR key < :end)
ORDER BY key LIMIT :limit;

-- name: set
@insert
ON CONFLICT (tenant, key) DO UPDATE SET
    data = excluded.data, metadata = excluded.metadata, revision = excluded.revision,
    updated_at = max(kv.updated_at, excluded.updated_at)
RETURNING created_at, updated_at;

-- name: set_new
@insert
ON CONFLICT (tenant, key) DO NOTHING
RETURNING created_at, updated_at;

-- name: set_known
UPDATE kv SET data = :data, metadata = :metadata, revision = :revision, updated_at = max(updated_at, :now)
WHERE tenant = :tenant AND key = :key AND revision = :expect
RETURNING created_at, updated_at;

-- name: delete
DELETE FROM kv WHERE tenant = :tenant AND key = :key
RETURNING key;
