//! Locks in a PostgreSQL: what commands say of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use memlock_tests::launch::{end, poll_until, spawn};
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;
use memlock_tests::url;
use serde_json::Value;

use crate::doctor::{examined, finding};
use crate::mysql::{looking_creates_nothing, run};
use crate::tool::{PATIENCE, done, memlock_at};

/// The URL of a schema of a test's own.
fn schema(url: &str, name: &str) -> String {
    url::with(url, &format!("schema={name}"))
}

fn finding_about(url: &str, what: &str) -> Value {
    finding(&examined(url, &[]).1, what).clone()
}

#[test]
fn commands_that_look_create_nothing_and_the_first_lock_does() {
    let server = Postgresql::shared();
    let url = schema(&server.url(), "looked_at");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'looked_at'";
    let is_untouched = || server.sql(schemas) == "0";
    let said = looking_creates_nothing(&url, "the first lock creates them", is_untouched);
    assert!(said.out.contains("is a primary") && said.out.contains("not logged"), "{said:?}");
    run(&schema(&server.socket_url(), "looked_at"), &["run", "x", "true"]).ended(0);
}

/// What the command prints is all that an administrator has to run.
#[test]
fn the_printed_schema_is_the_one_that_is_used() {
    // It changes the rights of the database.
    let server = Postgresql::start();
    let url = url::with(&server.url(), "schema=Locks&durable=yes");
    let print = |url: &str| done(memlock_at("memory://x", &["doctor", "--print-schema", url]));
    let said = print(&url);
    assert_eq!(said.code, Some(0), "{said:?}");
    server.sql(&said.out);
    server.sql(&said.out);
    server.sql("REVOKE ALL ON DATABASE postgres FROM public; CREATE ROLE plain LOGIN");
    let plain = url.replace("memlock@", "plain@");
    run(&plain, &["run", "x", "true"]).ended(78).complains("GRANT CONNECT ON DATABASE");
    server.sql("GRANT CONNECT ON DATABASE postgres TO plain");
    let said = run(&plain, &["run", "x", "true"]);
    assert_eq!(said.code, Some(78), "{said:?}");
    assert!(said.err.contains("'postgresql://?schema=Locks&durable=yes'"), "{said:?}");
    let (_, grants) = said.err.split_once("and then: ").unwrap();
    server.sql(grants);
    run(&plain, &["run", "x", "true"]).ended(0);
    for (name, text) in [("postgresql", "UNLOGGED"), ("postgres", "\"memlock\".items")] {
        let said = print(name);
        assert!(said.out.contains(text), "{said:?}");
    }
    print("memcached").ended(78).complains("postgresql");
}

#[test]
fn doctor_names_the_session_that_makes_locks_slow_and_what_is_unfit() {
    let server = Postgresql::shared();
    server.sql("CREATE ROLE examiner LOGIN SUPERUSER");
    let url = schema(&server.url().replace("memlock@", "examiner@"), "examined");
    assert_eq!(run(&url, &["run", "x", "true"]).code, Some(0));
    assert_eq!(finding_about(&url, "snapshots")["verdict"], "ok");
    let mut psql = server.psql();
    psql.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = spawn(psql).unwrap();
    let mut words = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_backend_pid(); ";
    writeln!(words, "{begin}").unwrap();
    let session = lines.next().unwrap().unwrap();
    // After some ten seconds.
    let named = || {
        thread::sleep(Duration::from_secs(1));
        let found = finding_about(&url, "snapshots");
        found["said"].as_str().unwrap().contains(&session).then_some(())
    };
    assert!(poll_until(PATIENCE, named).is_some(), "process {session} is not named");
    end(&mut child);
    let tables = finding_about(&url::with(&url, "durable=yes"), "tables");
    assert_eq!(tables["verdict"], "bad", "{tables}");
    server.sql("ALTER ROLE examiner SET default_transaction_read_only = on");
    assert_eq!(finding_about(&url, "role")["verdict"], "bad");
}

