//! The guard on which all clients of a server have to agree. It stands in an item of the server,
//! `memlock-config/1 guard=60s`, which every connection reads in the packet by which it is opened.
//! The first client with a guard writes it.
//!
//! A client without a guard writes nothing: it could keep those with a guard out for ever, and each
//! plain user would pay for an item that says nothing.

use std::time::Duration;

use super::protocol::{Connection, ServerTime};
use super::settings::Evictions;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::recovery::Guard;
use crate::store::{Expiry, Failure, Item, Op, Reply, Returns};

/// The first word of the item, in each version.
const VERSIONED: &str = "memlock-config/";
/// The same in this version, with the space after it.
const FORMAT: &str = "memlock-config/1 ";
/// The guard's own word.
const GUARD: &str = "guard=";
/// The word for the server's time when the item was written, in microseconds since 1970, where the
/// age of the item shows how old the server's life is.
const SINCE: &str = " since=";

/// Compares the guard of this client with that of the others, and writes it if there is none yet.
/// Returns how old the server's life is at least, and when it was that old; `None` without a guard.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if the guards differ, or the server may evict
/// the item and `evictions` refuses that.
pub(super) fn agree(
    connection: &mut impl Connection,
    key: &Key,
    guard: Option<Guard>,
    evictions: Evictions,
    clock: &dyn Clock,
) -> Result<Option<(Duration, Moment)>> {
    if guard.is_some() {
        evictions.admit(connection, &Op::add(key, b"", Expiry::Never, Returns::Nothing))?;
    }
    let found = match (connection.config(), guard) {
        (Some(found), _) => found,
        (None, Some(guard)) => write(connection, key, guard, clock)?,
        (None, None) => return Ok(None),
    };
    let since = compare(&found, guard, key)?;
    let (None, Some(guard)) = (connection.age(), guard) else { return Ok(connection.age()) };
    let shown = connection.time().shown();
    // The server's clock was set back, and would not tell for long how old the item is.
    if since.is_none_or(|since| since > shown + guard.recovery()) {
        write_anew(connection, key, guard, clock, &found)?;
    }
    Ok(Some((shown.saturating_sub(since.unwrap_or(shown)), clock.now())))
}

/// Adds the item. Returns what it contains then.
fn write(
    connection: &mut impl Connection,
    key: &Key,
    guard: Guard,
    clock: &dyn Clock,
) -> Result<Vec<u8>> {
    let text = text(guard, since(connection, clock));
    let add = Op::add(key, text.as_bytes(), Expiry::Never, Returns::Nothing);
    let replies = connection.run(&[add, Op::get(key)]).map_err(Failure::of_read)?;
    match replies.into_iter().nth(1) {
        Some(Reply::Value(item)) => Ok(item.value),
        _ => Err(Error::protocol(format!(
            "The item {key}, in which its clients agree on the guard, was lost as soon as it was \
             written: is its memory full?"
        ))),
    }
}

/// Replaces the item, if it is still the one that was found, by one that is written now.
fn write_anew(
    connection: &mut impl Connection,
    key: &Key,
    guard: Guard,
    clock: &dyn Clock,
    found: &[u8],
) -> Result<()> {
    let replies = connection.run(&[Op::get(key)]).map_err(Failure::of_read)?;
    let version = match replies.into_iter().next() {
        Some(Reply::Value(Item { version, value, .. })) if value == found => version,
        _ => return Ok(()),
    };
    let text = text(guard, since(connection, clock));
    let (value, expiry, returns) = (text.as_bytes(), Expiry::Never, Returns::Nothing);
    let replace = Op::CompareAndSet { key, version, value, expiry, returns };
    // Another client may be faster.
    connection.run(&[replace]).map(|_| ()).map_err(Failure::of_read)
}

/// The server's time, if the item is to tell it.
fn since(connection: &impl Connection, clock: &dyn Clock) -> Option<Duration> {
    match connection.age() {
        Some(_) => None,
        None => Some(connection.time().at(clock.now())),
    }
}

