-- Schema 5. Where the sessions of a namespace stand is asked before each recall across them: those without a name, too, are
-- found without a look at all the others.
-- needs: 1

CREATE INDEX IF NOT EXISTS contexts_unnamed ON acms.contexts (tenant_id, namespace) WHERE key IS NULL AND deleted_at IS NULL;
