-- Schema 2, where the server has pgvector: the vectors of what is searched across contexts, in a form that can be indexed.
-- They are copies: `derived` has the vectors as they came, and what is found here is compared by those.
-- needs: 1
-- wants: vector

CREATE EXTENSION IF NOT EXISTS vector;
SELECT set_config('search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true)
FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace WHERE x.extname = 'vector';

CREATE TABLE acms.vectors (
    tenant_id  text   COLLATE "C" NOT NULL,
    namespace  text   COLLATE "C" NOT NULL,
    context_id text   COLLATE "C" NOT NULL,
    space      text   COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    part       bigint NOT NULL,
    dim        integer NOT NULL,
    embedding  halfvec NOT NULL,
    PRIMARY KEY (tenant_id, context_id, space, version, part),
    FOREIGN KEY (tenant_id, context_id, space, version, part)
        REFERENCES acms.derived (tenant_id, context_id, space, version, part) ON DELETE CASCADE
);
CREATE INDEX vectors_space ON acms.vectors (tenant_id, namespace, space);
-- The usual lengths; vectors of another one are compared one by one.
DO $$
DECLARE
    d integer;
BEGIN
    FOREACH d IN ARRAY ARRAY[256, 384, 512, 768, 1024, 1536, 3072] LOOP
        EXECUTE format('CREATE INDEX vectors_%s ON acms.vectors USING hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)'
                       ' WHERE dim = %s', d, d, d);
    END LOOP;
END $$;

-- The vector of a row whose space is named model/dimension/number type/recipe; NULL for any other row, for zero, and for
-- what is no number. Only the direction counts: 32-bit numbers are scaled into the range of 16 bits.
CREATE FUNCTION acms.as_vector(space text, data bytea) RETURNS halfvec
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path FROM CURRENT AS $$
DECLARE
    said text[] := regexp_match(space, '/(\d{1,5})/(f16|f32)/[^/]*$');
    n integer := said[1];
    flat bytea := data || ''::bytea;  -- read once, not for every byte
    found float8[];
    biggest float8;
BEGIN
    IF said IS NULL OR n NOT BETWEEN 1 AND 16000
       OR (length(flat) <> n * (CASE said[2] WHEN 'f16' THEN 2 ELSE 4 END)) THEN
        RETURN NULL;
    ELSIF said[2] = 'f16' THEN
        found := ARRAY(
            SELECT CASE WHEN u & 31744 = 31744 THEN NULL
                        WHEN u & 31744 = 0 THEN (u & 1023) * 5.9604644775390625e-08::float8
                        ELSE (1024 + (u & 1023)) * power(2::float8, ((u >> 10) & 31) - 25) END
                   * CASE WHEN u > 32767 THEN -1 ELSE 1 END
            FROM (SELECT get_byte(flat, 2 * i) + (get_byte(flat, 2 * i + 1) << 8) AS u FROM generate_series(0, n - 1) AS i) b);
    ELSE
        found := ARRAY(
            SELECT CASE WHEN e = 255 THEN NULL
                        WHEN e = 0 THEN 0
                        ELSE (8388608 + (((b2 & 127) << 16) + (b1 << 8) + b0)) * power(2::float8, e - 150) END
                   * CASE WHEN b3 > 127 THEN -1 ELSE 1 END
            FROM (SELECT get_byte(flat, 4 * i) AS b0, get_byte(flat, 4 * i + 1) AS b1, get_byte(flat, 4 * i + 2) AS b2,
                         get_byte(flat, 4 * i + 3) AS b3,
                         ((get_byte(flat, 4 * i + 3) & 127) << 1) + (get_byte(flat, 4 * i + 2) >> 7) AS e
                  FROM generate_series(0, n - 1) AS i) b);
    END IF;
    SELECT max(abs(x)) INTO biggest FROM unnest(found) AS x;
    IF biggest IS NULL OR biggest = 0 OR array_position(found, NULL) IS NOT NULL THEN
        RETURN NULL;
    ELSIF said[2] = 'f32' THEN
        found := ARRAY(SELECT CASE WHEN abs(x) < biggest * 1e-8 THEN 0 ELSE x / biggest END FROM unnest(found) AS x);
    END IF;
    RETURN found::real[]::halfvec;
END $$;

-- By a trigger and not by the client: a process that was started before this migration writes its vectors too.
CREATE FUNCTION acms.keep_vectors() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM acms.vectors v USING changed d
        WHERE v.tenant_id = d.tenant_id AND v.context_id = d.context_id AND v.space = d.space AND v.version = d.version
          AND v.part = d.part;
    END IF;
    INSERT INTO acms.vectors (tenant_id, namespace, context_id, space, version, part, dim, embedding)
    SELECT f.tenant_id, f.found_in, f.context_id, f.space, f.version, f.part, vector_dims(f.embedding), f.embedding
    FROM (SELECT d.*, e.found_in, acms.as_vector(d.space, d.data) AS embedding
          FROM changed d JOIN acms.entries e
            ON e.tenant_id = d.tenant_id AND e.context_id = d.context_id AND e.version = d.version
          WHERE e.found_in IS NOT NULL OFFSET 0) f
    WHERE f.embedding IS NOT NULL
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_vectors AFTER INSERT ON acms.derived
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION acms.keep_vectors();
CREATE TRIGGER replace_vectors AFTER UPDATE ON acms.derived
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION acms.keep_vectors();

-- What is blanked is no longer searched, even where its derived rows stay. Erased rows of `derived` take theirs along.
CREATE FUNCTION acms.forget_vectors() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM acms.vectors v
    WHERE v.tenant_id = NEW.tenant_id AND v.context_id = NEW.context_id AND v.version = NEW.version
      AND v.space IN (SELECT DISTINCT s.space FROM acms.vectors s
                      WHERE s.tenant_id = NEW.tenant_id AND s.context_id = NEW.context_id);
    RETURN NULL;
END $$;
CREATE TRIGGER forget_vectors AFTER UPDATE OF found_in ON acms.entries
    FOR EACH ROW WHEN (OLD.found_in IS NOT NULL AND NEW.found_in IS NULL) EXECUTE FUNCTION acms.forget_vectors();

-- Places near a vector, nearest first: one by one where they are fewer than `exact`, by the index of their length where they
-- are many. An index full of others' vectors may give too few of this namespace: then one by one after all.
CREATE FUNCTION acms.nearest(tenant text, namespace text, space text, vector real[], exact integer, most integer)
RETURNS TABLE (context_id text, version bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    d constant integer := cardinality(vector);
    found bigint := 0;
BEGIN
    IF to_regclass(format('acms.vectors_%s', d)) IS NOT NULL AND (
        SELECT count(*) = greatest(exact, 1) FROM (
            SELECT FROM acms.vectors v
            WHERE v.tenant_id = nearest.tenant AND v.namespace = nearest.namespace AND v.space = nearest.space LIMIT greatest(exact, 1)) n
    ) THEN
        PERFORM set_config('hnsw.iterative_scan', 'strict_order', true),
                set_config('hnsw.ef_search', least(1000, greatest(100, most))::text, true),
                set_config('enable_sort', 'off', true);  -- the index, whatever is known of the table
        RETURN QUERY EXECUTE format('
            SELECT v.context_id, v.version FROM acms.vectors v
            WHERE v.tenant_id = $1 AND v.namespace = $2 AND v.space = $3 AND v.dim = %1$s
              AND EXISTS (SELECT FROM acms.contexts c
                          WHERE c.tenant_id = v.tenant_id AND c.context_id = v.context_id AND c.deleted_at IS NULL)
            ORDER BY v.embedding::halfvec(%1$s) <=> $4::halfvec(%1$s) LIMIT $5', d)
        USING tenant, namespace, space, vector, most;
        GET DIAGNOSTICS found = ROW_COUNT;
        PERFORM set_config('enable_sort', 'on', true);
    END IF;
    IF found < most THEN
        RETURN QUERY
        SELECT v.context_id, v.version FROM acms.vectors v
        WHERE v.tenant_id = nearest.tenant AND v.namespace = nearest.namespace AND v.space = nearest.space AND v.dim = d
          AND EXISTS (SELECT FROM acms.contexts c
                      WHERE c.tenant_id = v.tenant_id AND c.context_id = v.context_id AND c.deleted_at IS NULL)
        ORDER BY v.embedding <=> nearest.vector::halfvec LIMIT most;
    END IF;
END $$;
REVOKE ALL ON FUNCTION acms.nearest FROM PUBLIC;
GRANT EXECUTE ON FUNCTION acms.nearest TO acms_app;

ALTER TABLE acms.vectors ENABLE ROW LEVEL SECURITY;
ALTER TABLE acms.vectors FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON acms.vectors USING (tenant_id = current_setting('acms.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON acms.vectors TO acms_app;
