//! What a server keeps when its memory is full, and whether that is enough for the items of locks.
//!
//! | the server was started with | when it is full |
//! | --- | --- |
//! | `-M` | it refuses new items and keeps all that it has |
//! | `-o temporary_ttl=T` | it keeps items that were stored for at most T seconds, and evicts others |
//! | neither | it evicts any item |
//!
//! With `evictions=refuse` in the URL, a server of the last kind is refused when a connection is
//! opened, and on one of the second kind an operation is refused before it is sent, if it stores an
//! item for longer than T.

use crate::error::{Error, Result};

/// The server's settings that decide, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct Settings {
    is_refusing: bool,
    is_temporary: bool,
    flushes: bool,
    longest: u64,
}

impl Settings {
    /// Reads one of the server's statistics or settings.
    pub(super) fn note(&mut self, name: &str, value: &str) {
        match name {
            // `stats` uses the same word for the number of evicted items.
            "evictions" => self.is_refusing |= value == "off",
            "temp_lru" => self.is_temporary |= value == "yes",
            "flush_enabled" => self.flushes = value == "yes",
            "temporary_ttl" => self.longest = value.parse().unwrap_or(0),
            _ => {}
        }
    }

    /// Whether the server obeys `flush_all`.
    pub(super) fn flushes(&self) -> bool {
        self.flushes
    }

    pub(super) fn retention(&self) -> Retention {
        match (self.is_refusing, self.is_temporary) {
            (true, _) => Retention::All,
            (false, true) => Retention::UpTo(self.longest),
            (false, false) => Retention::Nothing,
        }
    }
}

/// What a URL demands of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demands {
    /// That it never evicts what locks are made of.
    pub(super) no_evictions: bool,
    /// That it refuses `flush_all`.
    pub(super) no_flush: bool,
}

impl Demands {
    /// For how many seconds items may be stored on a server; `None`: any time.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the server does not meet the demands.
    pub(super) fn limit(self, retention: Retention, flushes: bool) -> Result<Option<u64>> {
        if self.no_flush && flushes {
            return Err(Error::config(
                "The server obeys flush_all, which makes it forget its votes while it is too old to \
                 abstain: for a quorum start it with -F.",
            ));
        }
        if self.no_evictions && self.no_flush && retention == Retention::Nothing {
            return Err(Error::config(
                "The server evicts items when its memory is full, and votes are items: for a quorum \
                 start it with -M.",
            ));
        }
        if self.no_evictions { retention.limit() } else { Ok(None) }
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

    /// Whether a full server may refuse to store an item.
    pub(super) fn may_refuse(self) -> bool {
        self != Retention::Nothing
    }

    /// For how many seconds items may be stored with `evictions=refuse`; `None`: any time.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the server may evict every item.
    pub(super) fn limit(self) -> Result<Option<u64>> {
        match self {
            Retention::All => Ok(None),
            Retention::UpTo(longest) => Ok(Some(longest)),
            Retention::Nothing => Err(Error::config(
                "The server evicts items when its memory is full, and locks are items; the URL has \
                 evictions=refuse: start the server with -M, or with -o temporary_ttl=N where a \
                 cache is on it too (N: the longest lease in seconds, and 3 more).",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn retention(settings: &[(&str, &str)]) -> Retention {
        let mut read = Settings::default();
        settings.iter().for_each(|(name, value)| read.note(name, value));
        read.retention()
    }

    #[test]
    fn a_server_keeps_what_its_settings_say() {
        let temporary = [("temp_lru", "yes"), ("temporary_ttl", "62")];
        for (evictions, more, kept) in [
            ("on", &[][..], Retention::Nothing),
            ("off", &[], Retention::All),
            ("off", &temporary, Retention::All),
            ("on", &temporary, Retention::UpTo(62)),
            ("on", &[("temp_lru", "no"), ("temporary_ttl", "62")], Retention::Nothing),
            ("on", &[("temp_lru", "yes"), ("temporary_ttl", "-1")], Retention::UpTo(0)),
            ("on", &[("temp_lru", "yes")], Retention::UpTo(0)),
        ] {
            // The number of evicted items comes first.
            let settings = [&[("evictions", "0"), ("evictions", evictions)], more].concat();
            assert_eq!(retention(&settings), kept, "{settings:?}");
        }
        assert_eq!(retention(&[]), Retention::Nothing);
    }

    #[test]
    fn only_a_server_that_keeps_nothing_is_refused_at_once() {
        assert_eq!(Retention::All.limit().unwrap(), None);
        assert_eq!(Retention::UpTo(62).limit().unwrap(), Some(62));
        let error = Retention::Nothing.limit().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("-M"), "{error}");
    }
}
