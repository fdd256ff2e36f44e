//! What errors and reports are about.

use std::fmt;

/// What an error or a report is about, such as `lock "nightly" on memcached at 10.0.0.7:11211`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    kind: &'static str,
    name: String,
    server: String,
    is_container: bool,
}

impl Subject {
    /// `is_container`: it is *in* its server, a file for example, and not *on* it.
    pub(crate) fn new(
        kind: &'static str,
        name: String,
        server: String,
        is_container: bool,
    ) -> Subject {
        Subject { kind, name, server, is_container }
    }

    /// `lock`, `semaphore`, `counter` or `distinct list`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The name; the server's key if the name has more than 200 bytes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> &str {
        &self.server
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { kind, name, server, is_container } = self;
        let preposition = if *is_container { "in" } else { "on" };
        write!(f, "{kind} {name:?} {preposition} {server}")
    }
}