fn text(guard: Guard, since: Option<Duration>) -> String {
    let millis = guard.longest_lease().as_millis();
    let text = match millis % 1000 {
        0 => format!("{FORMAT}{GUARD}{}s", millis / 1000),
        _ => format!("{FORMAT}{GUARD}{millis}ms"),
    };
    since.map_or(text.clone(), |since| format!("{text}{SINCE}{}", since.as_micros()))
}

/// Compares what the clients of a server agreed on, by the item, with what this client's URL says.
/// Returns the server's time when they did, if the item tells.
fn compare(found: &[u8], guard: Option<Guard>, key: &Key) -> Result<Option<Duration>> {
    let found = String::from_utf8_lossy(found);
    let (found, since) = found.split_once(SINCE).unwrap_or((&found, ""));
    let ours = guard.map(|guard| text(guard, None));
    if ours.as_deref() == Some(found) {
        return Ok(since.parse().ok().map(Duration::from_micros));
    }
    let Some(theirs) = found.strip_prefix(FORMAT) else {
        let is_other = found.starts_with(VERSIONED);
        let found: String = found.chars().take(40).collect();
        if is_other {
            return Err(Error::config(format!(
                "The item {key}, in which its clients agree on a guard, has the value {found:?}, \
                 which this version of memlock does not know: use one version in all clients."
            )));
        }
        return Err(Error::config(format!(
            "The item {key}, in which its clients agree on a guard, has the value {found:?}, which \
             is not memlock's: use another prefix=, or delete the item."
        )));
    };
    let theirs: String = theirs.chars().take(100).collect();
    let ours = ours.as_deref().and_then(|text| text.strip_prefix(FORMAT));
    let ours = ours.unwrap_or("no guard=");
    Err(Error::config(format!(
        "All its clients have to agree: they have {}, and this URL has {ours}. Change the URL; or, \
         to change what they agree on, stop all clients, restart the server, delete its item {key} if \
         it is still there, and wait for the longer of the two guards.",
        theirs.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Keyspace;

    const CONFIG: &str = "memlock%config";

    #[test]
    fn clients_with_another_guard_are_refused_with_both_values() {
        let seconds = Duration::from_secs;
        let key = Keyspace::new("").expect("no prefix").config();
        let compare = |found: &[u8], guard| compare(found, guard, &key);
        let [one, half] =
            [seconds(60), Duration::from_millis(1500)].map(|it| Guard::new(it).unwrap());
        for guard in [one, half] {
            assert_eq!(compare(text(guard, None).as_bytes(), Some(guard)), Ok(None));
        }
        let refused = |guard| compare(text(one, None).as_bytes(), guard).unwrap_err().to_string();
        let another = refused(Some(half));
        assert!(another.contains("guard=60s") && another.contains("guard=1500ms"), "{another}");
        let none = refused(None);
        assert!(none.contains("guard=60s") && none.contains("no guard="), "{none}");
        let dated = text(one, Some(seconds(7)));
        assert_eq!(dated, "memlock-config/1 guard=60s since=7000000");
        assert_eq!(compare(dated.as_bytes(), Some(one)), Ok(Some(seconds(7))));
        assert!(compare(dated.as_bytes(), Some(half)).is_err());
        let foreign = compare(b"\x1b[2J\xff", Some(one)).unwrap_err().to_string();
        assert!(foreign.contains("\\u{1b}") && foreign.contains(CONFIG), "{foreign}");
        let later = compare(b"memlock-config/12 guard=60s", Some(one)).unwrap_err().to_string();
        assert!(later.contains("version of memlock") && later.contains(CONFIG), "{later}");
        let longer = compare(b"memlock-config/1 guard=60s more=1", Some(one));
        assert!(longer.unwrap_err().to_string().contains("more=1"));
    }
}
