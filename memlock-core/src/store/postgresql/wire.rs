//! Messages: written by the `postgres-protocol` crate, and read as frames from memlock's own socket.

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::error::{Error, Result};
use crate::store::Failure;
use crate::store::remote::{Patience, Socket};
use crate::store::said::Said;
use crate::store::url::Secret;

/// The only schemas in which names are looked up. In others, such as `public` before PostgreSQL 15,
/// everybody may create functions and operators: one with a built-in name that suits the arguments
/// better would be called instead, and run with the rights of memlock's user.
pub(super) const SEARCH_PATH: &str = "pg_catalog, pg_temp";

/// No message of a server that memlock uses is longer: the values of one call, and what is around
/// them.
const LONGEST: usize = 300 * 1024 * 1024;
/// What is shown of a server's words.
const LONGEST_TEXT: usize = 300;

/// A connection, before and after the login.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) socket: Socket,
    pub(super) out: BytesMut,
    /// What errors may quote, and messages must not show.
    pub(super) secret: Option<Secret>,
    /// For how many milliseconds [`query`](Wire::query) waits for what others have locked, unless the
    /// session's setting applies.
    pub(super) lock_timeout: Option<i32>,
}

/// A message in the input: its tag, and its length with tag and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) tag: u8,
    length: usize,
}

/// An error that the server reported.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    /// Whether the server closes the connection.
    pub(super) is_fatal: bool,
    /// The SQLSTATE.
    pub(super) code: String,
    pub(super) text: Said,
    /// Whether it happened at a row of a table.
    pub(super) is_at_row: bool,
}

/// The rows of a query, in text. NULL is `None`.
pub(super) type Rows = Vec<Vec<Option<String>>>;

impl Wire {
    pub(super) fn new(socket: Socket, secret: Option<Secret>) -> Wire {
        Wire { socket, out: BytesMut::new(), secret, lock_timeout: None }
    }

    /// Sends what was written.
    pub(super) fn send(&mut self) -> std::result::Result<(), Failure> {
        let written = self.socket.write(&self.out);
        // The buffer of a large request is not kept.
        if self.out.len() > 1024 * 1024 {
            self.out = BytesMut::new();
        }
        self.out.clear();
        written
    }

    /// Waits for the next message that is part of a reply. Its body is valid until it is
    /// [`done`](Wire::done).
    pub(super) fn next(&mut self, patience: &mut Patience) -> Result<Frame> {
        loop {
            let unread = self.socket.unread();
            let Some((&tag, rest)) = unread.split_first() else {
                self.socket.read_more(patience)?;
                continue;
            };
            let Some(length) = rest.first_chunk::<4>() else {
                self.socket.read_more(patience)?;
                continue;
            };
            let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
            if length < 4 || !tag.is_ascii_graphic() {
                return Err(Error::protocol(
                    "The server does not speak PostgreSQL's protocol: is the port right?",
                ));
            }
            if length > LONGEST {
                return Err(Error::protocol("The server answered a message that is too long."));
            }
            let frame = Frame { tag, length: length + 1 };
            if unread.len() < frame.length {
                self.socket.read_more(patience)?;
                continue;
            }
            // A notice, a setting that was changed, a notification: not part of any reply.
            if matches!(tag, b'N' | b'S' | b'A') {
                self.done(frame);
                continue;
            }
            return Ok(frame);
        }
    }

    pub(super) fn body(&self, frame: Frame) -> &[u8] {
        self.socket.unread().get(5..frame.length).unwrap_or_default()
    }

    pub(super) fn done(&mut self, frame: Frame) {
        self.socket.consume(frame.length);
    }

    /// Runs statements by the simple protocol, in one transaction, in which names are looked up in
    /// [`SEARCH_PATH`]. Returns the rows of all of them.
    pub(super) fn query(
        &mut self,
        text: &str,
    ) -> std::result::Result<std::result::Result<Rows, Complaint>, Failure> {
        let unsent = |error| Failure { error, sent: false };
        let limit = self.lock_timeout.map(|limit| format!("SET LOCAL lock_timeout = {limit};\n"));
        let limit = limit.unwrap_or_default();
        let text = format!("SET LOCAL search_path = {SEARCH_PATH};\n{limit}{text}");
        frontend::query(&text, &mut self.out).map_err(|_| unsent(unwritable()))?;
        self.send()?;
        let mut patience = Patience::default();
        let mut rows = Rows::new();
        let mut complaint = None;
        let unread = |error| Failure { error, sent: true };
        loop {
            let frame = self.next(&mut patience).map_err(unread)?;
            let body = self.body(frame);
            match frame.tag {
                b'D' => {
                    let columns = columns(body).ok_or_else(|| unread(nonsense()))?;
                    let text = |column: Option<&[u8]>| {
                        column.map(|column| String::from_utf8_lossy(column).into_owned())
                    };
                    rows.push(columns.into_iter().map(text).collect());
                }
                b'E' => {
                    let said = Complaint::parse(body, self.secret.as_ref());
                    if said.is_fatal {
                        return Ok(Err(said));
                    }
                    complaint = Some(said);
                }
                b'Z' => {
                    self.done(frame);
                    return Ok(complaint.map_or(Ok(rows), Err));
                }
                b'T' | b'C' | b'I' => {}
                _ => return Err(unread(nonsense())),
            }
            self.done(frame);
        }
    }
}

