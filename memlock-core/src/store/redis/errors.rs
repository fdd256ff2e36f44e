//! Errors that the server replies with, and what to do. The command was not carried out.

use crate::error::{Error, ErrorKind};

/// The reply to a call of a script that the server does not know.
pub(super) const FORGOTTEN: &str = "NOSCRIPT";

/// Whether the server refuses all writes, and replies to reads.
pub(super) fn is_of_writes(code: &str) -> bool {
    ["OOM", "MISCONF", "NOREPLICAS"].contains(&code)
}

/// Whether the connection was closed, rather than silent.
pub(super) fn is_of_closing(error: &Error) -> bool {
    error.kind() == ErrorKind::Unknown && !error.to_string().contains("did not answer")
}

/// The error of an error reply with this code and text.
pub(super) fn of_reply(code: &str, text: &str) -> Error {
    // An error inside a script may be quoted in the text, behind another code.
    let known = |name: &str| code == name || (code == "ERR" && text.contains(name));
    if known("NOAUTH") {
        Error::config(
            "The server asks for a password: write redis://:password@host or redis://user:password@host.",
        )
    } else if known("WRONGPASS") || text.contains("invalid password") {
        Error::config("The server does not accept the user or the password.")
    } else if text.contains("without any password configured") {
        Error::config("The server has no password: leave it out of the URL, and of REDISCLI_AUTH.")
    } else if known("NOPERM") {
        Error::config(format!(
            "The user has no right to what locks need ({text}): grant ~PREFIX* ~{{PREFIX* +@string \
             +@scripting +del +pttl +time +info +select, and for the command memlock also +ping +scan."
        ))
    } else if text.contains("DB index is out of range") {
        Error::config("The server has no database with this number.")
    } else if known("READONLY") {
        Error::unreachable("The server is a read-only replica: name the primary in the URL.")
    } else if known("MASTERDOWN") {
        Error::unreachable("The server is a replica that has lost its primary: name the primary.")
    } else if known("NOREPLICAS") {
        Error::unreachable(
            "The server refuses writes: it has fewer replicas than min-replicas-to-write.",
        )
    } else if known("LOADING") {
        Error::unreachable("The server is still loading its data: try again.")
    } else if known("BUSY") {
        Error::unreachable("The server is busy running the script of another client: try again.")
    } else if text.contains("max number of clients") {
        Error::unreachable(
            "The server takes no more connections: raise its maxclients, or use fewer.",
        )
    } else if known("DENIED") {
        Error::unreachable(
            "The server is in protected mode: give it a password, or bind it to an address.",
        )
    } else if ["MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"].contains(&code) {
        Error::config(
            "The server is part of a Redis Cluster, which memlock does not support: name servers that are not.",
        )
    } else if known("OOM") {
        Error::protocol(
            "The server has no memory left: raise its maxmemory, or remove keys. Locks that are held can be released.",
        )
    } else if known("MISCONF") {
        Error::protocol(
            "The server cannot save its data, and refuses writes: look at its disk and its log.",
        )
    } else if code == FORGOTTEN {
        Error::unreachable("The server forgets scripts as soon as they are loaded: try again.")
    } else {
        let shown: String = format!("{code} {text}").chars().take(200).collect();
        Error::protocol(format!("The server replied with the error {shown:?}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_to_do() {
        for (code, text, kind, says) in [
            ("NOAUTH", "Authentication required.", ErrorKind::Config, "password"),
            (
                "ERR",
                "AUTH <password> called without any password configured for the default user. \
                Are you sure your configuration is correct?",
                ErrorKind::Config,
                "leave it out",
            ),
            (
                "READONLY",
                "You can't write against a read only replica.",
                ErrorKind::Unreachable,
                "primary",
            ),
            (
                "ERR",
                "Error running script: @user_script: 8: -READONLY You can't write",
                ErrorKind::Unreachable,
                "primary",
            ),
            (
                "OOM",
                "command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Protocol,
                "maxmemory",
            ),
            ("ERR", "max number of clients reached", ErrorKind::Unreachable, "maxclients"),
            ("ERR", "DB index is out of range", ErrorKind::Config, "database"),
            ("ERR", "what\u{1b}[2J", ErrorKind::Protocol, "\\u{1b}"),
        ] {
            let error = of_reply(code, text);
            assert_eq!(error.kind(), kind, "{code} {text}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
