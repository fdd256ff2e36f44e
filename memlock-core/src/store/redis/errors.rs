//! Errors that the server replies with, and what to do. The command was not carried out.

use redis::ServerError;

use crate::error::{Error, ErrorKind};
use crate::store::said::Said;
use crate::store::url::Secret;

/// What is shown of a server's text.
const LONGEST_TEXT: usize = 200;

/// The reply to a call of a script that the server does not know.
pub(super) const FORGOTTEN: &str = "NOSCRIPT";

/// The reply of `fence.lua` on a replica that accepts writes.
const WRITABLE_REPLICA: &str = "ISREPLICA";

/// Where a script lacks a right: the words of Redis 6.2, and those of later ones and Valkey.
const OF_RIGHTS: [&str; 2] = ["The user executing the script can't", "ACL failure in script"];

/// Whether the server refuses all writes, and replies to reads.
pub(super) fn is_of_writes(code: &str) -> bool {
    ["OOM", "MISCONF", "NOREPLICAS"].contains(&code)
}

/// Whether an item could not be counted, because it is no number.
pub(super) fn is_no_counter(error: &ServerError) -> bool {
    let text = error.details().unwrap_or_default();
    error.code() == "WRONGTYPE"
        || ["WRONGTYPE", "not an integer", "overflow"].iter().any(|part| text.contains(part))
}

/// Whether the connection was closed, rather than silent.
pub(super) fn is_of_closing(error: &Error) -> bool {
    error.kind() == ErrorKind::Unknown && !error.is_silence()
}

/// The error of an error reply with this code and text. `password`: what the reply may quote.
pub(super) fn of_reply(code: &str, text: &str, password: Option<&Secret>) -> Error {
    let said = |text: &str| Said::new(text, LONGEST_TEXT, password);
    let unreachable = |text: &str| Error::new(ErrorKind::Unreachable, text);
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
    } else if let Some(command) = unknown_command(text) {
        let command = match said(&command) {
            name if name.is_shown() && !command.is_empty() => format!("the command {name}"),
            _ => "a command".to_owned(),
        };
        Error::config(format!(
            "The server does not know {command}, which locks need: it is renamed or disabled there \
             (rename-command). memlock needs the commands in its documentation, under their own names."
        ))
    } else if known("NOPERM") || OF_RIGHTS.iter().any(|part| text.contains(part)) {
        Error::config(format!(
            "The user has no right to what locks need ({}): grant ~PREFIX* ~{{PREFIX* +@string \
             +@scripting +del +pttl +time +info +select, and for the command memlock also +ping +scan.",
            said(text)
        ))
    } else if text.contains("DB index is out of range") {
        Error::config("The server has no database with this number.")
    } else if known("READONLY") {
        unreachable("The server is a read-only replica: name the primary in the URL.")
    } else if known(WRITABLE_REPLICA) {
        unreachable(
            "The server is a replica that accepts writes (replica-read-only no), and loses them when it resyncs: \
             name the primary in the URL.",
        )
    } else if known("MASTERDOWN") {
        unreachable("The server is a replica that has lost its primary: name the primary.")
    } else if known("NOREPLICAS") {
        unreachable("The server refuses writes: it has fewer replicas than min-replicas-to-write.")
    } else if known("LOADING") {
        unreachable("The server is still loading its data: try again.")
    } else if known("BUSY") {
        unreachable("The server is busy running the script of another client: try again.")
    } else if text.contains("max number of clients") {
        Error::crowded("The server takes no more connections: raise its maxclients, or use fewer.")
    } else if known("DENIED") {
        unreachable(
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
        unreachable("The server forgets scripts as soon as they are loaded: try again.")
    } else {
        let said = said(&format!("{code} {text}"));
        Error::protocol(match said.is_shown() {
            true => format!("The server replied with the error {said:?}."),
            false => format!("The server replied with an error: {said}."),
        })
    }
}

/// The command that the server does not know, if that is the error: empty where a script calls it.
fn unknown_command(text: &str) -> Option<String> {
    if text.contains("Unknown Redis command") {
        return Some(String::new());
    }
    let (_, rest) = text.split_once("unknown command")?;
    let name = rest.split(['\'', '`']).nth(1).unwrap_or_default();
    let is_name = (1..=20).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphabetic());
    Some(if is_name { name.to_owned() } else { String::new() })
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
            (
                "ERR",
                "unknown command 'EVALSHA', with args beginning with: '0' '0' ",
                ErrorKind::Config,
                "the command EVALSHA,",
            ),
            ("ERR", "unknown command `DEL`, with args", ErrorKind::Config, "the command DEL,"),
            ("ERR", "unknown command", ErrorKind::Config, "a command,"),
            (
                "ERR",
                "Unknown Redis command called from script script: x, on @user_script:11.",
                ErrorKind::Config,
                "a command,",
            ),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: x",
                ErrorKind::Config,
                "has no right",
            ),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys mentioned in the command \
                arguments script: x",
                ErrorKind::Config,
                "has no right",
            ),
            (
                "ERR",
                "ACL failure in script: No permissions to access a key script: on @user_script:26.",
                ErrorKind::Config,
                "has no right",
            ),
        ] {
            let error = of_reply(code, text, None);
            assert_eq!(error.kind(), kind, "{code} {text}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn what_quotes_the_password_is_left_out() {
        let password = Secret("hunter".to_owned());
        for (code, text) in [
            ("ERR", "unknown command 'hunter', with args beginning with: 'x'"),
            ("ERR", "unknown command 'AUTH', with args beginning with: 'hunter'"),
            ("NOPERM", "No permissions for hunter"),
            ("hunter", "is no command"),
            ("ERR", "hunter"),
        ] {
            let error = of_reply(code, text, Some(&password));
            assert!(!error.to_string().contains("hunter"), "{error}");
            // What is to be done does not depend on it.
            assert_eq!(error.kind(), of_reply(code, text, None).kind());
        }
    }
}
