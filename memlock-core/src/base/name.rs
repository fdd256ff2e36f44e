//! Names that users choose, and the keys under which the server stores them.
//!
//! A name is any bytes without NUL, 1 byte to 64 KiB. A key is a string that memcached accepts: at
//! most 250 bytes from `!` to `~`. Bytes outside that range and `%` itself are percent-encoded, so
//! that plain names stay readable, and `lock:xyz` is exactly the key that a PHP or Java program
//! beside memlock would use. In a key beyond 200 bytes, a SHA-256 hash replaces the name. memlock's
//! own additions start with `%` and a letter beyond `F`, which no name can produce, so that no name
//! can collide with memlock's own items.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 64 * 1024;

/// A longer key is hashed. The rest, up to memcached's 250 bytes, is room for memlock's suffixes.
const MAX_PLAIN_KEY: usize = 200;

/// The longest prefix that a URL may request, in bytes.
const MAX_PREFIX: usize = 64;

/// The longest key of another program's item: memcached accepts 250 bytes, and the queue's key is
/// longer by `%wait`.
const LONGEST_EXACT: usize = 245;

/// Checks the name of a mutex or a session.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is empty, longer than 64 KiB or
/// contains NUL.
pub fn check_name(name: &[u8]) -> Result<()> {
    check_length("name", name)?;
    if name.contains(&0) {
        return Err(Error::invalid("The name contains a NUL byte, which no name may."));
    }
    Ok(())
}

/// Checks a key of a distinct list: as a name, but NUL bytes are allowed.
pub(crate) fn check_member(member: &[u8]) -> Result<()> {
    check_length("key", member)
}

fn check_length(what: &str, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Err(Error::invalid(format!("The {what} is empty: give at least one byte.")));
    }
    if bytes.len() > MAX_NAME {
        return Err(Error::invalid(format!(
            "The {what} has {} bytes, and the longest allowed is {MAX_NAME}.",
            bytes.len()
        )));
    }
    Ok(())
}

/// The end of the key of a queue.
const QUEUE: &str = "%wait";
/// The key of the item in which the clients of a server agree, behind the prefix.
const CONFIG: &str = "memlock%config";

/// A key as sent to the server: 1 to 250 bytes, each from `!` to `~`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    text: Arc<str>,
    is_shared: bool,
}

impl Key {
    fn new(text: String) -> Key {
        Key { text: text.into(), is_shared: false }
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether programs that do not use memlock read and write the item, too: it is stored as they
    /// store it.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The key of the queue of waiters for this item.
    pub fn waiters(&self) -> Key {
        Key::new(Key::queue_of(&self.text))
    }

    /// Whether the item is a queue of waiters.
    #[cfg(any(
        feature = "memcached",
        feature = "mysql",
        feature = "postgresql",
        feature = "redis"
    ))]
    pub(crate) fn is_queue(&self) -> bool {
        !self.is_shared && self.text.ends_with(QUEUE)
    }

    /// The key of the queue beside the item with this key.
    pub fn queue_of(item: &str) -> String {
        format!("{item}{QUEUE}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// A family of named items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Mutexes.
    Lock,
    /// Semaphores.
    Semaphore,
    /// Sessions of distinct lists.
    List,
}

impl Family {
    const ALL: [Family; 3] = [Family::Lock, Family::Semaphore, Family::List];

    fn stem(self) -> &'static str {
        match self {
            Family::Lock => "lock:",
            Family::Semaphore => "semaphore:",
            Family::List => "list:",
        }
    }
}

/// The family and name of the item that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The family of the item.
    pub family: Family,
    /// The name of the item; `None` for a long name, of which the key has only a hash.
    pub name: Option<Vec<u8>>,
}

/// The prefix of the hash of a long name.
const HASHED: &str = "%sha256:";

/// Creates keys from names, under the prefix that the URL requests.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    prefix: Box<str>,
}

impl Keyspace {
    /// A key space whose keys all begin with `prefix`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the prefix is longer than 64 bytes or
    /// contains `%` or bytes that memcached does not accept.
    pub fn new(prefix: &str) -> Result<Keyspace> {
        if prefix.len() > MAX_PREFIX || !prefix.bytes().all(is_plain) {
            return Err(Error::config(format!(
                "The URL's parameter prefix is not usable: take at most {MAX_PREFIX} visible ASCII \
                 characters other than '%'."
            )));
        }
        Ok(Keyspace { prefix: prefix.into() })
    }

    /// The key of a mutex: `lock:<name>`.
    pub fn lock(&self, name: &[u8]) -> Key {
        self.key(Family::Lock.stem(), name)
    }

    /// The key of a semaphore: `semaphore:<name>`.
    pub fn semaphore(&self, name: &[u8]) -> Key {
        self.key(Family::Semaphore.stem(), name)
    }

