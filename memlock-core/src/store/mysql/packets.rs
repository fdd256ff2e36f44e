//! Packets over a socket: a request, and the replies to its statements.
//!
//! A packet is three bytes of length, one of a sequence number, and the payload. Nothing that memlock
//! sends or receives needs a payload of 16 MiB, which would go on in another packet.

use std::borrow::Cow;

use mysql_common::constants::{CapabilityFlags, StatusFlags};
use mysql_common::io::ParseBuf;
use mysql_common::packets::{CommonOkPacket, ErrPacket, OkPacket, OkPacketDeserializer};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::store::Failure;
use crate::store::remote::{Patience, Socket, lost};
use crate::store::said::Said;
use crate::store::url::Secret;

/// A larger payload is not accepted: the largest one that is requested is an item of 1 MiB.
const LARGEST: usize = 4 * 1024 * 1024;
/// The most columns of a reply, and the most bytes of its rows.
const MOST_COLUMNS: u64 = 64;
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// What is shown of a server's text.
const LONGEST_TEXT: usize = 300;

const COM_QUIT: u8 = 0x01;
const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;

const OK: u8 = 0x00;
const LOCAL_FILE: u8 = 0xfb;
const NULL: u8 = 0xfb;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;

/// What the connection's packets look like.
pub(super) const CAPABILITIES: CapabilityFlags = CapabilityFlags::CLIENT_PROTOCOL_41
    .union(CapabilityFlags::CLIENT_LONG_PASSWORD)
    .union(CapabilityFlags::CLIENT_TRANSACTIONS)
    .union(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH)
    .union(CapabilityFlags::CLIENT_CONNECT_WITH_DB)
    .union(CapabilityFlags::CLIENT_MULTI_STATEMENTS)
    .union(CapabilityFlags::CLIENT_MULTI_RESULTS);

/// A row: the text of each column, or NULL.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// The reply to one statement.
#[derive(Debug)]
pub(super) enum Answer {
    /// It returned no rows.
    Done {
        /// How many rows it changed, counting a row that replaces another one as two.
        changed: u64,
        /// The number of its `LAST_INSERT_ID(…)`, or 0.
        id: u64,
    },
    /// It returned rows.
    Rows(Vec<Row>),
    /// The server refused it, and has carried out none of the statements behind it.
    Refused(Refusal),
}

/// An error of the server.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) text: Said,
}

/// A socket, and the packets on it.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) socket: Socket,
    /// What errors may quote, and messages must not show.
    pub(super) secret: Option<Secret>,
    /// The number of the next packet.
    sequence: u8,
    /// Whether the headers of the output are filled in.
    is_finished: bool,
    /// The payload of the last packet that was read.
    payload: Vec<u8>,
}

impl Wire {
    pub(super) fn new(socket: Socket, secret: Option<Secret>) -> Wire {
        Wire { socket, secret, sequence: 0, is_finished: false, payload: Vec::new() }
    }

    /// Uses another socket for the same exchange: the encrypted one.
    #[cfg(feature = "tls")]
    pub(super) fn map(self, with: impl FnOnce(Socket) -> Result<Socket>) -> Result<Wire> {
        Ok(Wire { socket: with(self.socket)?, ..self })
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        self.socket.clock()
    }

    /// Sends the next packet of an exchange.
    pub(super) fn send(&mut self, payload: &[u8]) -> std::result::Result<(), Failure> {
        self.socket.output.clear();
        self.socket.output.extend_from_slice(&[0; 4]);
        self.socket.output.extend_from_slice(payload);
        self.is_finished = false;
        self.send_output()
    }

    /// Sends statements, separated by semicolons.
    pub(super) fn query(&mut self, statements: &str) -> std::result::Result<(), Failure> {
        self.begin_query().extend_from_slice(statements.as_bytes());
        self.send_output()
    }

