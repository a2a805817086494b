-- Schema 2. `contexts.derived` counts on the root only, as `epoch` does: the counter of a fork tree goes on behind the
-- highest number any of its contexts gave. Rows keep their numbers: readers keep no watermark across a restart.

UPDATE contexts SET derived = (SELECT max(c.derived) FROM contexts c WHERE c.root = contexts.ref) WHERE root = ref;
UPDATE contexts SET derived = 0 WHERE root <> ref;
