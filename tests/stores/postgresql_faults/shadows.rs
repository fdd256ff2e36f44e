//! Functions, operators, types and views with the names of built-in ones, in a schema of the search
//! path of memlock's user, such as `public`. None may be used: it would run with the user's rights.

use std::sync::Once;
use std::thread;

use log::LevelFilter;
use memlock_core::store::schemes;
use memlock_core::{ErrorKind, Extension, Insertion, Release, SetUp};
use memlock_tests::launch::{self, number, poll_until};
use memlock_tests::listener::Listener;
use memlock_tests::url;

use crate::poolers::Pgbouncer;
use crate::{LEASE, PATIENCE, Place, connect, shared};

/// A role whose search path begins with the shadows, and those of built-in names come behind them;
/// or in front, as is usual, where a shadow is used if it suits the arguments better.
const SEARCH_PATHS: [&str; 2] = ["shadows, pg_catalog", "\"$user\", shadows"];

fn place(search_path: &str) -> Place<'static> {
    static SHADOWS: Once = Once::new();
    SHADOWS.call_once(|| shared().shadow("shadows"));
    let place = Place::on(shared());
    place.server.sql(&format!("ALTER ROLE {} SET search_path = {search_path}", place.name));
    place
}

impl Place<'_> {
    fn intruders(&self) -> Vec<String> {
        self.intruders_of(&self.name)
    }

    /// Those who came with the rights of this user.
    fn intruders_of(&self, user: &str) -> Vec<String> {
        self.logged_of(user).into_iter().filter(|line| line.contains("INTRUDER")).collect()
    }

    /// Creates the schema as an earlier memlock did: its functions used the caller's search path.
    fn created_by_an_earlier_memlock(&self) {
        let text = include_str!("earlier.sql").replace("{schema}", &self.name);
        let text = text.replace("{unlogged}", "UNLOGGED");
        self.server.sql(&format!("SET ROLE {}; {text}", self.name));
    }

    /// The advisory lock of clients that create or replace something: a hash (FNV-1a) of the schema.
    fn turn(&self) -> i64 {
        let hash = format!("memlock {}", self.name)
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        hash as i64
    }

    /// Takes locks until the functions are replaced, which a busy server may put off.
    fn is_upgraded(&self) {
        self.becomes(Self::upgraded, "3");
    }

    /// Takes locks until this is so of the functions.
    fn becomes(&self, state: impl Fn(&Self) -> String, wanted: &str) {
        let is_so = || {
            is_lockable(&self.url());
            (state(self) == wanted).then_some(())
        };
        assert!(poll_until(PATIENCE, is_so).is_some(), "{} instead of {wanted}", state(self));
    }

    /// How many functions have which settings.
    fn settings(&self) -> String {
        self.server.sql(&format!(
            "SELECT count(proconfig) || ' ' || string_agg(DISTINCT proconfig::text, ' ') FROM pg_proc \
             WHERE pronamespace::regnamespace::text = '{}'",
            self.name
        ))
    }

    /// The functions that set the search path, or whose transactions do.
    fn upgraded(&self) -> String {
        self.server.sql(&format!(
            "SELECT count(*) FROM pg_proc WHERE pronamespace::regnamespace::text = '{}' \
             AND proconfig::text LIKE '%search_path%'",
            self.name
        ))
    }
}

