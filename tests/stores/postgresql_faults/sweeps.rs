//! Sweeps: requests that delete the rows of items that ended.

use std::thread;
use std::time::Duration;

use memlock_core::store::Reply;
use memlock_tests::process::Server;
use memlock_tests::relay::{Fate, Relay};
use memlock_tests::sweeps::{Sweeping, key};
use memlock_tests::{daemon, url};

use crate::{Place, shared};

/// Longer than a connection is reused for without a look at it.
const IDLE: Duration = Duration::from_millis(150);

/// A place with a row that a sweep deletes.
fn place_with_a_row() -> (Place<'static>, Sweeping) {
    let place = Place::on(shared());
    let sweeping = Sweeping::at(&url::with(&place.url(), "durable=no"));
    insert_a_row(&place);
    (place, sweeping)
}

fn insert_a_row(place: &Place<'_>) {
    let name = &place.name;
    place.server.sql(&format!("INSERT INTO {name}.items VALUES ('old', '', 1, '-infinity')"));
}

/// Has a statement run before a row is deleted.
fn before_each_deletion(place: &Place<'_>, statement: &str) {
    let name = &place.name;
    place.server.sql(&format!(
        "CREATE FUNCTION {name}.hook() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN {statement}; RETURN OLD; END $$;
        CREATE TRIGGER hook BEFORE DELETE ON {name}.items FOR EACH ROW
        EXECUTE FUNCTION {name}.hook()"
    ));
}

fn is_swept(place: &Place<'_>) {
    place.until(&format!("FROM {}.items WHERE key = 'old'", place.name), "0");
}

fn session(place: &Place<'_>) -> String {
    place.server.sql(&format!("SELECT pid {}", place.sessions()))
}

#[test]
fn no_caller_waits_for_the_sweep_behind_its_batch() {
    let (place, sweeping) = place_with_a_row();
    let name = &place.name;
    // A deletion waits for the stranger.
    before_each_deletion(&place, &format!("PERFORM pg_advisory_xact_lock(hashtext('{name}'))"));
    let mut stranger = place.server.stranger();
    stranger.run(&format!("SELECT pg_advisory_lock(hashtext('{name}'));"));
    let session_before = session(&place);
    sweeping.store_until_due();
    place.until(&place.waiting(), "1");
    stranger.run("SELECT pg_advisory_unlock_all();");
    is_swept(&place);
    // The connection is used again, also after a pause.
    thread::sleep(IDLE);
    assert!(matches!(sweeping.add(&key("n")), Ok(Reply::Stored(_))));
    assert_eq!(session(&place), session_before);
}

/// The next batch has a connection of its own, and the server does not count as silent.
#[test]
fn a_connection_whose_sweep_takes_long_is_replaced() {
    let place = Place::on(shared());
    let relay = Relay::start(place.server.process().address());
    let url = place.url().replace(&place.server.process().address(), &relay.address());
    let sweeping = Sweeping::at(&url::with(&url, "durable=no&io_timeout=4s&connect_timeout=20s"));
    // The operation 8, on no key.
    let is_sweep =
        |burst: &[u8]| burst.windows(12).any(|some| some == b"\0\0\0\x04\0\0\0\x08\0\0\0\0");
    relay.decide(move |burst| if is_sweep(burst) { Fate::LoseReply } else { Fate::Pass });
    let session_before = session(&place);
    sweeping.store_until_due();
    let next = sweeping.add(&key("n"));
    assert!(matches!(next, Ok(Reply::Stored(_))), "{next:?}");
    assert!(!sweeping.is_silent(), "a sweep is no batch");
    assert_ne!(session(&place), session_before);
}

/// The next batch is not sent to a session that has ended.
#[test]
fn a_session_that_ends_behind_a_sweep_is_replaced() {
    let (place, sweeping) = place_with_a_row();
    sweeping.store_until_due();
    is_swept(&place);
    place.end_sessions();
    place.until(&place.sessions(), "0");
    let replaced = sweeping.add(&key("n"));
    assert!(matches!(replaced, Ok(Reply::Stored(_))), "{replaced:?}");
}

#[test]
fn a_sweep_that_is_refused_fails_no_batch() {
    let (place, sweeping) = place_with_a_row();
    before_each_deletion(&place, "RAISE EXCEPTION 'no'");
    let session_before = session(&place);
    sweeping.store_until_due();
    assert!(matches!(sweeping.add(&key("n")), Ok(Reply::Stored(_))));
    assert_eq!(session(&place), session_before);
    assert!(place.logged().iter().any(|line| line.contains("ERROR:  no")), "it was refused");
    place.server.sql(&format!("DROP TRIGGER hook ON {}.items", place.name));
    sweeping.store_until_due();
    is_swept(&place);
}

/// The connection is closed by the program, and its number is that of another file.
#[test]
fn what_a_daemon_opens_behind_a_sweep_is_left_alone() {
    let place = Place::on(shared());
    daemon::keeps_its_files_behind_a_sweep(&place.url());
}