    /// The key of an item that other programs use under this name, which is taken unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name that memcached does not accept,
    /// or that is too long to have a queue beside it.
    pub fn exact(&self, name: &[u8]) -> Result<Key> {
        let key = std::str::from_utf8(name).ok().map(|name| format!("{}{name}", self.prefix));
        let fits = |key: &String| {
            key.len() <= LONGEST_EXACT && key.bytes().all(|byte| (b'!'..=b'~').contains(&byte))
        };
        match key.filter(fits) {
            Some(key) if !name.is_empty() => Ok(Key { is_shared: true, ..Key::new(key) }),
            _ => Err(Error::invalid(format!(
                "{:?} cannot be an item's key: take 1 to {LONGEST_EXACT} visible ASCII characters, \
                 the prefix included.",
                String::from_utf8_lossy(name)
            ))),
        }
    }

    /// The name of a key that [`Keyspace::exact`] has made, and of no other.
    pub(crate) fn exact_name<'a>(&self, key: &'a Key) -> Option<&'a str> {
        key.is_shared.then_some(key.as_str()).and_then(|key| key.strip_prefix(&*self.prefix))
    }

    /// The key of a session of a distinct list: `list:<session>`.
    pub fn session(&self, name: &[u8]) -> Key {
        self.key(Family::List.stem(), name)
    }

    /// The key of one item of a session's generation. `kind` is a letter that does not occur in a
    /// percent code.
    pub(crate) fn list_item(&self, kind: char, generation: &str, rest: &[u8]) -> Key {
        self.key(&format!("list:%{kind}{generation}:"), rest)
    }

    /// The family and name of the item with this key, as far as they can be determined: the inverse
    /// of [`Keyspace::lock`], [`Keyspace::semaphore`] and [`Keyspace::session`]. `None` for all
    /// other items.
    pub fn read(&self, key: &str) -> Option<Named> {
        let rest = key.strip_prefix(&*self.prefix)?;
        let (family, rest) = Family::ALL
            .into_iter()
            .find_map(|family| rest.strip_prefix(family.stem()).map(|rest| (family, rest)))?;
        if let Some(digest) = rest.strip_prefix(HASHED) {
            let is_digest = digest.len() == 64
                && digest.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
            return is_digest.then_some(Named { family, name: None });
        }
        let name = percent_decode(rest)?;
        let mut again = String::new();
        percent_encode(&name, &mut again);
        (again == rest && !name.is_empty()).then_some(Named { family, name: Some(name) })
    }

    /// Whether an item of a distinct list has this key. The queue of a counter that another program
    /// has named `list:…` has not.
    pub fn is_list(&self, key: &str) -> bool {
        let rest = key.strip_prefix(&*self.prefix);
        rest.is_some_and(|rest| rest.starts_with(Family::List.stem()) && !rest.ends_with(QUEUE))
    }

    /// The key of an item that belongs to a store. No name produces it: a `%` in a name is encoded.
    pub fn internal(&self, word: &str) -> Key {
        Key::new(format!("{}%{word}", self.prefix))
    }

    /// The key of the item in which the clients of a server agree on what they all have to know.
    pub fn config(&self) -> Key {
        Key::new(format!("{}{CONFIG}", self.prefix))
    }

    fn key(&self, family: &str, name: &[u8]) -> Key {
        // The exact capacity for a plain name, so that the key is not copied once more at the end.
        let mut key = String::with_capacity(self.prefix.len() + family.len() + name.len());
        key.push_str(&self.prefix);
        key.push_str(family);
        let stem = key.len();
        if name.len() <= MAX_PLAIN_KEY {
            percent_encode(name, &mut key);
        }
        if name.len() > MAX_PLAIN_KEY || key.len() > MAX_PLAIN_KEY {
            key.truncate(stem);
            key.push_str(HASHED);
            key.push_str(&hex(&Sha256::digest(name)));
        }
        Key::new(key)
    }
}

fn is_plain(byte: u8) -> bool {
    (b'!'..=b'~').contains(&byte) && byte != b'%'
}

/// Appends `bytes` to `text`; everything except visible ASCII, and `%`, is written as `%XX`.
pub(crate) fn percent_encode(bytes: &[u8], text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if let (true, Ok(plain)) =
        (bytes.iter().all(|&byte| is_plain(byte)), std::str::from_utf8(bytes))
    {
        text.push_str(plain);
        return;
    }
    for &byte in bytes {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// Decodes the `%XX` codes in `text`; `None` if a code is invalid.
pub(crate) fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (code, tail) = rest.split_at_checked(2)?;
        rest = tail;
        let digit = |digit: u8| char::from(digit).to_digit(16);
        bytes.push((digit(code[0])? * 16 + digit(code[1])?) as u8);
    }
    Some(bytes)
}

/// Appends a number in decimal. The general formatting of the standard library costs several times
/// as much, and this function is on the path of every lock.
pub(crate) fn push_number(mut number: u64, text: &mut Vec<u8>) {
    let mut digits = [0_u8; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[start..]);
}

