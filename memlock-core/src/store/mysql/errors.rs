//! Errors that the server replies with, and what to do.

use super::packets::Refusal;
use super::schema::Engine;
use crate::error::{Error, ErrorKind};

/// The table is not there.
pub(super) const NO_TABLE: u16 = 1146;
/// The user or the password is wrong, or the user is to use TLS.
const DENIED: u16 = 1045;
/// A lock wait ended because of a deadlock; or another node of a Galera cluster was faster.
const DEADLOCK: u16 = 1213;
const LOCK_WAIT: u16 = 1205;
/// A row that has changed since the statement began (`innodb_snapshot_isolation`).
const CHANGED: u16 = 1020;
/// `max_statement_time` of MariaDB passed.
const TOO_SLOW: u16 = 1969;
/// A value is longer than its column.
const TOO_LONG: u16 = 1406;
/// The table is full, or the disk.
pub(super) const FULL: u16 = 1114;

/// Whether the statement was not carried out, and is to be sent again.
pub(super) fn is_to_be_repeated(code: u16) -> bool {
    matches!(code, DEADLOCK | LOCK_WAIT | CHANGED)
}

/// Whether the statement was ended because it waited for a row that another transaction has locked; or,
/// on a slow server, for another reason.
pub(super) fn is_row_locked(code: u16) -> bool {
    matches!(code, LOCK_WAIT | TOO_SLOW)
}

/// Whether the server does not know a prepared statement any more.
pub(super) fn is_forgotten(code: u16) -> bool {
    matches!(code, 1243 | 1615)
}

/// Whether it is certain that the statement was not carried out.
pub(super) fn was_not_carried_out(code: u16) -> bool {
    is_to_be_repeated(code)
        || matches!(
            code,
            TOO_SLOW | FULL | NO_TABLE
            // Refused before it began: connections, rights, names, syntax, lengths, read-only servers.
            | 1040 | 1044
                ..=1047
                    | 1049
                    | 1054
                    | 1064
                    | 1095
                    | 1142
                    | 1143
                    | 1153
                    | 1203
                    | 1226
                    | 1227
                    | 1290
                    | 1370
                    | 1406
                    | 1665
                    | 1792
                    | 1836
                    | 1837
                    | 3024
        )
}

/// The error of a refusal.
pub(super) fn of_refusal(refusal: &Refusal, engine: Engine) -> Error {
    let Refusal { code, text } = refusal;
    let unreachable = |text: &str| Error::new(ErrorKind::Unreachable, text);
    match *code {
        DENIED | 1698 => {
            Error::config(format!("The server does not accept the user or the password ({text})."))
        }
        1049 => Error::config(format!(
            "The database is not there ({text}): create it, or name another one in the URL."
        )),
        1044 | 1142 | 1143 | 1227 | 1370 => Error::config(format!(
            "The user has no right to what locks need ({text}): grant SELECT, INSERT, UPDATE and DELETE on the \
             table, and CREATE, or create it by {};",
            engine.definition()
        )),
        TOO_LONG if engine == Engine::Memory => Error::protocol(format!(
            "What is to be stored is longer than {} bytes, and does not fit into a row of a MEMORY table: leave \
             engine=MEMORY out of the URL.",
            engine.longest_value()
        )),
        1054 | TOO_LONG | 1364 => Error::config(format!(
            "The table is not as memlock creates it ({text}): drop it, or name another database in the URL."
        )),
        FULL if engine == Engine::Memory => Error::protocol(
            "The table is full: raise the server's max_heap_table_size and tmp_table_size, and drop the table \
             at a time when no locks are held; or leave engine=MEMORY out of the URL.",
        ),
        FULL | 1021 | 1030 | 1034 | 1037 | 1041 => Error::protocol(format!(
            "The server has no room or cannot write ({text}): look at its disk and its log."
        )),
        // Options that forbid a statement: the text names the option.
        1290 if text.unchecked().contains("--") && !text.unchecked().contains("read") => {
            Error::protocol(format!(
                "An option of the server forbids what locks need ({text}): set it otherwise there."
            ))
        }
        1290 | 1792 | 1836 => unreachable(&format!(
            "The server is read-only ({text}): name the primary in the URL, or set read_only to OFF there."
        )),
        // Limits of a user: the text names the limit.
        1226 if !text.unchecked().contains("connections'") => unreachable(&format!(
            "The user may do no more in this hour ({text}): raise that limit with ALTER USER, or wait."
        )),
        1040 | 1203 | 1226 => Error::crowded(format!(
            "The server takes no more connections ({text}): raise the limit that it names, its \
             max_connections or that of the user, or use fewer."
        )),
        1129 | 1130 => Error::config(format!("The server does not accept this host ({text}).")),
        1047 => unreachable(&format!(
            "The server is not part of its cluster at the moment ({text}): try again."
        )),
        1053 | 1077 | 1079 | 1927 | 4031 | 1317 => unreachable(&format!(
            "The server has ended the connection or the statement ({text}): try again."
        )),
        1153 => too_large(),
        TOO_SLOW | 3024 | LOCK_WAIT => unreachable(
            "Another transaction has kept the row locked for too long (io_timeout), or another session the table, \
             as LOCK TABLES and FLUSH TABLES WITH READ LOCK of a backup do: look for it in \
             information_schema.innodb_trx, or by SHOW PROCESSLIST.",
        ),
        DEADLOCK | CHANGED => unreachable(
            "Other clients have changed the row each time that it was tried (io_timeout): try again.",
        ),
        1665 => Error::config(format!(
            "The server's binary log does not permit the statement ({text}): set binlog_format to MIXED or ROW."
        )),
        _ => Error::protocol(format!("The server replied with error {code} ({text}).")),
    }
}

