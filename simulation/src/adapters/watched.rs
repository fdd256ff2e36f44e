//! A store whose use the oracle observes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use memlock_core::store::{
    Epoch, Failure, Guarantees, Node, Op, Recovery, Reply, Returns, Route, Store,
};

use super::process::current_process;
use crate::world::with;

/// A process's store: one server, or a quorum of several. The oracle learns when a batch of
/// operations begins and ends, on how many servers so ever it runs.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The process in which the client was made.
    pub(crate) process: usize,
    pub(crate) store: Arc<dyn Store>,
}

impl Store for Watched {
    fn run(&self, route: Route, ops: &[Op<'_>]) -> Result<Vec<Reply>, Failure> {
        self.run_while(route, ops, &|| {})
    }

    fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> Result<Vec<Reply>, Failure> {
        let process = current_process(self.process);
        let task = with(|world| world.current).unwrap_or(usize::MAX);
        let is_record = |op: &Op<'_>| match op {
            Op::Add { key, returns: Returns::Nothing, .. }
            | Op::CompareAndSet { key, returns: Returns::Nothing, .. }
            | Op::Get { key, .. } => key.as_str().starts_with("semaphore:"),
            _ => false,
        };
        let permits = ops.iter().any(is_record);
        with(|world| {
            if let Some(awaiting_renewal) =
                world.oracle.renewers.asks(task, process, permits, world.now)
            {
                world.wake(awaiting_renewal);
            }
            if world.oracle.renewers.has(task) {
                world.renewer_sends(process);
            }
        });
        let begun = with(|world| world.now);
        let ran = self.store.run_while(route, ops, meanwhile);
        with(|world| {
            world.oracle.renewers.asked(task, world.now, ran.is_err());
            world.oracle.has_asked(process, begun, world.now);
            let keys = ops.iter().filter_map(|op| {
                if let Op::Get { key, .. } = op { Some(key.as_str()) } else { None }
            });
            if ran.is_ok() {
                keys.for_each(|key| world.oracle.semaphores.has_read(task, key, begun, world.now));
            }
        });
        ran
    }

    fn server_of(&self, route: Route) -> usize {
        self.store.server_of(route)
    }

    fn is_silent(&self, route: Route) -> bool {
        self.store.is_silent(route)
    }

    fn probe(&self, route: Route, anew: Option<Duration>) {
        self.store.probe(route, anew);
    }

    fn title(&self, route: Route) -> String {
        self.store.title(route)
    }

    fn nodes(&self) -> Vec<Node> {
        self.store.nodes()
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    fn recovery(&self, route: Route) -> Option<Recovery> {
        self.store.recovery(route)
    }

    fn recovers(&self, route: Route, life: Epoch) -> bool {
        self.store.recovers(route, life)
    }

    fn time(&self, route: Route) -> Option<Duration> {
        self.store.time(route)
    }

    fn local_address(&self, route: Route) -> Option<IpAddr> {
        self.store.local_address(route)
    }
}