    /// Begins a request, which is to be written behind the header; see [`Wire::send_output`].
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        (self.sequence, self.is_finished) = (0, false);
        let output = &mut self.socket.output;
        output.clear();
        output.extend_from_slice(&[0; 4]);
        output
    }

    /// Begins a request of statements.
    pub(super) fn begin_query(&mut self) -> &mut Vec<u8> {
        let output = self.begin();
        output.push(COM_QUERY);
        output
    }

    /// Sends what was written behind the header.
    pub(super) fn send_output(&mut self) -> std::result::Result<(), Failure> {
        if !self.is_finished {
            self.finish(0);
        }
        self.is_finished = false;
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.write_out()
    }

    /// Fills in the header of the packet that begins there.
    fn finish(&mut self, start: usize) {
        let output = &mut self.socket.output;
        let [first, second, third, ..] = (output.len() - start - 4).to_le_bytes();
        output[start..start + 4].copy_from_slice(&[first, second, third, self.sequence]);
    }

    /// Appends a request to prepare a statement, behind what was written.
    pub(super) fn append_prepare(&mut self, statement: &str) {
        self.finish(0);
        self.is_finished = true;
        let start = self.socket.output.len();
        self.socket.output.extend_from_slice(&[0, 0, 0, 0, COM_STMT_PREPARE]);
        self.socket.output.extend_from_slice(statement.as_bytes());
        self.finish(start);
    }

    /// Reads the reply to it, behind the one to the request before: the number of the statement.
    pub(super) fn prepared(
        &mut self,
        patience: &mut Patience,
    ) -> Result<std::result::Result<u32, Refusal>> {
        self.sequence = 1;
        let payload = self.read(patience)?;
        if payload.first() == Some(&ERROR) {
            return Ok(Err(self.refusal()));
        }
        let [OK, a, b, c, d, columns, more, parameters, none, ..] = *payload else {
            return Err(out_of_step());
        };
        if more != 0 || none != 0 {
            return Err(out_of_step());
        }
        for count in [parameters, columns].into_iter().filter(|&count| count > 0) {
            for _ in 0..count {
                self.read(patience)?;
            }
            end(self.read(patience)?).ok_or_else(out_of_step)?;
        }
        Ok(Ok(u32::from_le_bytes([a, b, c, d])))
    }

    /// Says goodbye, so that the server's log does not complain.
    pub(super) fn quit(&mut self) {
        if !self.socket.is_ours() {
            return;
        }
        self.sequence = 0;
        // The server may be gone already.
        let _ = self.send(&[COM_QUIT]);
    }

    /// Reads the payload of the next packet.
    pub(super) fn read(&mut self, patience: &mut Patience) -> Result<&[u8]> {
        while self.socket.unread().len() < 4 {
            self.socket.read_more(patience)?;
        }
        let head = self.socket.unread();
        let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
        let sequence = head[3];
        if length > LARGEST {
            return Err(Error::protocol(
                "The server sent more than memlock asked for: it is no MySQL or MariaDB.",
            ));
        }
        while self.socket.unread().len() < 4 + length {
            self.socket.read_more(patience)?;
        }
        self.payload.clear();
        self.payload.extend_from_slice(&self.socket.unread()[4..4 + length]);
        self.socket.consume(4 + length);
        // A server that ends a session says so in a packet that answers no request.
        if sequence == 0 && self.sequence != 0 && self.payload.first() == Some(&ERROR) {
            let Refusal { text, .. } = self.refusal();
            return Err(lost(format!("The server has ended the connection ({text}).")));
        }
        if sequence != self.sequence {
            return Err(out_of_step());
        }
        self.sequence = self.sequence.wrapping_add(1);
        Ok(&self.payload)
    }

    /// The error in the packet that was read last.
    pub(super) fn refusal(&self) -> Refusal {
        refusal(&self.payload, self.secret.as_ref())
    }

    /// Reads the reply to the next statement. `is_last`: whether no other one follows.
    pub(super) fn answer(&mut self, is_last: bool, patience: &mut Patience) -> Result<Answer> {
        let payload = self.read(patience)?;
        let follows = |flags: StatusFlags| {
            let more = flags.contains(StatusFlags::SERVER_MORE_RESULTS_EXISTS);
            if more == is_last { Err(out_of_step()) } else { Ok(()) }
        };
        match payload.first() {
            Some(&OK) => {
                let ok = parse_ok(payload)?;
                follows(ok.status_flags())?;
                let id = ok.last_insert_id().unwrap_or(0);
                return Ok(Answer::Done { changed: ok.affected_rows(), id });
            }
            Some(&ERROR) => return Ok(Answer::Refused(self.refusal())),
            Some(&LOCAL_FILE) | None => return Err(out_of_step()),
            Some(_) => {}
        }
        let columns = Fields(payload).length().ok_or_else(out_of_step)?;
        if columns > MOST_COLUMNS {
            return Err(out_of_step());
        }
        // The columns are those that were asked for, in text.
        for _ in 0..columns {
            self.read(patience)?;
        }
        end(self.read(patience)?).ok_or_else(out_of_step)?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            let payload = self.read(patience)?;
            if payload.first() == Some(&ERROR) {
                return Ok(Answer::Refused(self.refusal()));
            }
            if let Some(flags) = end(payload) {
                follows(flags)?;
                return Ok(Answer::Rows(rows));
            }
            bytes += payload.len() + 64;
            if bytes > MOST_BYTES {
                return Err(Error::protocol("The server answers more than memlock can list."));
            }
            let mut fields = Fields(payload);
            let row: Option<Row> = (0..columns).map(|_| fields.text()).collect();
            rows.push(row.filter(|_| fields.0.is_empty()).ok_or_else(out_of_step)?);
        }
    }
}

