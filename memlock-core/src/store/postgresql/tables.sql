-- memlock's locks in PostgreSQL. Run this once if memlock's own user may not create a schema.
--
-- Only those may run CREATE SCHEMA who may create in the database, also if the schema is there.
DO $do$
BEGIN
    IF pg_catalog.to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $do$;

-- The numbers of versions and fences. This sequence is always logged, so that a crash does not take
-- numbers back. One that was dropped begins again with the time in microseconds.
DO $do$
BEGIN
    IF pg_catalog.to_regclass('{schema}.numbers') IS NULL THEN
        EXECUTE pg_catalog.format('CREATE SEQUENCE {schema}.numbers START %s',
            (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                OPERATOR(pg_catalog.*) 1000000)::bigint);
    END IF;
END $do$;

-- One row for each item. An item that was removed keeps its row, with an end in the past, until a
-- sweep deletes it: a lock that is taken again is an update in place.
CREATE {unlogged} TABLE IF NOT EXISTS {schema}.items (
    key pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    value pg_catalog.bytea NOT NULL,
    version bigint NOT NULL,
    expires pg_catalog.timestamptz NOT NULL
) WITH (fillfactor = 50);

-- One row: the life of the items. A crash that empties the table of the items empties this one, too.
CREATE {unlogged} TABLE IF NOT EXISTS {schema}.life (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id bigint NOT NULL,
    timeline pg_catalog.text NOT NULL,
    -- The last key that a sweep examined.
    swept pg_catalog.text COLLATE pg_catalog."C" NOT NULL DEFAULT ''
);
