//! Whether a server keeps an item for as long as it is stored.

use super::codec::{LONGEST_RELATIVE_TTL, wire_ttl};
use super::handshake::Bound;
use super::retention::{MEND, Retention};
use super::ttl::Ttl;
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::Expiry;

/// Fails if the server may evict an item that is stored for this long.
pub(super) fn check(
    retention: Retention,
    key: &Key,
    expiry: Expiry,
    server_time: impl Fn(Bound) -> u64,
) -> Result<()> {
    let longest = match retention {
        Retention::All => return Ok(()),
        Retention::UpTo(longest) => longest,
        Retention::Nothing => {
            return Err(Error::config(format!(
                "The server evicts items when its memory is full, also {key}, and the URL has \
                 evictions=refuse: {MEND}."
            )));
        }
    };
    let refused = |lives: String, option: String| {
        Err(Error::config(format!(
            "The item {key} {lives}. When the server is full, it evicts items that are stored for \
             more than {longest} s (temporary_ttl), and the URL has evictions=refuse: start it \
             with {option}-M."
        )))
    };
    let (seconds, needed) = match wire_ttl(Ttl::of(expiry), &server_time)? {
        0 => return refused("would never expire".to_owned(), String::new()),
        relative @ ..=LONGEST_RELATIVE_TTL => (relative, relative),
        absolute => {
            // The server's time is known less and less exactly, by 1 in 5,000 of the
            // connection's age: the advice leaves room for that.
            let seconds = absolute.saturating_sub(server_time(Bound::Earliest));
            (seconds, (seconds + seconds / 24).next_multiple_of(60))
        }
    };
    if seconds <= longest {
        return Ok(());
    }
    let option = format!("-o temporary_ttl={needed},no_slab_reassign, or with ");
    refused(format!("would be stored for {seconds} s"), option)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::name::Keyspace;
    use std::time::Duration;

    const NOW: u64 = 1_795_170_000;

    /// The error of an item with this life.
    fn refusal(expiry: Expiry, retention: Retention) -> Option<String> {
        let key = Keyspace::default().lock(b"x");
        let time = |bound| if bound == Bound::Latest { NOW + 3 } else { NOW - 2 };
        check(retention, &key, expiry, time).err().map(|error| {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            let said = error.to_string();
            assert!(said.contains("lock:x") && said.contains("evictions=refuse"), "{said}");
            said
        })
    }

    #[test]
    fn what_the_server_may_evict_is_refused_with_the_flag_that_mends_it() {
        let seconds = Duration::from_secs;
        let minute = Expiry::After(seconds(60));
        assert!(refusal(minute, Retention::Nothing).unwrap().contains("-M"));
        assert_eq!(refusal(Expiry::Never, Retention::All), None);
        assert_eq!(refusal(minute, Retention::UpTo(62)), None);
        let said = refusal(minute, Retention::UpTo(61)).unwrap();
        assert!(
            said.contains("62 s") && said.contains("-o temporary_ttl=62,no_slab_reassign,"),
            "{said}"
        );
        let never = refusal(Expiry::Never, Retention::UpTo(u64::MAX)).unwrap();
        assert!(never.contains("never expire") && !never.contains("-o "), "{never}");
        assert!(refusal(Expiry::Unchanged(None), Retention::UpTo(62)).is_some());
        assert_eq!(refusal(Expiry::Unchanged(Some(seconds(62))), Retention::UpTo(62)), None);
        assert!(refusal(Expiry::Unchanged(Some(seconds(63))), Retention::UpTo(62)).is_some());
    }

    /// The server may see up to this many seconds more than memlock computes with.
    #[test]
    fn a_moment_is_judged_by_the_earliest_time_that_the_server_may_have() {
        let at = |left: u64| Expiry::At(Duration::from_secs(NOW + left));
        assert_eq!(refusal(at(60), Retention::UpTo(62)), None);
        let said = refusal(at(61), Retention::UpTo(62)).unwrap();
        assert!(said.contains("63 s") && said.contains("-o temporary_ttl=120,"), "{said}");
        let year = Expiry::After(Duration::from_secs(366 * 86_400));
        let Ttl::For(sent) = Ttl::of(year) else { panic!() };
        assert_eq!(refusal(year, Retention::UpTo(sent + 5)), None);
        assert!(refusal(year, Retention::UpTo(sent + 4)).is_some());
    }
}
