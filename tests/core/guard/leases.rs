//! No lease is longer than the guard.

use memlock_core::{Client, Error, ErrorKind, Extension};

use super::{Bench, GUARD, SECOND, hold};

#[track_caller]
fn is_too_long<T>(outcome: Result<T, Error>) {
    let error = outcome.err().expect("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = error.to_string();
    assert!(text.contains("61 s") && text.contains("60 s") && text.ends_with('.'), "{text}");
}

#[test]
fn a_longer_lease_is_invalid_with_both_values() {
    let bench = Bench::start();
    let client = bench.client();
    let longer = GUARD + SECOND;
    is_too_long(client.mutex("m", longer));
    is_too_long(client.semaphore("s", 1, longer));
    is_too_long(client.open_semaphore("s", longer));
    let semaphore = client.semaphore("s", 1, GUARD).unwrap();
    is_too_long(semaphore.with_lease(longer));
    let mut lock = hold(&client, "m");
    is_too_long(lock.extend(longer));
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    let mut permit = semaphore.acquire().unwrap();
    is_too_long(permit.extend(longer));
    assert_eq!(permit.extend(GUARD).unwrap(), Extension::Extended);
    assert!(client.mutex("m", GUARD + std::time::Duration::from_millis(1)).is_err());
}

/// They are no leases, and nothing of them is put back.
#[test]
fn what_is_stored_for_longer_than_the_guard_is_not_a_lease() {
    let bench = Bench::start();
    let client = bench.client();
    drop(hold(&client, "m"));
    let _ = client.semaphore("s", 1, GUARD).unwrap().set_up(100 * GUARD).unwrap();
    let _ = client.distinct_list("l").unwrap().set_up(100 * GUARD).unwrap();
}

#[test]
fn a_guard_that_is_none_is_refused_in_words() {
    for (value, says) in [
        ("0", "duration"),
        ("0s", "duration"),
        ("500ms", "from 1s to 3600s"),
        ("999ms", "from 1s to 3600s"),
        ("x", "duration"),
        ("", "duration"),
        ("2h", "duration"),
        ("-5s", "duration"),
        ("3601s", "duration"),
    ] {
        let error = Client::connect(&format!("memcached://h?guard={value}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{value}: {error}");
        let text = error.to_string();
        assert!(text.contains("guard") && text.contains(says), "{value}: {text}");
        assert!(text.ends_with('.'), "{text}");
    }
    for value in ["1s", "1", "1000ms", "1500ms", "3600s", "3600"] {
        assert!(Client::connect(&format!("memcached://h?guard={value}")).is_ok(), "{value}");
    }
}

#[test]
fn stores_without_a_guard_refuse_it() {
    for url in ["memory://x?guard=5s", "sqlite:/tmp/x?guard=5s", "mysql://h/d?guard=5s"] {
        let error = Client::connect(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("\"guard\" is not known"), "{error}");
    }
}
