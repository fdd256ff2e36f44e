//! `evictions=`: what the URL says of servers that may evict locks to make room for other items.
//!
//! | the URL | a server that may evict locks |
//! | --- | --- |
//! | says nothing | is used, and a warning is logged at the first contact |
//! | `evictions=allow` | is used |
//! | `evictions=refuse` | is not asked to store what it might evict; other operations are sent |
//!
//! A connection reads the server's settings when it is opened. It reads them again before something
//! is refused, and when they are [`OLD`], because they can be changed while a server runs.

use std::time::Duration;

use super::protocol::Connection;
use super::settings::Evictions;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::store::{Expiry, Failure, Op};

/// The age at which settings are read again, before something is stored.
const OLD: Duration = Duration::from_secs(60);

impl Evictions {
    /// Fails if the URL refuses what the server may evict, and that includes what the operation
    /// stores.
    pub(super) fn admit(self, connection: &impl Connection, op: &Op<'_>) -> Result<()> {
        if self == Evictions::Refused { keeps(connection, op) } else { Ok(()) }
    }

    /// The reason why the batch is not sent, if there is one.
    ///
    /// # Errors
    /// As those of a request, if the settings cannot be read.
    pub(super) fn refusal<C: Connection>(
        self,
        connection: &mut C,
        ops: &[Op<'_>],
        clock: &dyn Clock,
    ) -> Result<Option<Error>> {
        if self != Evictions::Refused || !ops.iter().any(|op| stored_for(op).is_some()) {
            return Ok(None);
        }
        let is_old = connection.retention_read().is_some_and(|at| clock.now().since(at) >= OLD);
        if !is_old && keep_all(connection, ops).is_ok() {
            return Ok(None);
        }
        connection.read_retention().map_err(|error| Failure::unsent(error).error)?;
        Ok(keep_all(connection, ops).err())
    }
}

/// Fails if the server may evict what the batch stores.
fn keep_all(connection: &impl Connection, ops: &[Op<'_>]) -> Result<()> {
    let epoch = connection.epoch();
    ops.iter().filter(|op| op.is_of(epoch)).try_for_each(|op| keeps(connection, op))
}

fn keeps(connection: &impl Connection, op: &Op<'_>) -> Result<()> {
    stored_for(op).map_or(Ok(()), |expiry| connection.keeps(op.key(), expiry))
}

/// The life of the item that the operation may store. `None`: the operation stores none, or one
/// whose loss breaks no promise of safety.
///
/// A queue that is lost is built anew by its waiters, which costs time and their order. Bytes are
/// appended to what another operation has stored.
fn stored_for(op: &Op<'_>) -> Option<Expiry> {
    let expiry = match *op {
        Op::Add { expiry, .. }
        | Op::CompareAndSet { expiry, .. }
        | Op::Increment { initial: Some((_, expiry)), .. } => expiry,
        Op::Increment { initial: None, .. }
        | Op::Get { .. }
        | Op::Delete { .. }
        | Op::Append { .. }
        | Op::Prepend { .. } => return None,
    };
    (!op.key().is_queue()).then_some(expiry)
}
