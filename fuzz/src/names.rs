//! Names and keys: what users choose, on its way to a command line. The input is a prefix and two
//! names, with a line's end between them.

use memlock_core::fuzzing::{list_item, percent_decode, percent_encode};
use memlock_core::name::{Key, Keyspace, MAX_NAME, check_name};
use memlock_core::store::Route;

pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |&byte| byte == b'\n');
    let (Some(prefix), Some(a), Some(b)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    coding(a);
    for name in [a, b] {
        let fit = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(&0);
        assert_eq!(check_name(name).is_ok(), fit);
    }
    let Ok(prefix) = std::str::from_utf8(prefix) else { return };
    let keys = match Keyspace::new(prefix) {
        Ok(keys) => keys,
        Err(_) => {
            let unfit = |byte: u8| !(b'!'..=b'~').contains(&byte) || byte == b'%';
            assert!(prefix.len() > 64 || prefix.bytes().any(unfit));
            Keyspace::default()
        }
    };
    all_keys_differ(&keys, a, b);
    as_it_is(&keys, a);
}

/// The key of another program's item is the very name, or none.
fn as_it_is(keys: &Keyspace, name: &[u8]) {
    let Ok(key) = keys.exact(name) else { return };
    assert!(!name.is_empty() && key.as_str().as_bytes().ends_with(name));
    for text in [key.as_str(), key.waiters().as_str()] {
        assert!(
            text.len() <= 250 && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte)),
            "{text}"
        );
    }
}

fn coding(bytes: &[u8]) {
    let text = percent_encode(bytes);
    assert!(text.bytes().all(|byte| (b'!'..=b'~').contains(&byte)));
    assert_eq!(percent_decode(&text).as_deref(), Some(bytes));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(decoded) = percent_decode(text) {
        assert!(decoded.len() <= text.len());
        assert_eq!(percent_decode(&percent_encode(&decoded)), Some(decoded));
    }
}

/// No item of one name is also that of another, or of another kind; and each key is fit for the
/// wire.
fn all_keys_differ(keys: &Keyspace, a: &[u8], b: &[u8]) {
    let made = |name: &[u8]| -> Vec<Key> {
        let (lock, session) = (keys.lock(name), keys.session(name));
        let generation = "0123456789abcdef0123456789abcdef";
        let semaphore = keys.semaphore(name);
        let waiters = [lock.waiters(), semaphore.waiters()];
        let items = ['k', 'n', 'c'].map(|kind| list_item(keys, kind, generation, name));
        [lock, semaphore, session].into_iter().chain(waiters).chain(items).collect()
    };
    let (of_a, of_b) = (made(a), made(b));
    for key in of_a.iter().chain(&of_b) {
        let text = key.as_str();
        assert!((1..=250).contains(&text.len()), "{text}");
        assert!(text.bytes().all(|byte| (b'!'..=b'~').contains(&byte)), "{text}");
    }
    for (i, one) in of_a.iter().enumerate() {
        for (j, other) in of_b.iter().enumerate() {
            assert_eq!(one == other, i == j && a == b, "{one} and {other}");
            assert!(one != other || Route::of(one) == Route::of(other));
        }
    }
}