fn parse_ok(payload: &[u8]) -> Result<OkPacket<'_>> {
    ParseBuf(payload)
        .parse::<OkPacketDeserializer<'_, CommonOkPacket>>(CAPABILITIES)
        .map(OkPacketDeserializer::into_inner)
        .map_err(|_| out_of_step())
}

fn refusal(payload: &[u8], secret: Option<&Secret>) -> Refusal {
    // Before the login the state may be missing.
    let parse = |capabilities| ParseBuf(payload).parse::<ErrPacket<'_>>(capabilities);
    let parsed = parse(CAPABILITIES).or_else(|_| parse(CapabilityFlags::empty()));
    let (code, text) = match &parsed {
        Ok(ErrPacket::Error(error)) => (error.error_code(), error.message_str()),
        _ => (0, Cow::Borrowed("an error without a text")),
    };
    let text = Said::new(&text, LONGEST_TEXT, secret)
        .map(|text| text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\""));
    Refusal { code, text }
}

/// The flags of the packet that ends columns or rows.
fn end(payload: &[u8]) -> Option<StatusFlags> {
    match *payload {
        [END, _, _, low, high] => {
            Some(StatusFlags::from_bits_truncate(u16::from_le_bytes([low, high])))
        }
        _ => None,
    }
}

/// Fields with their lengths in front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn length(&mut self) -> Option<u64> {
        let width = match *self.take(1)? {
            [0xfc] => 2,
            [0xfd] => 3,
            [0xfe] => 8,
            [byte @ 0..=0xfa] => return Some(u64::from(byte)),
            _ => return None,
        };
        let mut number = [0; 8];
        number[..width].copy_from_slice(self.take(width)?);
        Some(u64::from_le_bytes(number))
    }

    fn text(&mut self) -> Option<Option<Vec<u8>>> {
        if self.0.first() == Some(&NULL) {
            self.take(1)?;
            return Some(None);
        }
        let length = usize::try_from(self.length()?).ok()?;
        Some(Some(self.take(length)?.to_vec()))
    }
}

pub(super) fn out_of_step() -> Error {
    Error::protocol("A reply does not belong to its request: the connection is out of step.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_read() {
        let bytes = [&[2, b'a', b'b', NULL, 0, 0xfc, 1, 0, b'c'][..]].concat();
        let mut fields = Fields(&bytes);
        assert_eq!(fields.text(), Some(Some(b"ab".to_vec())));
        assert_eq!(fields.text(), Some(None));
        assert_eq!(fields.text(), Some(Some(Vec::new())));
        assert_eq!(fields.text(), Some(Some(b"c".to_vec())));
        assert_eq!(fields.text(), None);
        assert_eq!(Fields(&[0xfe, 0, 0, 0, 0, 0, 0, 0, 1]).length(), Some(1 << 56));
    }

    #[test]
    fn an_error_is_told_with_its_code() {
        let told = refusal(b"\xff\x15\x04#28000Access denied for user 'l'\x1b", None);
        assert_eq!((told.code, told.text.shown()), (1045, "Access denied for user 'l'\\u{1b}"));
        assert_eq!(refusal(b"\xff\x10\x04Too many connections", None).code, 1040);
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parsers(bytes: Vec<u8>) {
            let _ = refusal(&bytes, None);
            let _ = parse_ok(&bytes);
            let _ = end(&bytes);
            let mut fields = Fields(&bytes);
            while fields.text().is_some() {}
        }
    }
}
