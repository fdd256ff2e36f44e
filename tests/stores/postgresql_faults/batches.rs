//! Batches: several transactions in one packet.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use memlock_core::ErrorKind;
use memlock_core::name::Key;
use memlock_core::store::{Expiry, Op, Replies, Reply, Returns, Route, Store};
use memlock_tests::client;
use memlock_tests::process::Server;
use memlock_tests::sweeps::key;
use memlock_tests::url;

use crate::{LEASE, Place, SOON, alone, shared};

/// A store, and three items that are there.
struct Items<'a> {
    place: Place<'a>,
    store: Arc<dyn Store>,
    keys: [Key; 3],
}

impl<'a> Items<'a> {
    fn at(place: Place<'a>, parameters: &str) -> Items<'a> {
        let store = connect(&place, parameters);
        let items = Items { place, store, keys: [key("one"), key("two"), key("three")] };
        let added = items.run(&items.keys.each_ref().map(add)).unwrap();
        assert!(matches!(added[..], [Reply::Stored(_), Reply::Stored(_), Reply::Stored(_)]));
        items
    }

    fn run(&self, ops: &[Op<'_>]) -> Replies {
        self.store.run(Route::of(&self.keys[0]), ops)
    }

    /// Appends to each.
    fn append(&self, value: &[u8]) -> Replies {
        self.run(&self.keys.each_ref().map(|key| Op::Append { key, value }))
    }

    fn values(&self) -> [String; 3] {
        let replies = self.run(&self.keys.each_ref().map(Op::get)).unwrap();
        let value = |reply: &Reply| match reply {
            Reply::Value(item) => String::from_utf8(item.value.clone()).unwrap(),
            other => panic!("{other:?}"),
        };
        [value(&replies[0]), value(&replies[1]), value(&replies[2])]
    }

    /// Each change of this item is refused with this SQLSTATE, so many times.
    fn refuse(&self, item: usize, code: &str, times: u32) {
        let Place { server, name } = &self.place;
        server.sql(&format!(
            "CREATE SEQUENCE {name}.refusals;
            CREATE FUNCTION {name}.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN
                IF OLD.key = '{key}' AND nextval('{name}.refusals') <= {times} THEN
                    RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
                END IF;
                RETURN NEW;
            END $$;
            GRANT USAGE ON {name}.refusals TO PUBLIC;
            CREATE TRIGGER refuse BEFORE UPDATE ON {name}.items FOR EACH ROW
            EXECUTE FUNCTION {name}.refuse()",
            key = self.keys[item],
        ));
    }

    fn sessions(&self) -> String {
        self.place
            .server
            .sql(&format!("SELECT string_agg(pid::text, ' ') {}", self.place.sessions()))
    }
}

fn connect(place: &Place<'_>, parameters: &str) -> Arc<dyn Store> {
    client::store(&url::with(&place.url(), parameters))
}

fn add(key: &Key) -> Op<'_> {
    Op::add(key, b"v", Expiry::After(LEASE), Returns::Version)
}

/// The transactions of one packet are no transaction together.
#[test]
fn a_row_that_is_locked_keeps_no_other_row_from_being_changed() {
    let items = Items::at(Place::on(shared()), SOON);
    let Place { server, name } = &items.place;
    let session = items.sessions();
    let mut stranger = server.stranger();
    stranger.run(&format!(
        "BEGIN; SELECT key FROM {name}.items WHERE key = '{}' FOR UPDATE;",
        items.keys[1]
    ));
    let failure = items.append(b"1").unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::Unknown, "{}", failure.error);
    assert!(failure.sent && failure.error.to_string().contains("the lock's row"), "{failure:?}");
    stranger.run("ROLLBACK;");
    assert_eq!(items.values(), ["v1", "v", "v1"]);
    assert_eq!(items.sessions(), session, "the connection is as good as before");
    // If nothing else was to be changed, nothing was.
    stranger.run(&format!("BEGIN; SELECT key FROM {name}.items FOR UPDATE;"));
    let append = Op::Append { key: &items.keys[1], value: b"2" };
    let failure = items.run(&[Op::get(&items.keys[0]), append, Op::get(&items.keys[2])]);
    let failure = failure.unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::Unreachable, "{}", failure.error);
    assert!(!failure.sent);
    stranger.run("ROLLBACK;");
    assert_eq!(items.values(), ["v1", "v", "v1"]);
}

/// Each of them is waited for.
#[test]
fn many_rows_that_are_locked_do_not_make_a_silent_server() {
    let items = Items::at(Place::on(shared()), SOON);
    let mut stranger = items.place.server.stranger();
    stranger.run(&format!("BEGIN; SELECT key FROM {}.items FOR UPDATE;", items.place.name));
    let failure = items.append(b"1").unwrap_err();
    assert!(failure.error.to_string().contains("the lock's row"), "{failure:?}");
    assert!(items.store.silence(Route::of(&items.keys[0])).is_none(), "it was silent");
    stranger.run("ROLLBACK;");
}

