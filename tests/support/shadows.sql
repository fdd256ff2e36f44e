-- Functions, operators, types and views with the names of built-in ones, in a schema. Each warns of an
-- intruder when it is used.
CREATE SCHEMA {schema};
GRANT USAGE ON SCHEMA {schema} TO public;
CREATE FUNCTION {schema}.alarm(what pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE WARNING 'INTRUDER: %', what;
    RETURN true;
END $$;
SET check_function_bodies = off;
DO $do$
DECLARE
    -- Types of parameters, and what suits many arguments better.
    better CONSTANT text[][] := ARRAY[
        ['', ''], ['regclass', 'text'], ['name', 'text'], ['anyarray', 'integer[]'],
        ['anyarray', 'text[]'], ['anyelement', 'text'], ['"any"', 'integer'], ['"any"', 'text']];
    types CONSTANT text[] := ARRAY['smallint', 'integer', 'bigint', 'numeric', 'double precision',
        'text', 'name', 'bytea', 'boolean', 'oid', 'timestamptz', 'interval', 'integer[]'];
    one record;
    arguments text;
    made integer := 0;
    operation text;
BEGIN
    FOR one IN SELECT DISTINCT proname, format_type(prorettype, NULL) AS result, proretset,
            ARRAY(SELECT format_type(type, NULL) FROM unnest(proargtypes) AS type) AS given
        FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'a')
        AND prorettype NOT IN ('internal'::regtype, 'cstring'::regtype, 'trigger'::regtype)
    LOOP
        FOR pair IN 1..array_length(better, 1) LOOP
            arguments := array_to_string(array_replace(one.given, better[pair][1], better[pair][2]), ', ');
            CONTINUE WHEN pair > 1 AND arguments = array_to_string(one.given, ', ');
            BEGIN
                EXECUTE format(
                    'CREATE FUNCTION {schema}.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS '
                    '$$ BEGIN PERFORM {schema}.alarm(%L); RETURN%s; END $$',
                    one.proname, arguments, CASE WHEN one.proretset THEN 'SETOF' END,
                    one.result, one.proname || '(' || arguments || ')',
                    CASE WHEN NOT one.proretset AND one.result <> 'void' THEN ' NULL' END);
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END LOOP;
    END LOOP;
    FOR one IN
        SELECT oprname::text AS name, format_type(oprleft, NULL) AS l, format_type(oprright, NULL) AS r,
            format_type(oprresult, NULL) AS result
        FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft <> 0
        UNION SELECT name, l, r, CASE WHEN name = '||' THEN 'text' WHEN name ~ '^[-+*/%]$' THEN 'numeric'
            ELSE 'boolean' END
        FROM unnest(ARRAY['=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '%', '||', '~', '!~']) AS name,
            unnest(types) AS l, unnest(types) AS r
    LOOP
        made := made + 1;
        operation := format('{schema}.operator_%s', made);
        BEGIN
            EXECUTE format(
                'CREATE FUNCTION %s(%s, %s) RETURNS %s LANGUAGE plpgsql AS '
                '$$ BEGIN PERFORM {schema}.alarm(%L); RETURN NULL; END $$',
                operation, one.l, one.r, one.result, one.l || ' ' || one.name || ' ' || one.r);
            EXECUTE format('CREATE OPERATOR {schema}.%s (FUNCTION = %s, LEFTARG = %s, RIGHTARG = %s)',
                one.name, operation, one.l, one.r);
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    FOREACH arguments IN ARRAY ARRAY['text', 'bytea', 'timestamptz', 'name', 'oid'] LOOP
        EXECUTE format('CREATE DOMAIN {schema}.%I AS pg_catalog.%I CHECK ({schema}.alarm(%L))',
            arguments, arguments, arguments);
    END LOOP;
    FOREACH arguments IN ARRAY ARRAY['pg_class', 'pg_namespace', 'pg_proc', 'pg_database',
        'pg_stat_activity', 'pg_stat_replication', 'pg_prepared_xacts', 'pg_roles', 'pg_attribute',
        'pg_collation', 'pg_constraint', 'pg_index', 'pg_inherits', 'pg_rewrite', 'pg_sequence',
        'pg_trigger']
    LOOP
        EXECUTE format('CREATE VIEW {schema}.%I AS SELECT {schema}.alarm(%L)', arguments, arguments);
    END LOOP;
    -- Some cannot be created, such as those with types of no values.
    IF (SELECT count(*) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace) < 4000
        OR (SELECT count(*) FROM pg_operator WHERE oprnamespace = '{schema}'::regnamespace) < 1000
    THEN
        RAISE EXCEPTION 'too few were created';
    END IF;
END $do$;
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO public;
