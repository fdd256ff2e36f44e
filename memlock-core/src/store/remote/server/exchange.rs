//! One batch on a server: sending it over an idle connection or a new one, and receiving the replies.

use super::{Before, Life, Server};
use crate::clock::Moment;
use crate::store::remote::protocol::{Connection, Protocol};
use crate::store::{Admitted, Failure, Pending, Replies, Request, TimeLimit};

/// A connection in use.
struct Used<P: Protocol> {
    connection: Box<P::Connection>,
    /// The epoch of the idle connections when it was taken; `None`: it is not kept.
    epoch: Option<u64>,
    /// The server before the dial, if the connection is new and that was not noted yet.
    dialled: Option<Before<Life<P>>>,
    /// When the use began.
    began: Moment,
}

/// A batch that was sent.
struct Exchange<'a, P: Protocol> {
    used: Used<P>,
    admitted: Admitted<'a>,
    /// `None`: no operation was admitted.
    sent: Option<<P::Connection as Connection>::Sent>,
}

impl<P: Protocol> Server<P> {
    /// Sends a batch to this server.
    ///
    /// An idle connection may have been closed without notice. If this is found before the request
    /// was sent, the batch is sent once more on a new connection; unless the server was waited for,
    /// which is not repeated.
    ///
    /// A request with a [brief](TimeLimit::Brief) limit has a connection of its own, which is given
    /// a quarter of the time for each wait, and then closed.
    pub(in crate::store::remote) fn send<'a>(
        &'a self,
        protocol: &'a P,
        request: Request<'a>,
    ) -> Pending<'a> {
        let (pooled, epoch) = match request.limit {
            TimeLimit::Usual => self.take(request.ops),
            TimeLimit::Brief => (None, self.epoch()),
        };
        let mut taken = pooled.as_ref().map(|pooled| pooled.last_used());
        let mut sent = self.begin(protocol, pooled, epoch, request);
        if sent.as_ref().is_err_and(|failure| self.is_to_be_repeated(failure, taken, epoch)) {
            taken = None;
            sent = self.begin(protocol, None, self.epoch(), request);
        }
        match sent {
            Ok(exchange) => Pending::sent(move || match self.end(protocol, exchange) {
                Err(failure) if self.is_to_be_repeated(&failure, taken, epoch) => {
                    let again = self.begin(protocol, None, self.epoch(), request)?;
                    self.end(protocol, again)
                }
                ended => ended,
            }),
            Err(failure) => Pending::ended(Err(failure)),
        }
    }

    /// Whether a connection was found to be closed that was `taken` into use in this epoch.
    fn is_to_be_repeated(&self, failure: &Failure, taken: Option<Moment>, epoch: u64) -> bool {
        !failure.sent
            && failure.error.is_outage()
            && taken.is_some_and(|taken| self.epoch() != epoch && !self.was_waited_for(taken))
    }

    fn begin<'a>(
        &self,
        protocol: &P,
        pooled: Option<Box<P::Connection>>,
        epoch: u64,
        request: Request<'a>,
    ) -> std::result::Result<Exchange<'a, P>, Failure> {
        let mut used = self.connected(protocol, pooled, epoch, request.limit)?;
        let life = used.connection.epoch();
        // The server only gets older until it carries the request out.
        let recovers = !self.recovers_for(life).is_zero();
        match protocol.evictions().refusal(&mut *used.connection, request.ops, &*self.clock) {
            Ok(None) => {}
            Ok(Some(error)) => {
                // The server has just been asked for its settings, and has answered.
                let began = used.began;
                self.note_dial(protocol, &mut used);
                self.give_back(used.connection, used.epoch);
                return Err(self.failure(Failure::unsent(error), began, false));
            }
            Err(error) => {
                return Err(self.failed(protocol, used, Failure::unsent(error)));
            }
        }
        let admitted = Admitted::of(request.ops, life, recovers);
        let ops = Some(admitted.ops()).filter(|ops| !ops.is_empty());
        match ops.map(|ops| used.connection.send(ops)).transpose() {
            Ok(sent) => Ok(Exchange { used, admitted, sent }),
            Err(failure) => Err(self.failed(protocol, used, failure)),
        }
    }

    fn end(&self, protocol: &P, exchange: Exchange<'_, P>) -> Replies {
        let Exchange { mut used, admitted, sent } = exchange;
        let replies = match sent {
            Some(sent) => used.connection.receive(admitted.ops(), sent),
            None => Ok(Vec::new()),
        };
        match replies {
            Ok(replies) => {
                self.note_dial(protocol, &mut used);
                self.give_back(used.connection, used.epoch);
                Ok(admitted.complete(replies))
            }
            Err(failure) => Err(self.failed(protocol, used, failure)),
        }
    }

    /// An idle connection, or a new one.
    fn connected(
        &self,
        protocol: &P,
        pooled: Option<Box<P::Connection>>,
        mut epoch: u64,
        limit: TimeLimit,
    ) -> std::result::Result<Used<P>, Failure> {
        if let Some(connection) = pooled {
            let began = connection.last_used();
            return Ok(Used { connection, epoch: Some(epoch), dialled: None, began });
        }
        let began = self.clock.now();
        let brief = (limit == TimeLimit::Brief).then(|| self.address.briefly());
        let (connection, before) = self
            .dial(protocol, brief.as_ref().unwrap_or(&self.address))
            .map_err(|error| self.failure(Failure::unsent(error), began, true))?;
        let is_new_life = before.life.is_some_and(|before| before != connection.life());
        if before.moved_from.is_some() || (self.guard.is_some() && is_new_life) {
            // Connections to another life grant nothing any more, and a server that the name has
            // left grants what the new one may grant, too.
            epoch = self.forget_idle();
        }
        // One that is given less time is not kept.
        let epoch = brief.is_none().then_some(epoch);
        Ok(Used { connection: Box::new(connection), epoch, dialled: Some(before), began })
    }

    /// Logs a new connection. This comes after the request, because a logger may take long, and a
    /// request that renews a lease may not have the time.
    fn note_dial(&self, protocol: &P, used: &mut Used<P>) {
        if let Some(before) = used.dialled.take() {
            self.note_contact(protocol, &before, &used.connection);
        }
    }

    /// The failure of a batch after it has `used` a connection.
    fn failed(&self, protocol: &P, mut used: Used<P>, failure: Failure) -> Failure {
        let began = used.began;
        self.note_dial(protocol, &mut used);
        if used.connection.was_refused() {
            self.keep(used.connection, used.epoch);
            let is_again = std::mem::replace(&mut self.idle().was_refused, true);
            return self.failure(failure, began, is_again);
        }
        self.distrust();
        self.failure(failure, began, true)
    }

    /// A failure that names the server, of what `began` then. `is_outage`: whether it may be one.
    fn failure(&self, failure: Failure, began: Moment, is_outage: bool) -> Failure {
        let error = failure.error.at(self.title());
        if is_outage && error.is_outage() {
            self.note_outage(&error, began);
        }
        Failure { error, ..failure }
    }
}
