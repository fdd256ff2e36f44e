//! A tool's connection to one server, which is replaced when it was closed.

use std::time::Duration;

use super::protocol::Protocol;
use super::settings::Address;
use crate::error::{ErrorKind, Result};
use crate::store::Failure;
use crate::store::admin::{Admin, Finding, Value};

/// An administrator, a proxy or the server itself may close a connection at any time. Requests of tools
/// change nothing, so each is made once more on a new connection.
pub(super) struct Tool<'a, P: Protocol> {
    protocol: &'a P,
    address: &'a Address,
    connection: Box<dyn Admin>,
}

impl<'a, P: Protocol> Tool<'a, P> {
    pub(super) fn connect(protocol: &'a P, address: &'a Address) -> Result<Tool<'a, P>> {
        Ok(Tool { protocol, address, connection: dial(protocol, address)? })
    }

    fn ask<T>(&mut self, question: impl Fn(&mut dyn Admin) -> Result<T>) -> Result<T> {
        match question(self.connection.as_mut()) {
            // A server that was waited for in vain is not waited for once more.
            Err(error) if error.kind() == ErrorKind::Unreachable && !error.is_silence() => {
                log::debug!("Asking again on a new connection, after: {error}");
                self.connection = dial(self.protocol, self.address)?;
                question(self.connection.as_mut())
            }
            answered => answered,
        }
    }
}

fn dial<P: Protocol>(protocol: &P, address: &Address) -> Result<Box<dyn Admin>> {
    // A login changes nothing.
    protocol.admin(address).map_err(|error| Failure::unsent(error).error)
}

impl<P: Protocol> Admin for Tool<'_, P> {
    fn round_trip(&mut self) -> Result<Duration> {
        self.ask(|admin| admin.round_trip())
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        self.ask(|admin| admin.keys(wanted))
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        self.ask(|admin| admin.values(keys))
    }

    fn health(&mut self, lease: Duration) -> Result<Vec<Finding>> {
        self.ask(|admin| admin.health(lease))
    }
}
