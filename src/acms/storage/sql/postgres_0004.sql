-- Schema 4. Records beside a log: small JSON objects by name, derived state that moves nothing of the head; in as many hash
-- partitions as the log. An older release goes on beside it; what it erases leaves records, which hold ids and no text.
-- needs: 1

CREATE TABLE acms.records (
    tenant_id  text   COLLATE "C" NOT NULL,
    context_id text   COLLATE "C" NOT NULL,
    name       text   COLLATE "C" NOT NULL,
    rev        bigint NOT NULL,                         -- counts the times it was put, from 1
    seq        bigint NOT NULL,                         -- the order in which those of a context were put
    data       text   NOT NULL,                         -- JSON as it was written, byte for byte
    PRIMARY KEY (tenant_id, context_id, name)
) PARTITION BY HASH (context_id);

DO $$
DECLARE
    partitions constant bigint := (SELECT count(*) FROM pg_catalog.pg_inherits i WHERE i.inhparent = 'acms.derived'::regclass);
BEGIN
    FOR n IN 0 .. partitions - 1 LOOP
        EXECUTE format('CREATE TABLE acms.records_%s PARTITION OF acms.records FOR VALUES WITH (MODULUS %s, REMAINDER %s)',
                       n, partitions, n);
    END LOOP;
END $$;

ALTER TABLE acms.records ENABLE ROW LEVEL SECURITY;
ALTER TABLE acms.records FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON acms.records USING (tenant_id = current_setting('acms.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON acms.records TO acms_app;