fn is_lockable(url: &str) {
    let mut lock = connect(url).mutex("m", LEASE).unwrap().lock().unwrap();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// Each kind of operation, alone and in batches.
fn used(url: &str) {
    let client = connect(url);
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = mutex.lock().unwrap();
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert!(connect(url).mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    let semaphore = client.semaphore("s", 2, LEASE).unwrap();
    let mut permits = [(); 2].map(|()| semaphore.acquire().unwrap());
    assert!(semaphore.try_acquire().unwrap().is_none());
    for permit in &mut permits {
        assert_eq!(permit.release().unwrap(), Release::Released);
    }
    let mut list = client.distinct_list("l").unwrap();
    assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
    let inserted = list.insert_many(&["a", "b", "a"]).unwrap().unwrap();
    let firsts = inserted.iter().filter(|one| matches!(one, Insertion::First(_))).count();
    assert_eq!(firsts, 2, "{inserted:?}");
    assert!(list.tear_down().unwrap());
    let counter = client.counter("c").unwrap();
    assert!(counter.set_up(3).unwrap() && counter.try_acquire().unwrap());
    assert_eq!(counter.release().unwrap(), 3);
}

#[test]
fn no_function_operator_type_or_view_of_others_is_used() {
    for path in SEARCH_PATHS {
        let place = place(path);
        used(&place.url());
        used(&url::with(&place.url(), "prefix=again"));
        let bouncer = Pgbouncer::before(&place, "");
        used(&url::with(&bouncer.url, "prefix=pooled"));
        // In a transaction of the program's own, with the program's search path.
        let client = place.client("durable=no");
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        let release = lock.release_sql().unwrap();
        let mut psql = place.psql();
        psql.args(["-c", &format!("BEGIN; {release}; COMMIT")]);
        launch::run(psql);
        drop(client.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().expect("it is free"));
        assert_eq!(place.intruders(), Vec::<String>::new(), "{path}");
        // They are dangerous indeed.
        let mut psql = place.psql();
        psql.args(["-c", &format!("SELECT nextval('{}.numbers')", place.name)]);
        launch::run(psql);
        assert_eq!(place.intruders().len(), 1, "{path}");
    }
}

#[test]
fn functions_of_an_earlier_memlock_are_replaced_by_the_first_client_that_may() {
    for path in SEARCH_PATHS {
        let place = place(path);
        place.created_by_an_earlier_memlock();
        let visitor = place.visitor();
        place.server.sql(&format!(
            "ALTER ROLE {visitor} SET search_path = {path}; GRANT USAGE ON SCHEMA {0} TO {visitor}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {0} TO {visitor}; \
             GRANT USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA {0} TO {visitor}",
            place.name
        ));
        // One that may not is safe all the same, as long as the session is its own.
        used(&place.url_of(&visitor));
        assert_eq!(place.upgraded(), "0");
        let held = connect(&place.url_of(&visitor));
        let mut lock = held.mutex("held", LEASE).unwrap().lock().unwrap();
        place.is_upgraded();
        // Nothing was lost, and old statements go on.
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        for user in [&visitor, &place.name] {
            assert_eq!(place.intruders_of(user), Vec::<String>::new(), "{path}");
        }
        // What somebody has changed is replaced as well.
        for change in [
            "FUNCTION {}.live_1() RESET search_path",
            "FUNCTION {}.apply_1 SET search_path = public",
        ] {
            place.server.sql(&format!("ALTER {}", change.replace("{}", &place.name)));
            place.becomes(Place::settings, "3 {\"search_path=pg_catalog, pg_temp\"}");
            used(&url::with(&place.url(), &format!("prefix={}", number())));
        }
    }
}

/// To read a view runs its functions with the reader's rights.
#[test]
fn a_view_in_the_place_of_a_table_is_not_read() {
    let place = place(SEARCH_PATHS[1]);
    is_lockable(&place.url());
    for table in ["life", "items"] {
        let name = &place.name;
        place.server.sql(&format!(
            "ALTER TABLE {name}.{table} RENAME TO hidden; \
             CREATE VIEW {name}.{table} AS SELECT * FROM {name}.hidden WHERE shadows.alarm('view'); \
             ALTER VIEW {name}.{table} OWNER TO {name}"
        ));
        let error = place.client("durable=no").mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(
            error.to_string().contains(&format!("\"{table}\" is not as memlock creates it")),
            "{error}"
        );
        place
            .server
            .sql(&format!("DROP VIEW {name}.{table}; ALTER TABLE {name}.hidden RENAME TO {table}"));
    }
    assert_eq!(place.intruders(), Vec::<String>::new());
    is_lockable(&place.url());
}

/// Each of these grants one lock twice, or lets fences fall.
#[test]
fn a_table_without_its_key_or_with_other_columns_is_refused() {
    let place = Place::on(shared());
    is_lockable(&place.url());
    let name = &place.name;
    for (change, back, what) in [
        (
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey",
            "ALTER TABLE {}.items ADD PRIMARY KEY (key)",
            "items",
        ),
        (
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (key, version)",
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (key)",
            "items",
        ),
        (
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (key) DEFERRABLE",
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (key)",
            "items",
        ),
        (
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (version)",
            "ALTER TABLE {}.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (key)",
            "items",
        ),
        (
            "ALTER TABLE {}.items ALTER expires TYPE timestamp",
            "ALTER TABLE {}.items ALTER expires TYPE timestamptz",
            "items",
        ),
        // It would end some leases early.
        (
            "ALTER TABLE {}.items ALTER expires TYPE timestamptz(0)",
            "ALTER TABLE {}.items ALTER expires TYPE timestamptz",
            "items",
        ),
        (
            "ALTER TABLE {}.items ALTER version TYPE numeric",
            "ALTER TABLE {}.items ALTER version TYPE bigint",
            "items",
        ),
        (
            "ALTER TABLE {}.items ALTER expires DROP NOT NULL",
            "ALTER TABLE {}.items ALTER expires SET NOT NULL",
            "items",
        ),
        // It hides rows.
        (
            "ALTER TABLE {}.items ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE {}.items DISABLE ROW LEVEL SECURITY",
            "items",
        ),
        ("ALTER SEQUENCE {}.numbers CACHE 20", "ALTER SEQUENCE {}.numbers CACHE 1", "numbers"),
        (
            "ALTER TABLE {}.life DROP CONSTRAINT life_pkey",
            "ALTER TABLE {}.life ADD PRIMARY KEY (one)",
            "life",
        ),
        ("ALTER TABLE {}.life SET LOGGED", "ALTER TABLE {}.life SET UNLOGGED", "life"),
        (
            "ALTER TABLE {}.life ALTER id TYPE numeric",
            "ALTER TABLE {}.life ALTER id TYPE bigint",
            "life",
        ),
        ("ALTER SEQUENCE {}.numbers CYCLE", "ALTER SEQUENCE {}.numbers NO CYCLE", "numbers"),
        (
            "ALTER SEQUENCE {}.numbers INCREMENT -1",
            "ALTER SEQUENCE {}.numbers INCREMENT 1",
            "numbers",
        ),
        // Rules, triggers, keys of others, tables that inherit, and further unique keys.
        (
            "CREATE TRIGGER t BEFORE UPDATE ON {}.items FOR EACH ROW WHEN (NEW.version > 0) \
             EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "DROP TRIGGER t ON {}.items",
            "items",
        ),
        (
            "CREATE UNLOGGED TABLE {}.child (k text COLLATE \"C\" REFERENCES {}.items ON DELETE CASCADE)",
            "DROP TABLE {}.child",
            "items",
        ),
        ("CREATE UNIQUE INDEX u ON {}.items (version)", "DROP INDEX {}.u", "items"),
        (
            "CREATE RULE r AS ON DELETE TO {}.items DO INSTEAD NOTHING",
            "DROP RULE r ON {}.items",
            "items",
        ),
        ("CREATE TABLE {}.more () INHERITS ({}.items)", "DROP TABLE {}.more", "items"),
        // Expressions that each statement would evaluate, and a column whose name functions use.
        (
            "ALTER TABLE {}.items ALTER value SET DEFAULT lo_get(1)",
            "ALTER TABLE {}.items ALTER value DROP DEFAULT",
            "items",
        ),
        (
            "ALTER TABLE {}.life ALTER swept SET DEFAULT current_user",
            "ALTER TABLE {}.life ALTER swept SET DEFAULT ''",
            "life",
        ),
        (
            "ALTER TABLE {}.items ADD CONSTRAINT c CHECK (length(value) < 1000000)",
            "ALTER TABLE {}.items DROP CONSTRAINT c",
            "items",
        ),
        (
            "ALTER TABLE {}.life ADD CONSTRAINT c CHECK (one IS NOT NULL)",
            "ALTER TABLE {}.life DROP CONSTRAINT c",
            "life",
        ),
        (
            "ALTER TABLE {}.items ALTER version ADD GENERATED ALWAYS AS IDENTITY",
            "ALTER TABLE {}.items ALTER version DROP IDENTITY",
            "items",
        ),
        ("CREATE INDEX u ON {}.items (lower(key))", "DROP INDEX {}.u", "items"),
        ("CREATE INDEX u ON {}.items (key) WHERE version > 0", "DROP INDEX {}.u", "items"),
        (
            "ALTER TABLE {}.items ADD COLUMN item text",
            "ALTER TABLE {}.items DROP COLUMN item",
            "items",
        ),
        (
            "CREATE DOMAIN {}.d AS integer CHECK (VALUE > 0); ALTER TABLE {}.life ADD COLUMN d {}.d",
            "DROP DOMAIN {}.d CASCADE",
            "life",
        ),
    ] {
        place.server.sql(&change.replace("{}", name));
        let error = connect(&place.url()).mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{change}: {error}");
        let says = format!("\"{name}\".\"{what}\" is not as memlock creates it");
        assert!(error.to_string().contains(&says), "{change}: {error}");
        place.server.sql(&back.replace("{}", name));
        is_lockable(&place.url());
    }
    // What does not matter is not looked at.
    place.server.sql(&format!("ALTER ROLE {name} SET quote_all_identifiers = on"));
    is_lockable(&place.url());
    place.server.sql(&format!(
        "CREATE INDEX ON {name}.items (expires); \
         ALTER TABLE {name}.items ALTER key TYPE text COLLATE \"POSIX\""
    ));
    is_lockable(&place.url());
}

/// A pooler's sessions are not memlock's to set up, so that functions of an earlier memlock look names
/// up as they did. Locks go on, and the log says what to do.
#[test]
fn what_cannot_be_replaced_behind_a_pooler_is_logged_once_for_a_client() {
    let listener = Listener::at(LevelFilter::Warn);
    let place = Place::on(shared());
    place.created_by_an_earlier_memlock();
    place.server.sql(&format!(
        "GRANT {0} TO memlock; ALTER SCHEMA {0} OWNER TO memlock; GRANT USAGE ON SCHEMA {0} TO {0}",
        place.name
    ));
    let bouncer = Pgbouncer::before(&place, "");
    used(&bouncer.url);
    assert_eq!(place.upgraded(), "0");
    listener.heard().clear();
    let client = bouncer.client("pool=0");
    for name in ["m", "n"] {
        assert_eq!(
            client.mutex(name, LEASE).unwrap().lock().unwrap().unlock().unwrap(),
            Release::Released
        );
    }
    let warned = listener.heard();
    let [warning] =
        warned.iter().filter(|said| said.contains("of an earlier memlock")).collect::<Vec<_>>()[..]
    else {
        panic!("{warned:?}")
    };
    let print = format!("memlock doctor --print-schema 'postgresql://?schema={}'", place.name);
    assert!(warning.contains("may not replace them") && warning.contains(&print), "{warning}");
}

/// The owner of a function can change it at any time.
#[test]
fn a_superuser_calls_no_functions_of_others() {
    let place = Place::on(shared());
    is_lockable(&place.url());
    let superuser = place.visitor();
    place.server.sql(&format!("ALTER ROLE {superuser} SUPERUSER"));
    let url = place.url_of(&superuser);
    let refused = || connect(&url).mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    let error = refused();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    for words in [&superuser, "is a superuser", "owned by", &place.name, "GRANT USAGE ON SCHEMA"] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    // Each part counts.
    place.server.sql(&format!("REASSIGN OWNED BY {} TO {superuser}", place.name));
    is_lockable(&url);
    for part in ["TABLE {}.items", "FUNCTION {}.live_1()", "SEQUENCE {}.numbers", "SCHEMA {}"] {
        let part = part.replace("{}", &place.name);
        place.server.sql(&format!("ALTER {part} OWNER TO {}", place.name));
        assert!(refused().to_string().contains(&format!("owned by {},", place.name)), "{part}");
        place.server.sql(&format!("ALTER {part} OWNER TO memlock"));
        is_lockable(&url);
    }
    // So is a user who can become one.
    place.server.sql(&format!("ALTER FUNCTION {0}.live_1() OWNER TO {0}", place.name));
    let member = format!("member_of_{superuser}");
    place.server.sql(&format!("CREATE ROLE {member} LOGIN NOINHERIT IN ROLE memlock"));
    let error = connect(&place.url_of(&member)).mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert!(error.to_string().contains("can become one"), "{error}");
    let other = format!("other_{}", place.name);
    place.server.sql(&format!(
        "CREATE ROLE {other}; GRANT USAGE ON SCHEMA {0} TO {other}; ALTER ROLE {superuser} SET role = {other}",
        place.name
    ));
    assert!(refused().to_string().contains("can become one"));
    // Also if its role for the time being is the owner.
    place.server.sql(&format!("ALTER ROLE {superuser} SET role = {}", place.name));
    assert!(refused().to_string().contains("can become one"));
}

/// The schema is somebody else's by the time at which it is this client's turn to create it.
#[test]
fn a_superuser_is_refused_a_schema_that_a_stranger_creates_at_the_same_moment() {
    let place = Place::on(shared());
    let name = &place.name;
    let superuser = place.visitor();
    place.server.sql(&format!("ALTER ROLE {superuser} SUPERUSER"));
    let mut stranger = place.server.stranger();
    stranger.run(&format!("SELECT pg_advisory_lock({});", place.turn()));
    let schema = schemes::schema(&place.url()).unwrap();
    let error = thread::scope(|scope| {
        let url = url::with(&place.url_of(&superuser), "io_timeout=60s");
        let client = scope.spawn(move || connect(&url).mutex("m", LEASE).unwrap().try_lock());
        place.until(
            &format!(
                "FROM pg_stat_activity WHERE usename = '{superuser}' AND wait_event = 'advisory'"
            ),
            "1",
        );
        stranger.run(&format!(
            "SET ROLE {name}; {schema} RESET ROLE; SELECT pg_advisory_unlock({});",
            place.turn()
        ));
        client.join().unwrap().unwrap_err()
    });
    assert!(error.to_string().contains(&format!("owned by {name},")), "{error}");
}

/// Another session keeps the functions locked, or the advisory lock of those who replace them, which
/// everybody may take.
#[test]
fn locks_do_not_wait_for_functions_that_cannot_be_replaced() {
    let place = Place::on(shared());
    place.created_by_an_earlier_memlock();
    let mut stranger = place.server.stranger();
    stranger.run(&format!("BEGIN; ALTER FUNCTION {}.timeline_1() COST 99;", place.name));
    let url = url::with(&place.url(), "io_timeout=5s");
    is_lockable(&url);
    stranger.run("ROLLBACK;");
    stranger.run(&format!("SELECT pg_advisory_lock({});", place.turn()));
    is_lockable(&url);
    assert_eq!(place.upgraded(), "0");
    stranger.run(&format!("SELECT pg_advisory_unlock({});", place.turn()));
    is_lockable(&url);
    place.is_upgraded();
}
