//! Whether a server keeps what an operation stores, if it keeps items up to a TTL only.

use super::codec::{LONGEST_RELATIVE_TTL, wire_ttl};
use super::handshake::Bound;
use super::ttl::Ttl;
use crate::error::{Error, Result};
use crate::store::Op;

/// Fails if the operation stores an item for more than `limit` seconds.
///
/// Queues are exempt. They are stored for longer than a short lease, and hold no promise: when a
/// queue is lost, its waiters join again, which costs time and their order. The stamp, which is no
/// operation, is exempt for the same reason: it is created again by the next command that needs it.
/// So is the item in which clients agree on a guard: each client with one that connects writes it
/// again. Appended bytes leave an item's time as it is, and were preceded by an operation that set it.
pub(super) fn check(op: &Op<'_>, limit: u64, server_time: impl Fn(Bound) -> u64) -> Result<()> {
    let expiry = match *op {
        Op::Add { expiry, .. }
        | Op::CompareAndSet { expiry, .. }
        | Op::Increment { initial: Some((_, expiry)), .. } => expiry,
        Op::Increment { initial: None, .. }
        | Op::Get { .. }
        | Op::Delete { .. }
        | Op::Append { .. }
        | Op::Prepend { .. } => return Ok(()),
    };
    if op.key().is_queue() || op.key().is_config() {
        return Ok(());
    }
    let refused = |lives: String, option: String| {
        Err(Error::config(format!(
            "The item {key} {lives}. When the server is full, it evicts items that are stored for \
             more than {limit} s (temporary_ttl), and the URL has evictions=refuse: start the \
             server with {option}-M.",
            key = op.key()
        )))
    };
    let (seconds, needed) = match wire_ttl(Ttl::of(expiry), &server_time)? {
        0 => return refused("would never expire".to_owned(), String::new()),
        relative @ ..=LONGEST_RELATIVE_TTL => (relative, relative),
        absolute => {
            // The server's time is known less and less exactly, by 1 in 5,000 of the connection's
            // age: the advice leaves room for that.
            let seconds = absolute.saturating_sub(server_time(Bound::Earliest));
            (seconds, (seconds + seconds / 24).next_multiple_of(60))
        }
    };
    if seconds <= limit {
        return Ok(());
    }
    refused(
        format!("would be stored for {seconds} s"),
        format!("-o temporary_ttl={needed}, or with "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::name::{Key, Keyspace};
    use crate::store::{Epoch, Expiry, Returns, Version};
    use std::time::Duration;

    const NOW: u64 = 1_795_170_000;

    /// The error of an item with this life on a server that keeps items of `limit` seconds.
    fn refusal(key: &Key, expiry: Expiry, limit: u64) -> Option<String> {
        let version = Version::new(Epoch::new(1, 1), 1);
        let ops = [
            Op::add(key, b"", expiry, Returns::Nothing),
            Op::CompareAndSet { key, version, value: b"", expiry, returns: Returns::Fence },
            Op::Increment { key, by: 1, initial: Some((1, expiry)) },
        ];
        let time = |bound| if bound == Bound::Latest { NOW + 3 } else { NOW - 2 };
        let said = ops.map(|op| {
            check(&op, limit, time).err().map(|error| {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                error.to_string()
            })
        });
        assert!(said.iter().all(|other| *other == said[0]), "{said:?}");
        said.into_iter().next().flatten()
    }

    #[test]
    fn what_the_server_may_evict_is_not_stored() {
        let key = Keyspace::default().lock(b"x");
        let seconds = Duration::from_secs;
        let minute = Expiry::After(seconds(60));
        assert_eq!(refusal(&key, minute, 62), None);
        let said = refusal(&key, minute, 61).unwrap();
        assert!(said.contains("62 s") && said.contains("-o temporary_ttl=62,"), "{said}");
        let never = refusal(&key, Expiry::Never, u64::MAX).unwrap();
        assert!(never.contains("never expire") && !never.contains("-o "), "{never}");
        assert!(refusal(&key, Expiry::Unchanged(None), 62).is_some());
        assert_eq!(refusal(&key, Expiry::Unchanged(Some(seconds(62))), 62), None);
        assert!(refusal(&key, Expiry::Unchanged(Some(seconds(63))), 62).is_some());
    }

    /// The server may see up to this many seconds more than memlock computes with.
    #[test]
    fn a_moment_is_judged_by_the_earliest_time_that_the_server_may_have() {
        let key = Keyspace::default().semaphore(b"x");
        let at = |left: u64| Expiry::At(Duration::from_secs(NOW + left));
        assert_eq!(refusal(&key, at(60), 62), None);
        let said = refusal(&key, at(61), 62).unwrap();
        assert!(said.contains("63 s") && said.contains("-o temporary_ttl=120,"), "{said}");
        let year = Duration::from_secs(366 * 86_400);
        let Ttl::For(sent) = Ttl::of(Expiry::After(year)) else { panic!() };
        assert_eq!(refusal(&key, Expiry::After(year), sent + 5), None);
        assert!(refusal(&key, Expiry::After(year), sent + 4).is_some());
    }

    #[test]
    fn what_holds_no_promise_or_stores_nothing_is_sent() {
        let key = Keyspace::default().lock(b"x");
        assert_eq!(refusal(&key.waiters(), Expiry::After(Duration::from_secs(300)), 5), None);
        // A name that another program chose.
        let counter = Keyspace::default().exact(b"x%wait").unwrap();
        assert!(refusal(&counter, Expiry::Never, 5).is_some());
        for op in [
            Op::get(&key),
            Op::Delete { key: &key, version: Version::new(Epoch::new(1, 1), 1) },
            Op::Append { key: &key, value: b"x" },
            Op::Prepend { key: &key, value: b"x" },
            Op::Increment { key: &key, by: 1, initial: None },
        ] {
            check(&op, 0, |_| NOW).unwrap();
        }
    }
}