/// `ls`, `show` and `doctor` are run by administrators, with more rights than those of programs.
#[test]
fn what_administrators_look_with_uses_no_functions_of_others() {
    let server = Postgresql::shared();
    server.shadow("shadows");
    let url = schema(&server.url(), "of_clerk");
    run(&url, &["run", "books", "true"]).ended(0);
    server.sql(
        "CREATE ROLE admin LOGIN SUPERUSER; ALTER ROLE admin SET search_path = shadows, pg_catalog; \
         CREATE ROLE clerk LOGIN; ALTER ROLE clerk SET search_path = shadows, pg_catalog; \
         ALTER SCHEMA of_clerk OWNER TO clerk; \
         GRANT ALL ON ALL TABLES IN SCHEMA of_clerk TO clerk; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA of_clerk TO clerk",
    );
    let of = |user: &str| url.replace("memlock@", &format!("{user}@"));
    let (clerk, admin) = (of("clerk"), of("admin"));
    let held = ["run", "books", "--", env!("CARGO_BIN_EXE_memlock"), "--url"];
    for (user, args, code, says) in [
        (&admin, &["ls"][..], 78, "is a superuser"),
        (&admin, &["doctor"], 2, "functions run with all rights"),
        (&clerk, &["ls"], 0, "books"),
        (&clerk, &["show", "books"], 0, "state      held"),
        (&clerk, &["release", "books", "--force", "--yes"], 79, "\"books\" on"),
        (&clerk, &["doctor"], 0, "arrive"),
    ] {
        let said = run(&clerk, &[&held[..], &[user], args].concat());
        assert!(format!("{}{}", said.out, said.err).contains(says), "{args:?}: {said:?}");
        assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
    }
    let intruders = || server.logged().matches("INTRUDER").count();
    assert_eq!(intruders(), 0);
    // The clerk, or what acts as one, could change what the superuser calls.
    run(&admin, &["run", "x", "true"]).ended(78).complains("is a superuser");
    let owner = finding_about(&admin, "owner");
    assert!(owner["verdict"] == "bad" && owner["said"].as_str().unwrap().contains("clerk"));
    assert_eq!(finding_about(&clerk, "owner")["verdict"], "ok");
    // They are dangerous indeed.
    server.sql("SET ROLE admin; SET search_path = shadows, pg_catalog; SELECT 1 + 1");
    assert_eq!(intruders(), 1);
}

#[test]
fn doctor_reports_functions_that_use_the_search_path_of_their_callers() {
    let server = Postgresql::shared();
    let url = schema(&server.url(), "changed");
    run(&url, &["run", "x", "true"]).ended(0);
    assert_eq!(finding_about(&url, "functions")["verdict"], "ok");
    server.sql(
        "CREATE ROLE user_of_changed LOGIN; GRANT USAGE ON SCHEMA changed TO user_of_changed; \
         GRANT ALL ON ALL TABLES IN SCHEMA changed TO user_of_changed; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA changed TO user_of_changed; \
         ALTER FUNCTION changed.apply_1 RESET ALL",
    );
    let functions = finding_about(&url.replace("memlock@", "user_of_changed@"), "functions");
    let print = "memlock doctor --print-schema 'postgresql://?schema=changed'";
    assert!(functions["verdict"] == "bad", "{functions}");
    assert!(functions["mend"].as_str().unwrap().contains(print), "{functions}");
    // As it says.
    server.sql(&done(memlock_at("memory://x", &["doctor", "--print-schema", &url])).out);
    assert_eq!(finding_about(&url, "functions")["verdict"], "ok");
    // The owner's own doctor takes a lock.
    server.sql("ALTER FUNCTION changed.live_1 RESET ALL");
    assert_eq!(finding_about(&url, "functions")["verdict"], "bad");
    let is_mended = || (finding_about(&url, "functions")["verdict"] == "ok").then_some(());
    assert!(poll_until(PATIENCE, is_mended).is_some());
}

/// As PostgreSQL's own programs take it.
#[test]
fn passwords_come_from_the_environment_and_from_the_file() {
    let server = Postgresql::shared();
    server.sql("CREATE ROLE locker LOGIN PASSWORD 'geheim'");
    server.sql("GRANT CONNECT, CREATE ON DATABASE postgres TO locker");
    let hba = server.files().join("data/pg_hba.conf");
    let text = fs::read_to_string(&hba).unwrap();
    fs::write(&hba, format!("host all locker all scram-sha-256\n{text}")).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let url = schema(&server.url().replace("memlock@", "locker@"), "of_locker");
    let file = server.files().join("passwords");
    let command = |name: &str, value: &str| {
        let mut command = memlock_at(&url, &["run", "x", "true"]);
        command.env_remove("PGPASSWORD").env("PGPASSFILE", "/nothing").env(name, value);
        done(command)
    };
    let is_asked = || (command("LANG", "C").code == Some(78)).then_some(());
    assert!(poll_until(PATIENCE, is_asked).is_some());
    command("PGPASSWORD", "geheim").ended(0);
    assert_eq!(command("PGPASSWORD", "falsch").code, Some(78));
    let port = server.process().port();
    fs::write(&file, format!("127.0.0.1:{port}:postgres:locker:geheim\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    command("PGPASSFILE", file.to_str().unwrap()).ended(0);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let said = command("PGPASSFILE", file.to_str().unwrap());
    assert!(said.code == Some(78) && !said.err.contains("geheim"), "{said:?}");
}
