//! What one round runs in: a server, the way to it, and the clients.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use memlock_core::Client;
use memlock_core::clock::{Clock, SystemClock};
use memlock_core::wait::entries;
use memlock_tests::proxy::Proxy;
use memlock_tests::server::Memcached;

use crate::chance::Chance;
use crate::check::Facts;
use crate::history::{Call, Span};
use crate::processes::{ClientProcess, Kind, Programs, Way};
use crate::{Failure, leftovers, now};
use memlock_tests::cable::Cable;

/// The names that the clients contend for.
pub(crate) const NAMES: [&str; 3] = ["m0", "m1", "m2"];
/// The semaphores, and how many permits each has.
pub(crate) const SEMAPHORES: [(&str, u32); 2] = [("p0", 2), ("p1", 4)];
/// What the clients ask for in their URL: [`crate::check::BOUND`] is made from it.
pub(crate) const SHORT: &str = "io_timeout=300ms&connect_timeout=300ms&outage=1s";
/// Where nothing is wrong with server and wire, a busy machine is not to look like it.
pub(crate) const LONG: &str = "io_timeout=3s&connect_timeout=3s";
/// A life of the server lasts at least so long. Fences rise across lives that began in different
/// seconds; docs/guarantees.md.
const LIFE: Duration = Duration::from_millis(1100);

/// A server, a proxy, a cable if there is one, and a crew.
pub(crate) struct World {
    pub(crate) crew: ClientProcess,
    pub(crate) proxy: Proxy,
    pub(crate) server: Memcached,
    /// By then its present life had begun.
    born: Duration,
    pub(crate) cable: Option<Cable>,
    pub(crate) chance: Chance,
    pub(crate) losses: Vec<Span>,
    pub(crate) pauses: Vec<Span>,
    timeouts: &'static str,
    folder: PathBuf,
}

impl World {
    pub(crate) fn new(
        programs: &Programs,
        timeouts: &'static str,
        cable: Option<Cable>,
        folder: &Path,
    ) -> Result<World, Failure> {
        std::fs::create_dir_all(folder)?;
        let server = match &cable {
            None => Memcached::start(),
            Some(cable) => Memcached::with_args(&["-l", cable.address()]),
        };
        let mut seed = [0; 8];
        SystemClock.random(&mut seed)?;
        let mut chance = Chance(u64::from_ne_bytes(seed));
        Ok(World {
            crew: ClientProcess::new(programs, folder, chance.number()),
            proxy: Proxy::start(server.address()),
            server,
            born: now(),
            cable,
            chance,
            losses: Vec::new(),
            pauses: Vec::new(),
            timeouts,
            folder: folder.to_owned(),
        })
    }

    /// Starts clients behind the proxy, and some at the far end of the cable if there is one.
    pub(crate) fn gather(&mut self, kinds: &[Kind]) -> Result<(), Failure> {
        self.start(kinds)?;
        let far = self.cable.as_ref().map(|cable| Way {
            url: format!(
                "memcached://{}:{}/?{}",
                cable.address(),
                self.server.port(),
                self.timeouts
            ),
            namespace: Some(cable.namespace()),
        });
        for kind in [Kind::C, Kind::Rust] {
            far.iter().try_for_each(|way| self.crew.start(kind, way))?;
        }
        self.crew.see_them_begin()
    }

    /// Starts clients behind the proxy.
    pub(crate) fn start(&mut self, kinds: &[Kind]) -> Result<(), Failure> {
        let listener = self.cable.as_ref().map(|cable| format!("&notify={}", cable.address()));
        let url =
            format!("{}/?{}{}", self.proxy.url(), self.timeouts, listener.unwrap_or_default());
        for kind in kinds {
            self.crew.start(*kind, &Way { url: url.clone(), namespace: None })?;
        }
        Ok(())
    }

    /// Closes all connections through the proxy.
    pub(crate) fn cut_all(&self) {
        self.proxy.refuse(true);
        self.proxy.refuse(false);
    }

    /// What is known beside the histories; `now`: until when they were read.
    pub(crate) fn facts(&self, now: Duration) -> Facts {
        Facts {
            losses: self.losses.clone(),
            pauses: self.pauses.clone(),
            stops: self.crew.stops(now),
            deaths: self.crew.deaths.clone(),
            sound: false,
            punctual: false,
            since: Duration::ZERO,
            now,
        }
    }

    /// What was completed until this moment and not read before.
    pub(crate) fn read(&mut self, until: Duration) -> Result<Vec<Call>, Failure> {
        let mut calls = Vec::new();
        for reader in &mut self.crew.readers {
            calls.extend(reader.read(until)?);
        }
        Ok(calls)
    }

    /// What is under way, or was when its process died.
    pub(crate) fn open(&self) -> impl Iterator<Item = Call> + '_ {
        self.crew.readers.iter().flat_map(|reader| reader.open().cloned())
    }

    /// How many stand in the queues.
    pub(crate) fn queued(&self) -> usize {
        let mut plain = self.server.plain();
        let locks = NAMES.iter().map(|name| format!("lock:{name}%wait"));
        let semaphores = SEMAPHORES.iter().map(|(name, _)| format!("semaphore:{name}%wait"));
        let queues = locks.chain(semaphores).map(|key| plain.get(&key).unwrap_or_default());
        queues.map(|queue| entries::waiters(&queue).count()).sum()
    }

    /// What is left of the clients when all of them have ended.
    pub(crate) fn stuck(&self) -> Result<Vec<String>, Failure> {
        let client = Client::connect(&self.server.url())?;
        Ok([
            leftovers::permits(&client, leftovers::COME_BACK)?,
            leftovers::locks(&client, leftovers::COME_FREE)?,
        ]
        .concat())
    }

    /// Forgets the histories: they showed nothing.
    pub(crate) fn clean_up(self) -> Result<(), Failure> {
        Ok(std::fs::remove_dir_all(&self.folder)?)
    }

    /// Ends the server's life if it lives, when it has lasted long enough, and begins the next one
    /// with further arguments.
    pub(crate) fn restart(&mut self, more: &[&str]) {
        thread::sleep((self.born + LIFE).saturating_sub(now()));
        self.server.restart_with(more);
        self.born = now();
    }

    /// Something that makes the server lose what it has.
    pub(crate) fn lose(&mut self, how: impl FnOnce(&mut World)) {
        let from = now();
        how(self);
        self.losses.push(Span { from, to: now() });
    }
}
