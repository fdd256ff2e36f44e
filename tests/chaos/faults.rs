//! What happens to servers, network and clients, by chance.

use std::time::Duration;

use memlock_tests::chance::Chance;

use crate::Failure;
use crate::processes::ClientProcess;
use crate::servers::{CLIENTS, Cut, Direction, SERVERS, Servers};

/// One fault, from its beginning to its end.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Killed, and started again at the end.
    Killed(Vec<usize>),
    /// SIGSTOP, and SIGCONT at the end.
    Stopped(usize),
    Cut(Vec<Cut>),
    ClientKilled,
    /// The process, if one was stopped.
    ClientStopped(Option<usize>),
}

impl Fault {
    /// One that spares these servers, and what they have already.
    pub(crate) fn any(chance: &mut Chance, spared: &[usize], down: &[usize]) -> Option<Fault> {
        let mut free: Vec<usize> = (0..SERVERS)
            .filter(|server| !spared.contains(server) && !down.contains(server))
            .collect();
        let mut take = |chance: &mut Chance| {
            let place = chance.below(free.len().max(1) as u64) as usize;
            (place < free.len()).then(|| free.swap_remove(place))
        };
        let calm = !spared.is_empty();
        Some(match chance.below(if calm { 70 } else { 100 }) {
            0..25 => Fault::Killed(vec![take(chance)?]),
            25..40 => Fault::Stopped(take(chance)?),
            40..60 => {
                // One client from one server.
                let (server, client) = (take(chance)?, chance.below(CLIENTS as u64) as usize);
                Fault::Cut(vec![Cut { client, server, direction: direction(chance) }])
            }
            60..70 => {
                // All clients from one server.
                let (server, direction) = (take(chance)?, direction(chance));
                Fault::Cut((0..CLIENTS).map(|client| Cut { client, server, direction }).collect())
            }
            70..80 => {
                // One client from several servers.
                let client = chance.below(CLIENTS as u64) as usize;
                let direction = direction(chance);
                let number = 2 + chance.below(SERVERS as u64 - 1);
                let servers: Vec<usize> = (0..number).filter_map(|_| take(chance)).collect();
                let cut = |server| Cut { client, server, direction };
                Fault::Cut(servers.into_iter().map(cut).collect())
            }
            80..84 => {
                // A majority at once, or all.
                let number = 3 + chance.below(3);
                Fault::Killed((0..number).filter_map(|_| take(chance)).collect())
            }
            84..92 => Fault::ClientKilled,
            _ => Fault::ClientStopped(None),
        })
    }

    /// How long it lasts.
    pub(crate) fn lasts(&self, chance: &mut Chance) -> Duration {
        match self {
            Fault::Killed(_) if chance.below(3) > 0 => Duration::ZERO,
            Fault::Killed(_) => chance.millis(100, 5000),
            Fault::Stopped(_) => chance.millis(50, 5000),
            Fault::Cut(_) => chance.millis(100, 6000),
            Fault::ClientKilled => Duration::ZERO,
            Fault::ClientStopped(_) => chance.millis(50, 5000),
        }
    }

    /// The servers that it concerns.
    pub(crate) fn servers(&self) -> Vec<usize> {
        match self {
            Fault::Killed(servers) => servers.clone(),
            Fault::Stopped(server) => vec![*server],
            Fault::Cut(cuts) => cuts.iter().map(|cut| cut.server).collect(),
            Fault::ClientKilled | Fault::ClientStopped(_) => Vec::new(),
        }
    }

    pub(crate) fn begin(
        &mut self,
        servers: &mut Servers,
        clients: &mut ClientProcess,
    ) -> Result<(), Failure> {
        match self {
            Fault::Killed(which) => servers.kill(which),
            Fault::Stopped(server) => servers.pause(*server),
            Fault::Cut(cuts) => cuts.iter().try_for_each(|cut| servers.cut(*cut, true))?,
            Fault::ClientKilled => clients.replace_any()?,
            Fault::ClientStopped(which) => *which = clients.stop_any()?,
        }
        Ok(())
    }

    pub(crate) fn end(
        &self,
        servers: &mut Servers,
        clients: &mut ClientProcess,
    ) -> Result<(), Failure> {
        match self {
            Fault::Killed(which) => servers.restart(which),
            Fault::Stopped(server) => servers.resume(*server),
            Fault::Cut(cuts) => cuts.iter().try_for_each(|cut| servers.cut(*cut, false))?,
            Fault::ClientStopped(Some(which)) => clients.go_on(*which)?,
            Fault::ClientKilled | Fault::ClientStopped(None) => {}
        }
        Ok(())
    }
}

fn direction(chance: &mut Chance) -> Direction {
    [Direction::Requests, Direction::Replies, Direction::Both][chance.below(3) as usize]
}