/// The error of a refusal to log in.
pub(super) fn of_login(refusal: &Refusal, engine: Engine, is_encrypted: bool) -> Error {
    let error = of_refusal(refusal, engine);
    if refusal.code != DENIED || is_encrypted {
        return error;
    }
    Error::config(format!(
        "{error} It refuses a user who is to use TLS (REQUIRE SSL) in the same words: then add tls=verify to \
         the URL."
    ))
}

/// The error of a statement that the server would not accept.
pub(super) fn too_large() -> Error {
    Error::protocol(
        "The statement is larger than the server accepts: raise its max_allowed_packet to 4 MiB or more.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::said::Said;

    fn refusal(code: u16, text: &str) -> Refusal {
        Refusal { code, text: Said::new(text, 300, None) }
    }

    #[test]
    fn each_error_says_what_to_do() {
        for (code, engine, kind, says) in [
            (1045, Engine::InnoDb, ErrorKind::Config, "password"),
            (1049, Engine::InnoDb, ErrorKind::Config, "create it"),
            (1142, Engine::InnoDb, ErrorKind::Config, "CREATE TABLE"),
            (1114, Engine::Memory, ErrorKind::Protocol, "max_heap_table_size"),
            (1114, Engine::InnoDb, ErrorKind::Protocol, "disk"),
            (1290, Engine::InnoDb, ErrorKind::Unreachable, "primary"),
            (1040, Engine::InnoDb, ErrorKind::Unreachable, "max_connections"),
            (1053, Engine::InnoDb, ErrorKind::Unreachable, "try again"),
            (4711, Engine::InnoDb, ErrorKind::Protocol, "4711"),
        ] {
            let error = of_refusal(&refusal(code, "what it said"), engine);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    /// Several causes have one number.
    #[test]
    fn the_option_and_the_limit_that_a_text_names_are_told_apart() {
        let running = |option: &str| {
            format!(
                "The server is running with the --{option} option so it cannot execute this statement"
            )
        };
        let exceeded = |limit: &str| format!("User 'u' has exceeded the '{limit}' resource");
        for (code, text, kind, says) in [
            (1290, running("read-only"), ErrorKind::Unreachable, "primary"),
            (1290, running("super-read-only"), ErrorKind::Unreachable, "primary"),
            (1290, running("max-session-mem-used"), ErrorKind::Protocol, "An option of the server"),
            (1226, exceeded("max_user_connections"), ErrorKind::Unreachable, "use fewer"),
            (1226, exceeded("max_queries_per_hour"), ErrorKind::Unreachable, "this hour"),
            (1226, exceeded("max_connections_per_hour"), ErrorKind::Unreachable, "this hour"),
        ] {
            let error = of_refusal(&refusal(code, &text), Engine::InnoDb);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(says), "{error}");
            assert!(error.to_string().contains(&text), "{error}");
            assert_eq!(error.is_crowded(), text.contains("max_user_connections"), "{error}");
        }
    }

    #[test]
    fn what_may_have_been_carried_out_is_not_certain() {
        for code in [1317, 1053, 1180, 1927, 0] {
            assert!(!was_not_carried_out(code), "{code}");
        }
    }
}
