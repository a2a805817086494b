-- Schema 3, where the server has pgvector: the vectors of the rows that were there before schema 2. Appends and searches go on
-- meanwhile; an erasure waits until this is done, lest the vector of what it erases be copied behind it.
-- needs: 1
-- wants: vector

DO $$
DECLARE
    tenants text[];
    tenant text;
BEGIN
    SET LOCAL ROLE acms_search;  -- it sees every tenant, and can do nothing else
    tenants := ARRAY(SELECT DISTINCT c.tenant_id FROM acms.contexts c);
    RESET ROLE;
    FOREACH tenant IN ARRAY tenants LOOP
        PERFORM set_config('acms.tenant', tenant, true);
        INSERT INTO acms.vectors (tenant_id, namespace, context_id, space, version, part, dim, embedding)
        SELECT f.tenant_id, f.found_in, f.context_id, f.space, f.version, f.part, vector_dims(f.embedding), f.embedding
        FROM (SELECT d.*, e.found_in, acms.as_vector(d.space, d.data) AS embedding
              FROM acms.entries e JOIN acms.derived d
                ON d.tenant_id = e.tenant_id AND d.context_id = e.context_id AND d.version = e.version
              WHERE e.tenant_id = tenant AND e.found_in IS NOT NULL
              FOR SHARE OF e, d) f
        WHERE f.embedding IS NOT NULL
        ON CONFLICT DO NOTHING;
    END LOOP;
END $$;
