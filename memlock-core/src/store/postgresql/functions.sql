-- Functions and operators of PostgreSQL are looked up in pg_catalog alone: a caller's search path may
-- name schemas in which others have created functions and operators of the same names, which would
-- run with the caller's rights. A client replaces functions of an earlier revision.

-- What `life.timeline` is compared with. It begins with the timeline of the server, which is another one
-- after a failover. Behind it is what is another one where an older copy may have been restored: the
-- start of the server, and the file of the table, whose path has the database in it. What the server does
-- not tell is left out. In the present life the number follows to which the sequence was raised then; a
-- sequence that is below it was set back.
CREATE OR REPLACE FUNCTION {schema}.timeline_1() RETURNS pg_catalog.text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$ -- Revision 3
DECLARE
    place text := '';
    copy text := ' ';
    present text;
BEGIN
    BEGIN
        place := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        copy := format('%s %s',
            (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
            pg_relation_filepath('{schema}.life'));
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;
    END;
    SELECT timeline INTO present FROM {schema}.life
    WHERE CASE WHEN starts_with(timeline, format('%s %s ', place, copy))
        THEN split_part(timeline, ' ', 4)::bigint <= pg_sequence_last_value('{schema}.numbers') END;
    RETURN coalesce(present, format('%s %s', place, copy));
END $body$;

-- The present life. A new one begins with numbers above all earlier ones, and so does a copy that may be
-- older: what it lacks may have been given to others. Locks that are held in a copy are still held.
CREATE OR REPLACE FUNCTION {schema}.live_1() RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$ -- Revision 3
DECLARE
    minute CONSTANT bigint := 60000000;
    micros CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    timeline_now text;
    known text;
    present bigint;
    raised bigint;
BEGIN
    SELECT id INTO present FROM {schema}.life WHERE timeline = {schema}.timeline_1();
    IF FOUND AND pg_sequence_last_value('{schema}.numbers') > micros - 2 * minute THEN
        RETURN present;
    END IF;
    -- Sweeps lock the row first.
    LOCK TABLE {schema}.life IN EXCLUSIVE MODE;
    timeline_now := {schema}.timeline_1();
    SELECT id, timeline INTO present, known FROM {schema}.life;
    IF known = timeline_now THEN
        -- For copies that cannot be noticed. Not to the present: a standby that lacks this step, and whose
        -- clock is behind, could not rise above it.
        IF pg_sequence_last_value('{schema}.numbers') <= micros - 2 * minute THEN
            PERFORM setval('{schema}.numbers', micros - minute);
        END IF;
        RETURN present;
    END IF;
    -- Numbers may have been taken back, but fewer than microseconds have passed since. The million is
    -- for those who draw numbers between these two steps, and for the last numbers of a primary, whose
    -- clock may have been ahead. Two copies of one state, whose clocks are behind, begin with
    -- different numbers.
    IF pg_sequence_last_value('{schema}.numbers') IS NOT NULL THEN
        raised := nextval('{schema}.numbers') + 1000000 + (random() * 1000000)::bigint;
    END IF;
    raised := setval('{schema}.numbers', greatest(raised, micros));
    IF split_part(known, ' ', 1) <> split_part(timeline_now, ' ', 1) OR present IS NULL THEN
        present := ('x' || md5(random()::text || clock_timestamp()::text || pg_backend_pid()::text))::bit(64)::bigint;
    END IF;
    DELETE FROM {schema}.life;
    INSERT INTO {schema}.life (id, timeline) VALUES (present, timeline_now || ' ' || raised);
    RETURN present;
END $body$;

-- One operation on one item. The new end of the item is `lease` from now, else `until`, else as it
-- is. NULL leaves the setting of the session: `patience` (for how many milliseconds the row may stay
-- locked by others) and `commits` (`synchronous_commit`). `of_life`: the life in which the client's
-- connection was opened; NULL if it need not be compared.
--
--   op                     code
--   1 add                  1 stored, 2 exists
--   2 get                  3 found, 4 missing, 5 too large
--   3 compare and set      1 stored, 4 missing, 6 another version
--   4 delete               7 deleted, 4 missing, 6 another version
--   5 append, 6 prepend    1 stored, 4 missing, 5 too large
--   7 increment            8 counted, 4 missing, 9 no number
--   8 sweep                0
--   any                    10 another life
CREATE OR REPLACE FUNCTION {schema}.apply_1(
    op integer, item pg_catalog.text, content pg_catalog.bytea, known bigint, lease interval,
    until pg_catalog.timestamptz, patience integer, commits pg_catalog.text, of_life bigint,
    OUT code integer, OUT number bigint, OUT body pg_catalog.bytea, OUT ends pg_catalog.timestamptz,
    OUT clock pg_catalog.timestamptz
) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$ -- Revision 3
DECLARE
    largest CONSTANT integer := 1048576;
    whole CONSTANT numeric := 18446744073709551616;
    words text;
    from_key text;
    to_key text;
BEGIN
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience::text, true);
    END IF;
    IF commits IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', commits, true);
    END IF;
    clock := clock_timestamp();
    IF of_life IS NOT NULL THEN
        PERFORM FROM {schema}.life WHERE id = of_life AND timeline = {schema}.timeline_1();
        IF NOT FOUND THEN
            code := 10;
            RETURN;
        END IF;
    END IF;
    IF op = 1 THEN
        FOR attempt IN 1..100 LOOP
            UPDATE {schema}.items AS i
            SET value = content, version = nextval('{schema}.numbers'),
                expires = coalesce(clock_timestamp() + lease, until, 'infinity')
            WHERE i.key = item AND i.expires <= clock_timestamp()
            RETURNING i.version INTO number;
            IF FOUND THEN
                code := 1;
                RETURN;
            END IF;
            PERFORM FROM {schema}.items AS i WHERE i.key = item;
            IF FOUND THEN
                code := 2;
                RETURN;
            END IF;
            -- The number of a new row would be drawn before others are kept out. So the row is
            -- created first, and then stored to like an old one.
            INSERT INTO {schema}.items (key, value, version, expires)
            VALUES (item, '', 0, '-infinity') ON CONFLICT DO NOTHING;
        END LOOP;
        RAISE EXCEPTION 'the row of % can be neither read nor created', item
            USING ERRCODE = 'insufficient_privilege';
    ELSIF op = 2 THEN
        SELECT CASE WHEN length(i.value) <= largest THEN i.value END, i.version, i.expires
        INTO body, number, ends FROM {schema}.items AS i
        WHERE i.key = item AND i.expires > clock_timestamp();
        IF NOT FOUND THEN
            code := 4;
        ELSIF body IS NULL THEN
            code := 5;
        ELSE
            code := 3;
        END IF;
    ELSIF op IN (3, 4) THEN
        IF op = 3 THEN
            UPDATE {schema}.items AS i
            SET value = content, version = nextval('{schema}.numbers'),
                expires = coalesce(clock_timestamp() + lease, until, i.expires)
            WHERE i.key = item AND i.version = known AND i.expires > clock_timestamp()
            RETURNING i.version INTO number;
            code := 1;
        ELSE
            UPDATE {schema}.items AS i SET expires = '-infinity'
            WHERE i.key = item AND i.version = known AND i.expires > clock_timestamp();
            code := 7;
        END IF;
        IF NOT FOUND THEN
            PERFORM FROM {schema}.items AS i WHERE i.key = item AND i.expires > clock_timestamp();
            code := CASE WHEN FOUND THEN 6 ELSE 4 END;
        END IF;
    ELSIF op IN (5, 6) THEN
        UPDATE {schema}.items AS i
        SET value = CASE WHEN op = 5 THEN i.value || content ELSE content || i.value END,
            version = nextval('{schema}.numbers')
        WHERE i.key = item AND i.expires > clock_timestamp()
            AND length(i.value) + length(content) <= largest
        RETURNING i.version INTO number;
        code := 1;
        IF NOT FOUND THEN
            -- An item that others have created since was missing.
            PERFORM FROM {schema}.items AS i WHERE i.key = item AND i.expires > clock_timestamp()
                AND length(i.value) + length(content) > largest;
            code := CASE WHEN FOUND THEN 5 ELSE 4 END;
        END IF;
    ELSIF op = 7 THEN
        FOR attempt IN 1..100 LOOP
            SELECT i.value INTO body FROM {schema}.items AS i
            WHERE i.key = item AND i.expires > clock_timestamp() FOR UPDATE;
            IF FOUND THEN
                words := rtrim(encode(substr(body, 1, 100), 'escape'), E' \t\r\n');
                IF words !~ '^[0-9]{1,20}$' OR words::numeric >= whole THEN
                    code := 9;
                    RETURN;
                END IF;
                words := ((words::numeric + CASE WHEN known < 0 THEN known + whole ELSE known END)
                    % whole)::text;
                body := convert_to(words, 'UTF8');
                UPDATE {schema}.items AS i
                SET value = body, version = nextval('{schema}.numbers') WHERE i.key = item;
                code := 8;
                RETURN;
            END IF;
            IF content IS NULL THEN
                code := 4;
                RETURN;
            END IF;
            UPDATE {schema}.items AS i
            SET value = content, version = nextval('{schema}.numbers'),
                expires = coalesce(clock_timestamp() + lease, until, 'infinity')
            WHERE i.key = item AND i.expires <= clock_timestamp();
            IF FOUND THEN
                body := content;
                code := 8;
                RETURN;
            END IF;
            INSERT INTO {schema}.items (key, value, version, expires)
            VALUES (item, '', 0, '-infinity') ON CONFLICT DO NOTHING;
        END LOOP;
        RAISE EXCEPTION 'the row of % can be neither read nor created', item
            USING ERRCODE = 'insufficient_privilege';
    ELSIF op = 8 THEN
        code := 0;
        SELECT swept INTO from_key FROM {schema}.life FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        SELECT max(key) INTO to_key FROM
            (SELECT i.key FROM {schema}.items AS i WHERE i.key > from_key ORDER BY i.key LIMIT known)
            AS examined;
        DELETE FROM {schema}.items AS i WHERE i.key IN
            (SELECT o.key FROM {schema}.items AS o
            WHERE o.key > from_key AND o.key <= to_key AND o.expires < clock - interval '1 minute'
            FOR UPDATE SKIP LOCKED);
        UPDATE {schema}.life SET swept = coalesce(to_key, '');
    END IF;
END $body$;
