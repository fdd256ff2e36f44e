//! Sweeps: requests that delete the rows of items that ended. The first one examines rows, and the
//! second one deletes what is not needed.

use memlock_core::ErrorKind;
use memlock_core::store::Reply;
use memlock_tests::launch::until;
use memlock_tests::mysql::USER;
use memlock_tests::sweeps::{Sweeping, key};
use memlock_tests::{daemon, url};

use crate::{Alone, Place, shared};

/// The row that a sweep deletes.
const OLD: &str = "lock:old";

/// A place with that row.
fn place_with_a_row(parameters: &str) -> (Place<'static>, Sweeping) {
    let place = Place::on(shared());
    let sweeping = Sweeping::at(&url::with(&place.url(), parameters));
    place.sql(&format!("INSERT INTO memlock_items VALUES ('{OLD}', '', 1, 0)"));
    (place, sweeping)
}

fn stores(sweeping: &Sweeping, name: &str) {
    let stored = sweeping.add(&key(name));
    assert!(matches!(stored, Ok(Reply::Stored(_))), "{name}: {stored:?}");
}

fn is_swept(place: &Place<'_>) {
    let rows = format!("SELECT COUNT(*) FROM memlock_items WHERE name='{OLD}'");
    until("it is swept", || place.sql(&rows) == "0\n");
}

/// What the sessions of memlock are, and what they run.
fn sessions(place: &Place<'_>, what: &str) -> String {
    let condition = format!("user='{USER}' AND db='{}'", place.database);
    place.sql(&format!("SELECT {what} FROM information_schema.processlist WHERE {condition}"))
}

#[test]
fn no_caller_waits_for_the_sweep_behind_its_batch() {
    let (place, sweeping) = place_with_a_row("");
    let session = sessions(&place, "id");
    let mut stranger = place.locked(OLD);
    sweeping.store_until_due();
    stores(&sweeping, "next");
    until("a row is waited for", || sessions(&place, "info").starts_with("DELETE"));
    stranger.run("COMMIT;");
    is_swept(&place);
    stores(&sweeping, "last");
    assert_eq!(sessions(&place, "id"), session);
}

/// Each batch has a connection of its own, which sweeps before it is closed.
#[test]
fn a_client_without_idle_connections_sweeps() {
    let (place, sweeping) = place_with_a_row("pool=0");
    sweeping.store_until_due();
    is_swept(&place);
}

/// The next batch is not sent to a session that has ended.
#[test]
fn a_session_that_ends_behind_a_sweep_is_replaced() {
    let (place, sweeping) = place_with_a_row("");
    sweeping.store_until_due();
    stores(&sweeping, "next");
    is_swept(&place);
    place.server.sql(&format!("KILL {}", sessions(&place, "id")));
    until("it has ended", || sessions(&place, "id").is_empty());
    stores(&sweeping, "last");
}

/// The batch is refused between the two requests of a sweep.
#[test]
fn a_sweep_goes_on_behind_a_batch_that_is_refused() {
    let (place, sweeping) = place_with_a_row("io_timeout=3s&connect_timeout=20s");
    let session = sessions(&place, "id");
    let mut stranger = place.locked(OLD);
    sweeping.store_until_due();
    let refused = sweeping.add(&key("old")).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unreachable, "{}", refused.error);
    stranger.run("COMMIT;");
    stores(&sweeping, "next");
    is_swept(&place);
    assert_eq!(sessions(&place, "id"), session);
}

/// The connection is closed by the program, and its number is that of another file.
#[test]
fn what_a_daemon_opens_behind_a_sweep_is_left_alone() {
    let place = Place::on(shared());
    daemon::keeps_its_files_behind_a_sweep(&place.url());
}

/// A client waits for a moment before it closes a connection, so that the server can answer.
#[test]
fn connections_that_are_closed_behind_a_sweep_do_not_count_as_aborted() {
    const COUNT: usize = 8;
    let server = Alone::get();
    let place = Place::on(&server);
    let aborted = || -> usize {
        let status = place.sql("SHOW GLOBAL STATUS LIKE 'Aborted_clients'");
        status.split_whitespace().last().unwrap().parse().unwrap()
    };
    let before = aborted();
    for _ in 0..COUNT {
        Sweeping::at(&place.url()).store_until_due();
    }
    until("they are closed", || sessions(&place, "id").is_empty());
    // On a busy machine an answer may come too late.
    assert!(aborted() < before + COUNT, "all {COUNT} are aborted");
}
