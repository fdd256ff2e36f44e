//! What a process sees of one server.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::mutation::{self, Mutation};
use memlock_core::store::memcached::{GUARANTEES, Life};
use memlock_core::store::recovery::Admitted;
use memlock_core::store::{
    Epoch, Failure, Guarantees, Node, Op, Recovery, Reply, Route, Sent, Store,
};
use memlock_core::{Error, ErrorKind};

use super::process::{address_of, current_process};
use crate::server::Command;
use crate::world::network::{self, ExchangeError, Waiting};
use crate::world::{Link, with};

/// The item that stamps are drawn from.
const STAMP: &str = "%stamp";

fn failed(error: ExchangeError) -> Failure {
    match error {
        ExchangeError::Unreachable => Failure {
            error: Error::new(ErrorKind::Unreachable, "It cannot be connected to."),
            sent: false,
        },
        ExchangeError::Lost => {
            Failure { error: Error::new(ErrorKind::Unknown, "No answer came."), sent: true }
        }
    }
}

/// A store on one server.
#[derive(Debug)]
pub(crate) struct SimStore {
    /// The process in which the client was made.
    pub(crate) process: usize,
    /// The number of the server.
    pub(crate) site: usize,
}

/// Operations that the server may carry out now, in one life of it.
struct Batch<'o, 'a> {
    admitted: Admitted<'o, 'a>,
    life: Life,
    stamped: bool,
    request: Option<Waiting>,
}

impl<'o, 'a> Batch<'o, 'a> {
    fn new(admitted: Admitted<'o, 'a>, life: Life) -> Batch<'o, 'a> {
        let unordered = with(|world| world.scenario.unordered);
        let stamped = unordered && admitted.ops().iter().any(Op::wants_fence);
        Batch { admitted, life, stamped, request: None }
    }

    fn commands(&self) -> VecDeque<Command> {
        let sent = self.admitted.ops().iter().filter(|op| unsent(op, self.life).is_none());
        let stamp = self.stamped.then(|| Command::Stamp { key: STAMP.to_owned() });
        sent.map(Command::of).chain(stamp).collect()
    }

    /// Waits for the replies.
    fn receive(self) -> Result<Vec<Reply>, Failure> {
        let Batch { admitted, life, stamped, request } = self;
        let replies = match request {
            Some(request) => network::receive(&request).map_err(failed)?,
            None => Vec::new(),
        };
        let mut replies = replies.into_iter();
        let last = if stamped { replies.next_back() } else { None };
        let stamp = match last {
            Some(Reply::Stored(stamp)) => Some(stamp.version.number()),
            _ => None,
        };
        admitted.run(|ops| {
            let reply = |op| unsent(op, life).or_else(|| replies.next());
            let mut replies: Vec<Reply> = ops.iter().filter_map(reply).collect();
            life.fill_in_fences(ops, &mut replies, stamp);
            Ok(replies)
        })
    }
}

/// The reply to an operation that is not sent.
fn unsent(op: &Op<'_>, life: Life) -> Option<Reply> {
    let is_sent = op.is_of(life.epoch()) || mutation::has(Mutation::VersionsOutliveTheServer);
    (!is_sent).then_some(Reply::VersionMismatch)
}

impl SimStore {
    /// Connects, and sends those operations that the server may carry out now.
    fn begin<'o, 'a>(&self, ops: &'o [Op<'a>]) -> Result<Batch<'o, 'a>, Failure> {
        let process = current_process(self.process);
        // If the connection is found to be closed, nothing was sent. If it closes later, the
        // operations may have been sent.
        let life = network::connect(process, self.site).map_err(|error| {
            // It broke while the operations may have been on their way.
            if error == ExchangeError::Lost {
                with(|world| {
                    ops.iter().for_each(|op| world.is_in_doubt(process, &Command::of(op)))
                });
            }
            failed(error)
        })?;
        let admitted = Admitted::new(ops, life.epoch(), self.recovers_in(life.epoch()));
        let mut batch = Batch::new(admitted, life);
        let commands = batch.commands();
        if !commands.is_empty() {
            let request = network::send(process, self.site, commands);
            batch.request = Some(request.map_err(failed)?);
        }
        Ok(batch)
    }

    /// Calls `body` with what the process knows of the server, and with the time on its clock.
    fn known<T>(&self, body: impl FnOnce(&Link, Moment) -> T) -> T {
        let process = current_process(self.process);
        with(|world| body(&world.processes[process].links[self.site], world.moment(process)))
    }

    fn recovers_in(&self, life: Epoch) -> bool {
        with(|world| world.scenario.guard.is_some())
            && self.known(|link, now| link.observed.recovers(life, now))
    }
}

impl Store for SimStore {
    fn run(&self, route: Route, ops: &[Op<'_>]) -> Result<Vec<Reply>, Failure> {
        self.run_while(route, ops, &|| {})
    }

    fn run_while(
        &self,
        _route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> Result<Vec<Reply>, Failure> {
        let batch = self.begin(ops)?;
        if batch.request.is_some() {
            meanwhile();
        }
        batch.receive()
    }

    fn send<'a>(&'a self, _route: Route, ops: &'a [Op<'a>]) -> Sent<'a> {
        let begun = self.begin(ops);
        Sent::new(move || begun?.receive())
    }

    /// With one server, it never counts as silent: each case is asked.
    fn is_silent(&self, _route: Route) -> bool {
        self.known(Link::is_silent)
    }

    fn probe(&self, _route: Route, anew: Option<Duration>) {
        let process = current_process(self.process);
        with(|world| world.probe(process, self.site, anew));
    }

    fn disconnect(&self) {
        let process = current_process(self.process);
        with(|world| world.processes[process].links[self.site].connected = None);
    }

    fn nodes(&self) -> Vec<Node> {
        let name = format!("s{}", self.site);
        let title = format!("the simulated server {name}");
        vec![Node { name, title, is_container: false, timeout: Duration::from_secs(1) }]
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { guard: with(|world| world.scenario.guard()), ..GUARANTEES }
    }

    fn recovery(&self, _route: Route) -> Option<Recovery> {
        let guard = with(|world| world.scenario.guard())?;
        self.known(|link, now| link.observed.recovery(guard, now))
    }

    fn recovers(&self, _route: Route, life: Epoch) -> bool {
        self.recovers_in(life)
    }

    /// An estimate. A client that seldom reads the server's clock does not know it to the second;
    /// with a quorum, it is as stale as the connection.
    fn time(&self, _route: Route) -> Option<Duration> {
        if with(|world| world.scenario.has_quorum()) {
            return self.known(Link::time);
        }
        Some(Duration::from_secs(with(|world| world.sites[self.site].server.time() + 2)))
    }

    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        Some(address_of(current_process(self.process), 0).ip())
    }
}