/// Appends lower-case hexadecimal digits.
pub(crate) fn push_hex(bytes: &[u8], text: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len() * 2);
    push_hex(bytes, &mut text);
    text.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn space() -> Keyspace {
        Keyspace::default()
    }

    #[test]
    fn a_plain_name_is_its_own_key() {
        assert_eq!(space().lock(b"xyz").as_str(), "lock:xyz");
        assert_eq!(Keyspace::new("app1.").unwrap().lock(b"xyz").as_str(), "app1.lock:xyz");
    }

    #[test]
    fn what_memcached_would_misread_is_encoded() {
        assert_eq!(space().lock(b"a b\r\ndelete c%").as_str(), "lock:a%20b%0D%0Adelete%20c%25");
        assert_eq!(space().lock("ü".as_bytes()).as_str(), "lock:%C3%BC");
    }

    #[test]
    fn only_keys_of_lists_are_read_as_those_of_lists() {
        for prefix in ["", "list:", "playlist:"] {
            let keys = Keyspace::new(prefix).unwrap();
            let long = [b'x'; 300];
            for name in [&b"l"[..], b"list:l", b"a%wait", &long] {
                assert!(keys.is_list(keys.session(name).as_str()));
                assert!(keys.is_list(keys.list_item('k', "0d5c7a", name).as_str()));
                for other in [keys.lock(name), keys.semaphore(name)] {
                    assert!(!keys.is_list(other.as_str()), "{other}");
                    assert!(!keys.is_list(other.waiters().as_str()), "{other}");
                }
            }
            assert!(!keys.is_list(keys.exact(b"list:l").unwrap().waiters().as_str()));
        }
        assert!(!Keyspace::new("a").unwrap().is_list("list:l"), "another client's");
    }

    #[test]
    fn what_is_no_hash_is_not_read_as_one() {
        let key = |digest: &str| format!("lock:{HASHED}{digest}");
        assert!(space().read(&key(&"0a".repeat(32))).is_some());
        // The same length, and stored by a client that may write anything into a key.
        for digest in [&"0A".repeat(32), &format!("{}\r\nflush_all\r\n", "0".repeat(51))] {
            assert_eq!(space().read(&key(digest)), None, "{digest:?}");
        }
    }

    #[test]
    fn a_long_name_becomes_a_pinned_hash() {
        let key = space().lock(&[b'x'; 300]);
        assert_eq!(
            key.as_str(),
            "lock:%sha256:0d4e2ca9e9cbced7a7a5380eb29e1a3783b9b6d0db72de36a1051038e1c1fbc7"
        );
        assert_eq!(space().lock(&[b'x'; 195]).as_str().len(), 200);
        assert!(space().lock(&[b'x'; 196]).as_str().starts_with("lock:%sha256:"));
    }

    #[test]
    fn empty_over_long_and_nul_names_are_refused() {
        for bad in [&b""[..], b"a\0b", &vec![b'x'; MAX_NAME + 1]] {
            assert!(check_name(bad).is_err());
        }
        assert!(check_name(&vec![b'x'; MAX_NAME]).is_ok());
    }

    #[test]
    fn an_unusable_prefix_is_refused() {
        for bad in ["a b", "a%b", "\n", &"x".repeat(65)] {
            assert!(Keyspace::new(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn every_key_is_fit_for_the_wire(name in vec(1_u8.., 1..600), prefix in "[!-$&-~]{0,64}") {
            let key = Keyspace::new(&prefix).unwrap().lock(&name);
            let key = key.waiters();
            prop_assert!(key.as_str().len() <= 250);
            prop_assert!(key.as_str().bytes().all(|byte| (b'!'..=b'~').contains(&byte)));
        }

        #[test]
        fn different_names_have_different_keys(a in vec(1_u8.., 1..300), b in vec(1_u8.., 1..300)) {
            prop_assert_eq!(a == b, space().lock(&a) == space().lock(&b));
        }

        #[test]
        fn a_key_tells_its_name(name in vec(1_u8.., 1..300), prefix in "[!-$&-~]{0,64}") {
            let keys = Keyspace::new(&prefix).unwrap();
            for (key, family) in [
                (keys.lock(&name), Family::Lock),
                (keys.semaphore(&name), Family::Semaphore),
                (keys.session(&name), Family::List),
            ] {
                let read = keys.read(key.as_str()).unwrap();
                prop_assert_eq!(read.family, family);
                prop_assert!(read.name == Some(name.clone()) || key.as_str().contains(HASHED));
                prop_assert_eq!(keys.read(key.waiters().as_str()), None);
            }
            prop_assert_eq!(keys.read(keys.list_item('c', "0d5c7a", &name).as_str()), None);
        }

        #[test]
        fn encoding_can_be_undone(name in vec(any::<u8>(), 0..300)) {
            let mut text = String::new();
            percent_encode(&name, &mut text);
            prop_assert_eq!(percent_decode(&text), Some(name));
        }

        #[test]
        fn numbers_are_written_in_decimal(number: u64) {
            let mut text = Vec::new();
            push_number(number, &mut text);
            prop_assert_eq!(text, number.to_string().into_bytes());
        }

        #[test]
        fn decoding_never_panics(text in ".{0,40}") {
            let _ = percent_decode(&text);
        }
    }
}
