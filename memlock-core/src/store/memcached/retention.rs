//! What a server keeps when its memory is full.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(&str, &str)]) -> Settings {
        let mut read = Settings::default();
        settings.iter().for_each(|(name, value)| read.note(name, value));
        read
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
}