/// Whether the first column of the first row is true.
pub(super) fn is_true(rows: &Rows) -> bool {
    rows.first().and_then(|row| row.first()?.as_deref()) == Some("t")
}

/// The columns of a row.
pub(super) fn columns(body: &[u8]) -> Option<Vec<Option<&[u8]>>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let count = u16::from_be_bytes(*count);
    let mut columns = Vec::with_capacity(usize::from(count.min(64)));
    for _ in 0..count {
        columns.push(nullable(&mut rest)?);
    }
    rest.is_empty().then_some(columns)
}

/// A value behind its length, which is -1 for NULL.
pub(super) fn nullable<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = i32::from_be_bytes(*length);
    if length == -1 {
        *rest = behind;
        return Some(None);
    }
    let (value, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = behind;
    Some(Some(value))
}

impl Complaint {
    /// Reads the body of an error message: fields, each a letter and a text that ends with NUL.
    /// `secret`: what it may quote.
    pub(super) fn parse(body: &[u8], secret: Option<&Secret>) -> Complaint {
        let (mut code, mut message, mut is_at_row) = (String::new(), String::new(), false);
        let (mut localized, mut severity) = (None, None);
        for field in body.split(|&byte| byte == 0) {
            let Some((&letter, text)) = field.split_first() else { continue };
            let text = String::from_utf8_lossy(text);
            match letter {
                b'V' => severity = Some(text.into_owned()),
                b'S' => localized = Some(text.into_owned()),
                b'C' if is_code(&text) => code = text.into_owned(),
                b'W' => is_at_row = has_place_of_row(&text),
                b'M' => message = text.into_owned(),
                _ => {}
            }
        }
        let severity = severity.or(localized).unwrap_or_default();
        let text = Said::new(&message, LONGEST_TEXT, secret);
        Complaint { is_fatal: severity != "ERROR", code, text, is_at_row }
    }
}

/// Whether it is a SQLSTATE, which is shown in messages.
fn is_code(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    text.len() == 5 && text.bytes().all(is_sign)
}

/// Whether a context names a row, as in `while updating tuple (0,1) in relation "items"`, in whatever
/// language.
fn has_place_of_row(context: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = context.split('(').skip(1).filter_map(|part| part.split_once(')'));
    let mut places = parts.filter_map(|(part, _)| part.split_once(','));
    places.any(|(block, place)| is_number(block) && is_number(place))
}

pub(super) fn unwritable() -> Error {
    Error::protocol("The request cannot be written in PostgreSQL's protocol.")
}

pub(super) fn nonsense() -> Error {
    Error::protocol("The server's answer is not one of a PostgreSQL that memlock can use.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_are_read_in_the_servers_own_words() {
        let said = Complaint::parse(b"SFEHLER\0VERROR\0C42501\0Mno\0\0", None);
        assert_eq!((said.is_fatal, said.code.as_str(), said.text.shown()), (false, "42501", "no"));
        assert_eq!(Complaint::parse(b"VERROR\0Chunter2\0Mno\0\0", None).code, "");
        // PgBouncer does not send the severity twice.
        assert!(Complaint::parse(b"SFATAL\0C08P01\0Mno\0\0", None).is_fatal);
        assert!(Complaint::parse(b"", None).is_fatal);
        let context: [&[u8]; 2] = [
            b"WBeim Aktualisieren von Tupel (0,17) in Relation (x)\nPL/pgSQL function f(integer,text)\0",
            b"WPL/pgSQL function f(integer,text) line 2, (1,) or (,) or (1,x)\0",
        ];
        assert_eq!(context.map(|body| Complaint::parse(body, None).is_at_row), [true, false]);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes: Vec<u8>) {
            let _ = Complaint::parse(&bytes, None);
            let _ = columns(&bytes);
        }
    }
}
