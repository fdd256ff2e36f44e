//! Prepared statements, for the operations that locks consist of.
//!
//! The server parses a statement once, which takes it half of the time of an operation. A statement is
//! sent as text at first; with the second one of its kind on a connection, a request to prepare it is
//! sent in the same packet. A batch of several operations is sent as text: of statements in one
//! request, none is carried out behind one that was refused.

use mysql_common::Value;
use mysql_common::packets::ComStmtExecuteRequestBuilder;
use mysql_common::proto::MySerialize;

use super::packets::Wire;
use super::schema::Engine;
use super::statements::{Add, Delete, NOW, Set, lifetime};
use crate::error::Result;
use crate::store::remote::Patience;
use crate::store::{Expiry, Op};

/// A longer value is sent as text.
const LONGEST_VALUE: usize = 64 * 1024;

/// A kind of statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Add,
    Set,
    Delete,
}

/// The statements of a connection.
#[derive(Debug, Default)]
pub(super) struct Prepared([State; 3]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unused,
    Used,
    /// With this number.
    Ready(u32),
    /// The server does not prepare it.
    Refused,
}

impl Kind {
    /// The kind of an operation, if it has one.
    pub(super) fn of(op: &Op<'_>) -> Option<Kind> {
        match *op {
            Op::Add { value, expiry: Expiry::After(_), .. } if value.len() <= LONGEST_VALUE => {
                Some(Kind::Add)
            }
            Op::CompareAndSet { value, expiry: Expiry::After(_), .. }
                if value.len() <= LONGEST_VALUE =>
            {
                Some(Kind::Set)
            }
            Op::Delete { .. } => Some(Kind::Delete),
            _ => None,
        }
    }

    fn text(self) -> String {
        let (key, value, number, ends) = ("?", "?", "?", format_args!("{NOW}+?"));
        match self {
            Kind::Add => Add { key, value, ends }.to_string(),
            Kind::Set => Set { value, ends: Some(ends), key, number }.to_string(),
            Kind::Delete => Delete { key, number }.to_string(),
        }
    }
}

impl Prepared {
    /// Writes the request that executes an operation, if its statement is prepared.
    pub(super) fn execute(&self, op: &Op<'_>, engine: Engine, wire: &mut Wire) -> bool {
        let Some(kind) = Kind::of(op) else { return false };
        let State::Ready(statement) = self.0[kind as usize] else { return false };
        let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
        let key = bytes(op.key().as_str().as_bytes());
        let parameters = match *op {
            Op::Add { value, expiry: Expiry::After(lease), .. } => {
                let lifetime = Value::UInt(lifetime(lease, engine));
                vec![key, bytes(value), lifetime.clone(), lifetime]
            }
            Op::CompareAndSet { version, value, expiry: Expiry::After(lease), .. } => {
                let lifetime = Value::UInt(lifetime(lease, engine));
                vec![bytes(value), lifetime, key, Value::UInt(version.number())]
            }
            Op::Delete { version, .. } => vec![key, Value::UInt(version.number())],
            _ => return false,
        };
        let (request, _) = ComStmtExecuteRequestBuilder::new(statement).build(&parameters);
        request.serialize(wire.begin());
        true
    }

    /// Whether a request to prepare the statement is to be sent behind it.
    pub(super) fn is_due(&mut self, kind: Kind) -> bool {
        let state = &mut self.0[kind as usize];
        match *state {
            State::Unused => *state = State::Used,
            State::Used => return true,
            State::Ready(_) | State::Refused => {}
        }
        false
    }

    /// Appends that request.
    pub(super) fn request(kind: Kind, wire: &mut Wire) {
        wire.append_prepare(&kind.text());
    }

    /// Reads the reply to it.
    pub(super) fn read(
        &mut self,
        kind: Kind,
        wire: &mut Wire,
        patience: &mut Patience,
    ) -> Result<()> {
        self.0[kind as usize] = match wire.prepared(patience)? {
            Ok(statement) => State::Ready(statement),
            // For example, because all connections together have too many.
            Err(_) => State::Refused,
        };
        Ok(())
    }

    /// Forgets the statements, because the server did.
    pub(super) fn forget(&mut self) {
        self.0 = [State::Refused; 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_as_many_as_are_written() {
        for (kind, count) in [(Kind::Add, 4), (Kind::Set, 4), (Kind::Delete, 2)] {
            assert_eq!(kind.text().matches('?').count(), count, "{}", kind.text());
        }
    }
}
