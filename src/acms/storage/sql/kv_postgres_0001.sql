-- Key-value memory: JSON under a key, for pins and stored summaries. Applied by the first handle that finds no table, in
-- one transaction; doing it again changes nothing.

SELECT pg_advisory_xact_lock(4711201, 1);   -- several handles that start together take turns

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'acms_app') THEN
        CREATE ROLE acms_app NOLOGIN NOINHERIT;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN   -- roles belong to the server: another database was first
END $$;

CREATE SCHEMA IF NOT EXISTS acms;

CREATE TABLE IF NOT EXISTS acms.kv (
    tenant_id  text   COLLATE "C" NOT NULL,
    key        text   COLLATE "C" NOT NULL,
    data       text   NOT NULL,                 -- JSON as it was written, byte for byte
    metadata   text,                            -- NULL when empty
    created_at bigint NOT NULL,                 -- microseconds since 1970
    updated_at bigint NOT NULL,
    revision   text   COLLATE "C" NOT NULL,     -- random, new with every write
    PRIMARY KEY (tenant_id, key)
);

-- The net under the tenant predicates: a role that owns nothing sees the rows of one tenant, named by a setting of the
-- transaction; without it there are none.
ALTER TABLE acms.kv ENABLE ROW LEVEL SECURITY;
ALTER TABLE acms.kv FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS tenant ON acms.kv;
CREATE POLICY tenant ON acms.kv USING (tenant_id = current_setting('acms.tenant', true));
GRANT USAGE ON SCHEMA acms TO acms_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON acms.kv TO acms_app;

DO $$
BEGIN
    IF NOT pg_has_role(current_user, 'acms_app', 'member') THEN
        EXECUTE format('GRANT acms_app TO %I', current_user);
    END IF;
END $$;
