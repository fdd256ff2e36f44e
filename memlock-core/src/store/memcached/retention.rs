//! What a server keeps when its memory is full, and whether that is enough for an item.
//!
//! | the server was started with | when it is full |
//! | --- | --- |
//! | `-M`, without `ext_path` | it refuses new items and keeps all that it has |
//! | `-o temporary_ttl=T,no_slab_reassign` | it keeps items that were stored for at most T seconds, and evicts others |
//! | none of these | it evicts any item |
//!
//! With `temporary_ttl` alone such items are spared by evictions, but a server that moves memory
//! from items of one size to items of another one drops what is in it: memcached 1.6.18, full,
//! under sets of two sizes in turn, lost 1,782 of 3,000 items with a TTL of 62 s, counted as
//! `slab_reassign_evictions_nomem`. With `ext_path` a server moves larger items to a file, and evicts
//! them there also with `-M`.

use super::codec::{LONGEST_RELATIVE_TTL, wire_ttl};
use super::handshake::Bound;
use super::ttl::Ttl;
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::Expiry;

/// How to start a server that evicts no lock.
pub(super) const MEND: &str = "start it with -M (and without ext_path), or where a cache is on it \
     too, with -o temporary_ttl=N,no_slab_reassign (N: the seconds of the longest lease, and 1 in \
     1,000 more, at least 3)";

/// The server's settings that decide, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct Settings {
    is_refusing: bool,
    is_temporary: bool,
    longest: u64,
    keeps_slabs: bool,
    is_on_disk: bool,
}

impl Settings {
    /// Reads one of the server's statistics or settings.
    pub(super) fn note(&mut self, name: &str, value: &str) {
        match name {
            // `stats` uses the same word for the number of evicted items.
            "evictions" => self.is_refusing |= value == "off",
            "temp_lru" => self.is_temporary |= value == "yes",
            "temporary_ttl" => self.longest = value.parse().unwrap_or(0),
            "slab_reassign" => self.keeps_slabs = value == "no",
            // Only a server with `ext_path` has such statistics.
            _ => self.is_on_disk |= name.starts_with("extstore_"),
        }
    }

    pub(super) fn retention(&self) -> Retention {
        match (self.is_refusing && !self.is_on_disk, self.is_temporary && self.keeps_slabs) {
            (true, _) => Retention::All,
            (false, true) => Retention::UpTo(self.longest),
            (false, false) => Retention::Nothing,
        }
    }

    /// Whether a full server may refuse to store an item.
    pub(super) fn may_refuse(&self) -> bool {
        self.is_refusing || self.is_temporary
    }
}

/// What a server keeps when its memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// All items: it refuses new ones instead.
    All,
    /// Items that were stored for at most this many seconds.
    UpTo(u64),
    /// No item for certain.
    Nothing,
}

impl Retention {
    /// Whether the server keeps an item that was stored for this many seconds.
    #[cfg(feature = "admin")]
    pub(super) fn keeps(self, seconds: u64) -> bool {
        match self {
            Retention::All => true,
            Retention::UpTo(longest) => seconds <= longest,
            Retention::Nothing => false,
        }
    }

    /// Fails if the server may evict an item that is stored for this long.
    pub(super) fn check(
        self,
        key: &Key,
        expiry: Expiry,
        server_time: impl Fn(Bound) -> u64,
    ) -> Result<()> {
        let longest = match self {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::name::Keyspace;
    use std::time::Duration;

    const NOW: u64 = 1_795_170_000;

    fn read(settings: &[(&str, &str)]) -> Settings {
        let mut read = Settings::default();
        settings.iter().for_each(|(name, value)| read.note(name, value));
        read
    }

    /// The error of an item with this life.
    fn refusal(expiry: Expiry, retention: Retention) -> Option<String> {
        let key = Keyspace::default().lock(b"x");
        let time = |bound| if bound == Bound::Latest { NOW + 3 } else { NOW - 2 };
        retention.check(&key, expiry, time).err().map(|error| {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            let said = error.to_string();
            assert!(said.contains("lock:x") && said.contains("evictions=refuse"), "{said}");
            said
        })
    }

    #[test]
    fn a_server_keeps_what_its_settings_say() {
        let temporary =
            |is, ttl, moves| [("temp_lru", is), ("temporary_ttl", ttl), ("slab_reassign", moves)];
        for (evictions, more, kept) in [
            ("on", &[][..], Retention::Nothing),
            ("off", &[], Retention::All),
            ("off", &[("extstore_page_allocs", "0")], Retention::Nothing),
            ("off", &temporary("yes", "62", "yes"), Retention::All),
            ("on", &temporary("yes", "62", "no"), Retention::UpTo(62)),
            ("on", &temporary("yes", "62", "yes"), Retention::Nothing),
            ("on", &temporary("yes", "62", "?"), Retention::Nothing),
            ("on", &temporary("yes", "62", "no")[..2], Retention::Nothing),
            ("on", &temporary("no", "62", "no"), Retention::Nothing),
            ("on", &temporary("yes", "-1", "no"), Retention::UpTo(0)),
            ("on", &temporary("yes", "?", "no"), Retention::UpTo(0)),
        ] {
            // The number of evicted items comes first.
            let settings = [&[("evictions", "0"), ("evictions", evictions)], more].concat();
            assert_eq!(read(&settings).retention(), kept, "{settings:?}");
            let may_refuse = evictions == "off" || more.contains(&("temp_lru", "yes"));
            assert_eq!(read(&settings).may_refuse(), may_refuse, "{settings:?}");
        }
        assert_eq!(read(&[]).retention(), Retention::Nothing);
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