/// Another client notes the present life between two of its transactions, as after the restoration of
/// an older copy.
#[test]
fn a_life_that_changes_within_a_packet_repeats_no_change() {
    let items = Items::at(Place::on(shared()), "durable=no");
    let Place { server, name } = &items.place;
    // After so long, a packet compares the life.
    thread::sleep(Duration::from_millis(1100));
    server.sql(&format!(
        "CREATE SEQUENCE {name}.calls; GRANT USAGE ON {name}.calls TO PUBLIC;
        ALTER FUNCTION {name}.timeline_1() RENAME TO timeline_0;
        CREATE FUNCTION {name}.timeline_1() RETURNS pg_catalog.text LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp AS $$ -- Revision 3
        BEGIN
            IF nextval('{name}.calls') <= 1 THEN RETURN 'another one'; END IF;
            RETURN {name}.timeline_0();
        END $$"
    ));
    let failure = items.append(b"1").unwrap_err();
    assert!(failure.sent && failure.error.kind() == ErrorKind::Unknown, "{failure:?}");
    assert_eq!(items.values(), ["v", "v1", "v1"]);
}

/// What is read behind it sees the change.
#[test]
fn a_victim_of_others_is_sent_again_with_what_is_read_behind_it() {
    let items = Items::at(Place::on(shared()), "durable=no");
    items.refuse(1, "40001", 3);
    let [one, two, _] = &items.keys;
    let value = b"1";
    let ops = [Op::Append { key: one, value }, Op::Append { key: two, value }, Op::get(two)];
    let replies = items.run(&ops).unwrap();
    assert_eq!(replies[..2], [Reply::Written, Reply::Written]);
    assert!(matches!(&replies[2], Reply::Value(item) if item.value == b"v1"), "{replies:?}");
    assert_eq!(items.values(), ["v1", "v1", "v"], "the first one is not carried out again");
}

/// Otherwise the order of the changes would be another one.
#[test]
fn a_victim_of_others_is_not_sent_again_behind_a_later_change() {
    let items = Items::at(Place::on(shared()), "durable=no");
    items.refuse(1, "40P01", 1);
    let failure = items.append(b"1").unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::Unknown, "{}", failure.error);
    assert!(failure.sent);
    assert_eq!(items.values(), ["v1", "v", "v1"]);
}

/// A statement that was prepared by a refused request is there all the same.
#[test]
fn the_statement_of_a_session_is_prepared_once() {
    let items = Items::at(Place::on(shared()), "durable=no");
    items.place.end_sessions();
    items.place.until(&items.place.sessions(), "0");
    let items = Items { store: connect(&items.place, SOON), ..items };
    let mut stranger = items.place.server.stranger();
    stranger.run(&format!("BEGIN; SELECT key FROM {}.items FOR UPDATE;", items.place.name));
    // Here it is prepared, in a new session.
    let failure = items.run(&[Op::Append { key: &items.keys[1], value: b"1" }]).unwrap_err();
    assert!(failure.error.to_string().contains("the lock's row"), "{failure:?}");
    stranger.run("ROLLBACK;");
    let session = items.sessions();
    assert_eq!(items.append(b"2").unwrap(), [Reply::Written, Reply::Written, Reply::Written]);
    assert_eq!(items.sessions(), session);
    let again = |line: &String| line.contains("already exists");
    assert!(!items.place.logged().iter().any(again), "{:?}", items.place.logged());
}

/// The commit that waits for the disk is that of the last change, which is refused.
#[test]
fn what_was_changed_in_front_of_a_refusal_outlives_a_crash() {
    let server = alone();
    let items = Items::at(Place::on(&server), "durable=yes");
    items.refuse(2, "55P03", u32::MAX);
    let failure = items.append(b"1").unwrap_err();
    assert!(failure.sent, "{failure:?}");
    server.restart();
    items.place.server.sql(&format!("DROP TRIGGER refuse ON {}.items", items.place.name));
    let items = Items { store: connect(&items.place, "durable=yes"), ..items };
    assert_eq!(items.values(), ["v1", "v1", "v"]);
}

/// Each answer belongs to its operation, in packets of any size.
#[test]
fn long_batches_are_answered_in_order() {
    let items = Items::at(Place::on(shared()), "durable=no");
    let keys: Vec<Key> = (0..700).map(|number| key(&format!("n{number}"))).collect();
    let values: Vec<Vec<u8>> = (0..700).map(|number| vec![b'x'; number]).collect();
    let expiry = Expiry::After(Duration::from_secs(600));
    let adds: Vec<Op<'_>> = keys
        .iter()
        .zip(&values)
        .flat_map(|(key, value)| [Op::add(key, value, expiry, Returns::Version), Op::get(key)])
        .collect();
    let replies = items.run(&adds).unwrap();
    for (number, pair) in replies.chunks(2).enumerate() {
        let [Reply::Stored(stored), Reply::Value(item)] = pair else { panic!("{pair:?}") };
        assert_eq!((item.version, item.value.len()), (stored.version, number));
    }
}
