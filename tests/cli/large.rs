//! Items that are larger than memlock ever writes: each is said to be, and hides nothing else.

use memlock_tests::server::Memcached;
use serde_json::Value;

use crate::tool::{done, held, memlock};

/// A server with a lock of ours, and a value of 2 MiB under this key.
fn with_large(key: &str) -> (Memcached, memlock_core::Lock) {
    let server = Memcached::with_args(&["-I", "8m"]);
    let lock = held(&server, "m");
    let value = "x".repeat(2 << 20);
    server.plain().set(key, &value, 0);
    (server, lock)
}

#[test]
fn a_value_that_is_too_large_hides_no_other_item_from_ls() {
    for (key, kind) in [("lock:big", "lock"), ("semaphore:big", "semaphore"), ("list:big", "list")]
    {
        let (server, _lock) = with_large(key);
        let said = done(memlock(&server, &["ls"]));
        assert_eq!(
            (said.code, said.out.lines().count(), said.err.as_str()),
            (Some(0), 3, ""),
            "{said:?}"
        );
        let row = said.out.lines().find(|line| line.contains(" big ")).unwrap();
        assert!(
            row.starts_with(kind) && row.contains("a value of 2.0 MiB, which was not read"),
            "{said:?}"
        );
        assert!(
            said.out.lines().any(|line| line.contains(" m ") && line.contains("held")),
            "{said:?}"
        );
        let listed = done(memlock(&server, &["ls", "--json"])).json();
        let big = listed.as_array().unwrap().iter().find(|entry| entry["name"] == "big").unwrap();
        assert_eq!(
            (&big["kind"], &big["unread_bytes"]),
            (&kind.into(), &(2 << 20).into()),
            "{listed}"
        );
    }
}

#[test]
fn a_queue_that_is_too_large_hides_neither_its_lock_nor_its_holder() {
    let (server, lock) = with_large("lock:m%wait");
    let said = done(memlock(&server, &["ls"]));
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 2), "{said:?}");
    assert!(said.out.contains("held") && said.out.contains("not read"), "{said:?}");
    let shown = done(memlock(&server, &["show", "m", "--json"]));
    assert_eq!(shown.code, Some(76), "{shown:?}");
    let all = shown.json();
    assert_eq!(
        (&all["lock"]["held"], &all["lock"]["waiters"]),
        (&true.into(), &Value::Null),
        "{all}"
    );
    assert_eq!(all["lock"]["token"], lock.token().to_string());
    assert_eq!(all["unread"], serde_json::json!(["lock waiters"]));
    assert!(shown.err.contains("lock:m%wait") && shown.err.contains("2097152 bytes"), "{shown:?}");
}

#[test]
fn show_says_what_is_too_large_and_shows_the_rest() {
    let (server, _lock) = with_large("semaphore:m");
    let said = done(memlock(&server, &["show", "m"]));
    assert_eq!((said.code, said.err.lines().count()), (Some(76), 1), "{said:?}");
    assert!(said.out.contains("held") && said.err.contains("semaphore:m"), "{said:?}");
    assert!(said.err.contains("2097152 bytes, and memlock reads no more than 1 MiB"), "{said:?}");
    let (server, _lock) = with_large("lock:big");
    done(memlock(&server, &["show", "big"])).ended(76).complains("lock:big");
}
