//! What only locks in a table suffer: strangers that lock their rows, settings of the server, users
//! without rights, full tables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, Error, ErrorKind, Extension, Insertion, Lock, Release};
use memlock_tests::mysql::{DATABASE, MariaDb};
use memlock_tests::process::Server;

const LEASE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(20);

/// The server of all tests that leave its settings alone, under prefixes of their own.
fn shared() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(MariaDb::start_fast)
}

fn client(server: &MariaDb, parameters: &str) -> Client {
    Client::connect(&format!("{}?{parameters}", server.url())).unwrap()
}

fn try_lock(client: &Client, name: &str) -> Option<Lock> {
    client.mutex(name, LEASE).unwrap().try_lock().unwrap()
}

fn refused(client: &Client, name: &str) -> Error {
    client.mutex(name, LEASE).unwrap().try_lock().map(drop).unwrap_err()
}

/// A transaction of another program, which has locked the row of an item.
struct Stranger {
    session: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stranger {
    fn locks(server: &MariaDb, key: &str) -> Stranger {
        let mut command = server.session();
        command.arg(DATABASE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = command.spawn().unwrap();
        let (input, output) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
        let mut stranger = Stranger { session, input, output: BufReader::new(output) };
        stranger.run(&format!(
            "BEGIN; SELECT number>0 FROM memlock_items WHERE name='{key}' FOR UPDATE;"
        ));
        let mut line = String::new();
        stranger.output.read_line(&mut line).unwrap();
        assert_eq!(line, "1\n", "the row is there, and locked");
        stranger
    }

    fn run(&mut self, statements: &str) {
        writeln!(self.input, "{statements}").unwrap();
        self.input.flush().unwrap();
    }

    fn ends(mut self) {
        self.run("COMMIT; SELECT 'done';");
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}

/// A fence that is drawn before the row is locked is none.
#[test]
fn fences_rise_in_the_order_of_holding() {
    let last = AtomicU64::new(0);
    let grants = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_secs(5);
    thread::scope(|scope| {
        for _ in 0..8 {
            let client = client(shared(), "prefix=order:");
            let (last, grants) = (&last, &grants);
            scope.spawn(move || {
                while Instant::now() < end {
                    let Some(mut lock) = try_lock(&client, "m") else { continue };
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert!(before < lock.fence(), "{} after {before}", lock.fence());
                    grants.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
    let grants = grants.into_inner();
    assert!(grants > 200, "{grants} grants prove little");
}

/// `NOW(6)` is the time at which a statement began, before it waited for the row.
#[test]
fn a_lock_that_ends_while_its_row_is_waited_for_is_granted() {
    let holder = client(shared(), "prefix=ends:&io_timeout=10s");
    let other = client(shared(), "prefix=ends:&io_timeout=10s");
    let mutex = holder.mutex("m", Duration::from_secs(1)).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    let began = Instant::now();
    let stranger = Stranger::locks(shared(), "ends:lock:m");
    thread::scope(|scope| {
        // Both wait for the row, and neither may decide by the time at which it began.
        let extension = scope.spawn(|| held.extend(Duration::from_secs(20)));
        let grant = scope.spawn(|| other.mutex("m", LEASE).unwrap().try_lock());
        thread::sleep(Duration::from_millis(1500).saturating_sub(began.elapsed()));
        assert!(!extension.is_finished() && !grant.is_finished(), "they do not wait for the row");
        stranger.ends();
        let (extension, grant) = (extension.join().unwrap(), grant.join().unwrap());
        assert!(!matches!(extension, Ok(Extension::Extended)), "it was over: {extension:?}");
        assert!(grant.unwrap().is_some(), "it was free");
    });
}

#[test]
fn a_row_that_a_stranger_keeps_locked_holds_no_call_up() {
    let client = client(shared(), "prefix=stuck:&io_timeout=800ms");
    drop(try_lock(&client, "m").unwrap());
    let mut other = try_lock(&client, "other").unwrap();
    let stranger = Stranger::locks(shared(), "stuck:lock:m");
    let began = Instant::now();
    let error = refused(&client, "m");
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(5), "{taken:?}");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("kept the row locked"), "{error}");
    assert_eq!(other.unlock().unwrap(), Release::Released, "other rows are free");
    stranger.ends();
    assert!(try_lock(&client, "m").is_some(), "nothing was left behind");
}

/// As a deadlock, or another node of a Galera cluster, would answer.
#[test]
fn a_deadlock_is_tried_again() {
    let server = MariaDb::start_fast();
    let client = client(&server, "io_timeout=1s");
    drop(try_lock(&client, "first").unwrap());
    // The counter is not part of the transaction that the signal rolls back.
    let until = |tries: u32| {
        format!(
            "USE {DATABASE}; CREATE OR REPLACE TABLE tries (n INT) ENGINE=MyISAM;
             DELIMITER //
             CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON memlock_items FOR EACH ROW BEGIN
               INSERT INTO tries VALUES (1);
               IF (SELECT COUNT(*) FROM tries) < {tries} THEN
                 SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213;
               END IF;
             END//"
        )
    };
    server.sql(&until(4));
    assert!(try_lock(&client, "m").is_some());
    assert_eq!(server.sql("SELECT COUNT(*) FROM locks.tries"), "4\n");
    server.sql(&until(1_000_000));
    let began = Instant::now();
    let error = refused(&client, "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    server.sql("DROP TRIGGER locks.refuse");
    assert!(try_lock(&client, "n").is_some(), "nothing was left behind");
}

/// A server whose settings are all different from the defaults.
#[test]
fn settings_of_the_server_do_not_matter() {
    let server = MariaDb::start(&[
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT,\
         SIMULTANEOUS_ASSIGNMENT,NO_UNSIGNED_SUBTRACTION,IGNORE_SPACE",
        "--default-time-zone=+05:30",
        "--init-connect=SET time_zone='-11:00', innodb_lock_wait_timeout=50",
        "--transaction-isolation=SERIALIZABLE",
        "--autocommit=0",
        "--character-set-server=utf16",
        "--collation-server=utf16_general_ci",
        "--skip-character-set-client-handshake",
        "--lower-case-table-names=1",
        "--log-bin=binlog",
        "--binlog-format=STATEMENT",
        "--innodb-rollback-on-timeout",
        "--default-storage-engine=MyISAM",
        "--innodb-snapshot-isolation=ON",
        "--innodb-flush-log-at-trx-commit=0",
        "--max-allowed-packet=1M",
    ]);
    let (one, two) = (client(&server, ""), client(&server, ""));
    let mut last = 0;
    for _ in 0..5 {
        let mut lock = try_lock(&one, "m").unwrap();
        assert!(lock.fence() > last);
        last = lock.fence();
        assert!(try_lock(&two, "m").is_none());
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert!(lock.check().unwrap());
        assert!(try_lock(&two, "m").is_none(), "the time zone does not matter");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let short = one.mutex("short", Duration::from_secs(1)).unwrap().try_lock().unwrap().unwrap();
    let began = Instant::now();
    assert!(two.mutex("short", LEASE).unwrap().lock_for(PATIENCE).unwrap().is_some());
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    drop(short);
    let mut list = one.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    assert!(matches!(list.insert("key").unwrap(), Some(Insertion::First(_))));
    assert!(matches!(list.insert("key").unwrap(), Some(Insertion::Duplicate(_))));
    let error = list.insert("x".repeat(600_000)).map(drop).unwrap_err();
    assert!(error.to_string().contains("64 KiB") || error.to_string().contains("bytes"), "{error}");
}

#[test]
fn names_are_compared_byte_by_byte() {
    let (one, two) = (client(shared(), "prefix=n:"), client(shared(), "prefix=n:"));
    let long = "n".repeat(3000);
    let names = ["name", "Name", "NAME", "name ", "n\u{e4}me", "na_me", "na%me", &long];
    let held: Vec<_> = names.iter().map(|name| try_lock(&one, name).unwrap()).collect();
    assert!(names.iter().all(|name| try_lock(&two, name).is_none()));
    drop(held);
    assert!(names.iter().all(|name| try_lock(&two, name).is_some()));
}

#[test]
fn eight_clients_create_the_table_at_once() {
    let server = MariaDb::start_fast();
    for _ in 0..5 {
        let holders: Vec<_> = thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| client(&server, "io_timeout=5s")).collect();
            let tries = clients.into_iter().map(|client| {
                scope.spawn(move || client.mutex("m", LEASE).unwrap().try_lock().unwrap())
            });
            let tries: Vec<_> = tries.collect();
            tries.into_iter().filter_map(|attempt| attempt.join().unwrap()).collect()
        });
        assert_eq!(holders.len(), 1);
        drop(holders);
        server.sql("DROP TABLE locks.memlock_items");
    }
}

#[test]
fn errors_say_what_to_do_and_show_no_password() {
    let server = MariaDb::start_fast();
    server.sql(
        "CREATE USER reader@'%' IDENTIFIED BY 'se-cret'; GRANT SELECT ON locks.* TO reader@'%';
         CREATE USER no_rights@'%' IDENTIFIED BY 'se-cret'",
    );
    let address = server.process().address();
    let at = |login: &str, database: &str| {
        Client::connect(&format!("mysql://{login}@{address}/{database}")).unwrap()
    };
    for (client, kind, says) in [
        (at("memlock:se-cret", DATABASE), ErrorKind::Config, "password"),
        (at("nobody:se-cret", DATABASE), ErrorKind::Config, "password"),
        (at("memlock:pass-word", "missing"), ErrorKind::Config, "missing"),
        (at("no_rights:se-cret", DATABASE), ErrorKind::Config, "database"),
        (at("reader:se-cret", DATABASE), ErrorKind::Config, "CREATE TABLE"),
    ] {
        let error = refused(&client, "m");
        assert_eq!(error.kind(), kind, "{error}");
        let said = error.to_string();
        assert!(said.contains(says), "{said}");
        assert!(said.contains(&address), "{said}");
        assert!(!said.contains("se-cret") && !said.contains("pass-word"), "{said}");
        let shown = format!("{client:?}");
        assert!(!shown.contains("se-cret") && !shown.contains("pass-word"), "{shown}");
    }
    // Rights that suffice once the table is there.
    let client = client(&server, "");
    drop(try_lock(&client, "m").unwrap());
    server.sql("GRANT INSERT, UPDATE, DELETE ON locks.memlock_items TO reader@'%'");
    assert!(try_lock(&at("reader:se-cret", DATABASE), "m").is_some());
    let error = refused(&at("reader:se-cret", "locks?engine=MEMORY"), "m");
    assert!(error.to_string().contains("engine=MEMORY"), "{error}");
}

#[test]
fn a_read_only_server_is_unreachable_and_loses_nothing() {
    let server = MariaDb::start_fast();
    let client = client(&server, "");
    let mut lock = try_lock(&client, "m").unwrap();
    server.sql("SET GLOBAL read_only = 1");
    let error = refused(&client, "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(lock.check().unwrap());
    assert!(lock.unlock().is_err());
    server.sql("SET GLOBAL read_only = 0");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(try_lock(&client, "n").is_some());
}

#[test]
fn a_full_table_in_memory_grants_nothing_and_loses_nothing() {
    let server = MariaDb::start(&["--max-heap-table-size=256K"]).with_parameters("?engine=MEMORY");
    let client = Client::connect(&server.url()).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match client.mutex(format!("{}", held.len()), LEASE).unwrap().try_lock() {
            Ok(lock) => held.push(lock.unwrap()),
            Err(error) => break error,
        }
        assert!(held.len() < 1000, "it is never full");
    };
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("max_heap_table_size"), "{error}");
    assert!(held.len() > 20, "{}", held.len());
    assert!(held.iter().all(|lock| lock.check().unwrap()));
    assert_eq!(held.remove(0).unlock().unwrap(), Release::Released);
    thread::sleep(Duration::from_millis(1100));
    assert!(try_lock(&client, "another").is_some(), "what is over makes room");
    assert!(held.iter().all(|lock| lock.check().unwrap()));
}

#[test]
fn a_session_that_is_killed_is_replaced() {
    let server = MariaDb::start_fast();
    let client = client(&server, "io_timeout=5s");
    let mut lock = try_lock(&client, "m").unwrap();
    let kill_all = || {
        let ids = server.sql("SELECT id FROM information_schema.processlist WHERE user='memlock'");
        for id in ids.lines() {
            server.sql(&format!("KILL {id}"));
        }
    };
    kill_all();
    thread::sleep(Duration::from_millis(150));
    assert!(lock.check().unwrap(), "a lock is no session");
    // Killed while a statement waits for a row.
    let stranger = Stranger::locks(&server, "lock:m");
    thread::scope(|scope| {
        let released = scope.spawn(|| lock.unlock());
        thread::sleep(Duration::from_millis(300));
        kill_all();
        thread::sleep(Duration::from_millis(100));
        stranger.ends();
        assert_eq!(released.join().unwrap().unwrap(), Release::Released);
    });
    assert!(try_lock(&client, "m").is_some());
}

#[test]
fn too_many_connections_are_told() {
    let server = MariaDb::start(&["--max-connections=10", "--innodb-flush-log-at-trx-commit=0"]);
    let clients: Vec<_> = (0..12).map(|_| client(&server, "")).collect();
    let outcomes: Vec<_> = clients
        .iter()
        .map(|client| client.mutex("m", LEASE).unwrap().try_lock().map(drop))
        .collect();
    let error = outcomes.into_iter().find_map(Result::err).expect("one too many");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
}

#[test]
fn a_small_packet_is_told() {
    let server =
        MariaDb::start(&["--max-allowed-packet=16K", "--innodb-flush-log-at-trx-commit=0"]);
    let client = client(&server, "");
    let mut list = client.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let error = list.insert("x".repeat(60_000)).map(drop).unwrap_err();
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
    assert!(matches!(list.insert("short").unwrap(), Some(Insertion::First(_))));
    assert!(try_lock(&client, "m").is_some());
}

#[test]
fn a_unix_socket_leads_to_the_same_locks() {
    let there = Client::connect(&shared().url_of_socket()).unwrap();
    let held = try_lock(&there, "by a socket").unwrap();
    assert!(try_lock(&client(shared(), ""), "by a socket").is_none());
    drop(held);
}

#[test]
fn rows_of_the_past_are_swept() {
    let server = MariaDb::start_fast();
    let client = client(&server, "");
    let held = try_lock(&client, "held").unwrap();
    server.sql(
        "USE locks; INSERT INTO memlock_items SELECT CONCAT('lock:past ', seq), 'x', 1,
         (UNIX_TIMESTAMP() - 7200) * 1000000 FROM seq_1_to_3000;
         INSERT INTO memlock_items SELECT CONCAT('lock:recent ', seq), 'x', 1,
         (UNIX_TIMESTAMP() - 60) * 1000000 FROM seq_1_to_10",
    );
    for number in 0..2000 {
        drop(try_lock(&client, &format!("busy {}", number % 7)).unwrap());
    }
    let count = |what: &str| {
        let name =
            format!("SELECT COUNT(*) FROM locks.memlock_items WHERE name LIKE 'lock:{what}%'");
        server.sql(&name).trim().parse::<u32>().unwrap()
    };
    assert_eq!((count("past"), count("recent")), (0, 10));
    assert!(held.check().unwrap());
}

/// A value that another program wrote is neither read whole nor taken for a lock's.
#[test]
fn foreign_rows_break_nothing() {
    let server = MariaDb::start_fast();
    let client = client(&server, "");
    drop(try_lock(&client, "first").unwrap());
    server.sql(
        "USE locks;
         INSERT INTO memlock_items VALUES ('lock:huge', REPEAT('x', 3000000), 1, ~0);
         INSERT INTO memlock_items VALUES ('lock:strange', '', 0, ~0);
         INSERT INTO memlock_items VALUES (x'ff00', x'ff', 1, ~0)",
    );
    assert!(try_lock(&client, "huge").is_none() && try_lock(&client, "strange").is_none());
    let error = client.mutex("huge", LEASE).unwrap().owner().unwrap_err();
    assert!(error.to_string().contains("3000000 bytes"), "{error}");
    assert!(try_lock(&client, "m").is_some());
}

#[test]
fn a_lock_is_released_with_the_callers_transaction_or_not_at_all() {
    let server = MariaDb::start(&[
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
        "--default-time-zone=-07:00",
        "--innodb-flush-log-at-trx-commit=0",
    ]);
    let (one, two) = (client(&server, ""), client(&server, "io_timeout=500ms"));
    let mut lock = try_lock(&one, "m").unwrap();
    let statement = lock.release_sql().unwrap();
    // In one process of the administrator's, whose default database is another one.
    let run = |end: &str| {
        server.sql(&format!("USE mysql; BEGIN; {statement}; SELECT ROW_COUNT(); {end}"))
    };
    assert_eq!(run("ROLLBACK"), "1\n");
    assert!(try_lock(&two, "m").is_none(), "it was rolled back");
    let mut command = server.session();
    let mut session = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = session.stdin.take().unwrap();
    let mut output = BufReader::new(session.stdout.take().unwrap());
    writeln!(input, "BEGIN; {statement}; SELECT ROW_COUNT();").unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "1\n");
    let error = refused(&two, "m");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "nobody gets it meanwhile: {error}");
    writeln!(input, "COMMIT; SELECT 'done';").unwrap();
    output.read_line(&mut line).unwrap();
    let mut next = try_lock(&two, "m").expect("it was committed");
    assert_eq!(run("COMMIT"), "0\n", "the next holder's lock is not released");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(next.check().unwrap());
    assert_eq!(next.unlock().unwrap(), Release::Released);
    session.kill().unwrap();
    session.wait().unwrap();
}

/// Makes a certificate for the name `localhost`. Returns the directory with it.
fn certify() -> PathBuf {
    let name = format!("memlock-mysql-tls-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(directory.join("key.pem"));
    openssl.arg("-out").arg(directory.join("cert.pem"));
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // The server is another user.
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(directory.join("key.pem"), readable).unwrap();
    directory
}

#[test]
fn connections_are_encrypted_and_the_server_is_verified() {
    let plain = client(shared(), "tls=verify");
    let error = refused(&plain, "m");
    assert!(error.to_string().contains("does not encrypt"), "{error}");
    let directory = certify();
    let file = |name: &str| directory.join(name).display().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let server =
        MariaDb::start(&[&format!("--ssl-cert={certificate}"), &format!("--ssl-key={key}")]);
    server.sql("ALTER USER memlock@'%' REQUIRE SSL");
    let by_address = server.url();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let trusted = format!("{by_name}?tls=verify&tls_ca={certificate}");
    let trusting = Client::connect(&trusted).unwrap();
    let lock = try_lock(&trusting, "m").unwrap();
    let mut list = trusting.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    // Several records of TLS.
    let keys: Vec<String> = (0..3000).map(|number| format!("key {number}")).collect();
    assert_eq!(list.insert_many(&keys).unwrap().unwrap().len(), 3000);
    assert!(lock.check().unwrap());
    for (url, kind, says) in [
        (by_address.clone(), ErrorKind::Config, "password"),
        (format!("{by_name}?tls=verify"), ErrorKind::Unreachable, "TLS"),
        (format!("{by_address}?tls=verify&tls_ca={certificate}"), ErrorKind::Unreachable, "TLS"),
    ] {
        let error = refused(&Client::connect(&url).unwrap(), "m");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    fs::remove_dir_all(directory).unwrap();
}
