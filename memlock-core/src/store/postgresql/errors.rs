//! Errors that the server reports, and what to do.

use super::schema::Schema;
use super::wire::Complaint;
use crate::error::{Error, ErrorKind};

/// What PgBouncer says to a client whose request it has not passed on.
const NOT_PASSED_ON: [&str; 4] = [
    "query_wait_timeout",
    "cannot connect to server",
    "server login has been failing",
    "no more connections allowed",
];

/// What PgBouncer says for itself, or for a server, that has as many clients as it takes.
const CROWDED: [&str; 4] = [
    "no more connections allowed",
    "too many clients",
    "too many connections",
    "remaining connection slots",
];

/// Whether the complaint shows that nothing was carried out, although the connection ends.
pub(super) fn is_not_passed_on(said: &Complaint) -> bool {
    said.code == "08P01" && NOT_PASSED_ON.iter().any(|text| said.text.unchecked().contains(text))
}

/// Whether the transaction fell victim to others, so that it can be tried again at once.
pub(super) fn is_victim(code: &str) -> bool {
    matches!(code, "40001" | "40P01")
}

/// Whether the complaint is about this request, not about the server or the session.
pub(super) fn is_of_the_request(code: &str) -> bool {
    matches!(code, "40001" | "40P01" | "55P03" | "57014")
}

/// Whether a named statement is not this session's: a pooler has passed the requests to several.
pub(super) fn is_of_another_session(code: &str) -> bool {
    matches!(code, "26000" | "42P05")
}

/// The error of a complaint. `user`: the one that is logged in as.
pub(super) fn of(said: &Complaint, schema: &Schema, user: &str) -> Error {
    let unreachable = |text: &str| Error::new(ErrorKind::Unreachable, text);
    let name = schema.name();
    match said.code.as_str() {
        "28P01" | "28000" => Error::config(format!(
            "The server does not let the user {user:?} in ({}): check user, password and pg_hba.conf{}.",
            shown(said.text.shown()),
            encryption_hint(said.text.unchecked())
        )),
        "3D000" => Error::config(format!(
            "There is no such database there ({}).",
            shown(said.text.shown())
        )),
        // At the login.
        "42501" if said.is_fatal => Error::config(format!(
            "The server does not let the user {user:?} in ({}): GRANT CONNECT ON DATABASE … TO \"{}\"",
            shown(said.text.shown()),
            user.replace('"', "\"\"")
        )),
        "42501" => Error::config(format!(
            "The user {user:?} lacks a right that locks need ({}). Have somebody who may run what `{}` prints, \
             and then: {}",
            shown(said.text.shown()),
            schema.print_command(),
            schema.grants(user)
        )),
        "25006" => unreachable(
            "The server takes no writes: it is a standby, or default_transaction_read_only is on. Name the \
             primary in the URL.",
        ),
        "53300" => Error::crowded(format!(
            "The server takes no more connections ({}): raise its max_connections, or the limit that it names, or \
             put PgBouncer in front of it.",
            shown(said.text.shown())
        )),
        "08P01" if CROWDED.iter().any(|text| said.text.unchecked().contains(text)) => {
            Error::crowded(format!(
                "The server or a pooler takes no more connections ({}): raise its limit.",
                shown(said.text.shown())
            ))
        }
        "53100" => Error::protocol("The server's disk is full. Make room on it."),
        "53200" => Error::protocol("The server has no memory left."),
        "55P03" if !said.is_at_row => unreachable(&format!(
            "Another session has kept a table of the schema {name:?} locked for too long, as ALTER TABLE, LOCK TABLE \
             and VACUUM FULL do: wait until its transaction has ended, or end it. Which one it is is in pg_locks and \
             pg_stat_activity."
        )),
        "55P03" => unreachable(
            "Another session has kept the lock's row locked for too long. Which one it is is in pg_locks and \
             pg_stat_activity.",
        ),
        "57014" => {
            unreachable("The request was cancelled on the server, by statement_timeout or by hand.")
        }
        "57P01" => unreachable("The server is being shut down, or has ended this session."),
        "57P02" => unreachable("The server is restarting after a crash of one of its processes."),
        "57P03" => unreachable("The server is starting, stopping or recovering: try again."),
        "57P05" => unreachable("The server has ended this session, which was idle for too long."),
        "40001" | "40P01" => unreachable("The transaction fell victim to others. Try again."),
        "42P01" | "42883" | "3F000" => unreachable(&format!(
            "Something is missing in the schema {name:?}: it was dropped meanwhile. The next attempt creates it."
        )),
        "42725" => Error::config(format!(
            "Somebody has created another function with the name of one of memlock's in the schema {name:?} ({}): \
             drop it, and let nobody else create something there.",
            shown(said.text.shown())
        )),
        "08P01" => {
            unreachable(&format!("The server or a pooler reports: {}", shown(said.text.shown())))
        }
        "0A000" if said.text.unchecked().contains("SSL") => Error::config(shown(said.text.shown())),
        code => Error::protocol(format!(
            "The server reports the error {code:?}: {}",
            shown(said.text.shown())
        )),
    }
}

/// What to write if `pg_hba.conf` has lines for connections of the other kind only.
fn encryption_hint(refusal: &str) -> &'static str {
    if !refusal.contains("pg_hba.conf") {
        ""
    } else if refusal.ends_with("no encryption") {
        ", or write sslmode=require in the URL"
    } else if refusal.ends_with("SSL encryption") {
        ", or write sslmode=disable in the URL if it has lines for connections without TLS (hostnossl) only"
    } else {
        ""
    }
}

/// A text of the server's, for one line of a message.
pub(super) fn shown(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::said::Said;

    #[test]
    fn a_server_or_a_pooler_that_takes_no_more_connections_is_crowded() {
        let schema = Schema::new("memlock", false).unwrap();
        for (code, text, is_crowded) in [
            ("53300", "sorry, too many clients already", true),
            ("53300", "remaining connection slots are reserved for roles with …", true),
            ("08P01", "no more connections allowed (max_client_conn)", true),
            ("08P01", "server login has been failing, try again later", false),
            ("57P03", "the database system is starting up", false),
        ] {
            let (code, text) = (code.into(), Said::new(text, 300, None));
            let said = Complaint { is_fatal: true, code, text, is_at_row: false };
            let error = of(&said, &schema, "u");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert_eq!(error.is_crowded(), is_crowded, "{error}");
        }
    }

    #[test]
    fn each_error_says_what_to_do() {
        let schema = Schema::new("memlock", false).unwrap();
        for (code, text, kind, says) in [
            ("28P01", "password authentication failed", ErrorKind::Config, "password"),
            ("3D000", "database \"x\" does not exist", ErrorKind::Config, "\"x\""),
            ("42501", "permission denied", ErrorKind::Config, "GRANT USAGE ON SCHEMA \"memlock\""),
            ("25006", "cannot execute UPDATE", ErrorKind::Unreachable, "primary"),
            ("42725", "function live_1() is not unique", ErrorKind::Config, "drop it"),
            ("53100", "could not extend file", ErrorKind::Protocol, "full"),
            (
                "55P03",
                "canceling statement due to lock timeout",
                ErrorKind::Unreachable,
                "a table of the schema \"memlock\" locked",
            ),
            ("XX000", "bad\u{1b}[2J", ErrorKind::Protocol, "bad [2J"),
        ] {
            let text = Said::new(text, 300, None);
            let said = Complaint { is_fatal: false, code: code.into(), text, is_at_row: false };
            let error = of(&said, &schema, "u");
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
