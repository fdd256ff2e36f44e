//! What one round runs in: a server and the way to it, or a file, and the clients.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use memlock_core::Client;
use memlock_core::clock::{Clock, SystemClock};
use memlock_core::lease::MIN_LEASE;
use memlock_tests::cable::Cable;
use memlock_tests::chance::Chance;
use memlock_tests::check::{Facts, Semaphore};
use memlock_tests::disk::Disk;
use memlock_tests::history::{Call, Span};
use memlock_tests::proxy::Proxy;
use memlock_tests::server::Memcached;

use crate::processes::{ClientProcess, Kind, Programs, Way};
use crate::{Failure, leftovers, now};

/// The names that the clients contend for.
pub(crate) const NAMES: [&str; 3] = ["m0", "m1", "m2"];
/// The semaphores that they contend for.
pub(crate) const SEMAPHORES: [Semaphore; 2] =
    [Semaphore { name: "p0", permits: 2, most: 1 }, Semaphore { name: "p1", permits: 4, most: 3 }];
/// How much longer than its limit a call may take: three attempts that each wait for a connection,
/// its introduction and an answer, for as long as [`SHORT`] allows, and a queue that is left; and
/// the same time once more, for which the machine is busy.
pub(crate) const BOUND: Duration = Duration::from_secs(8);
/// What the clients ask for in their URL.
pub(crate) const SHORT: Timeouts =
    Timeouts { any: "io_timeout=300ms&outage=1s", server: "&connect_timeout=300ms" };
/// Where nothing is wrong with server and wire, a busy machine is not to look like it.
pub(crate) const LONG: Timeouts = Timeouts { any: "io_timeout=3s", server: "&connect_timeout=3s" };
/// A life of the server lasts at least so long. Fences rise across lives that began in different
/// seconds; docs/guarantees.md.
const LIFE: Duration = Duration::from_millis(1100);

/// The parameters of a URL.
#[derive(Clone, Copy)]
pub(crate) struct Timeouts {
    /// Those of any store.
    any: &'static str,
    /// Those of a server.
    server: &'static str,
}

/// What a round needs beside a memcached and a proxy.
#[derive(Default)]
pub(crate) struct Setting {
    /// To further clients.
    pub(crate) cable: Option<Cable>,
    /// The SQLite file in which the clients lock, instead of on the server.
    pub(crate) file: Option<PathBuf>,
    /// The disk on which the file is, if that is one of its own.
    pub(crate) disk: Option<Disk>,
}

/// A server, a proxy, what else a round needs, and a crew.
pub(crate) struct World {
    pub(crate) crew: ClientProcess,
    pub(crate) proxy: Proxy,
    pub(crate) server: Memcached,
    /// By then its present life had begun.
    born: Duration,
    pub(crate) setting: Setting,
    pub(crate) chance: Chance,
    pub(crate) losses: Vec<Span>,
    pub(crate) pauses: Vec<Span>,
    timeouts: Timeouts,
    folder: PathBuf,
}

impl World {
    pub(crate) fn new(
        programs: &Programs,
        timeouts: Timeouts,
        setting: Setting,
        folder: &Path,
    ) -> Result<World, Failure> {
        std::fs::create_dir_all(folder)?;
        let server = match &setting.cable {
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
            setting,
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
        let far = self.setting.cable.as_ref().map(|cable| Way {
            url: format!(
                "memcached://{}:{}/?{}{}",
                cable.address(),
                self.server.port(),
                self.timeouts.any,
                self.timeouts.server
            ),
            namespace: Some(cable.namespace()),
        });
        for kind in [Kind::C, Kind::Rust] {
            far.iter().try_for_each(|way| self.crew.start(kind, way))?;
        }
        self.crew.see_them_begin()
    }

    /// Starts clients behind the proxy, or on the file.
    pub(crate) fn start(&mut self, kinds: &[Kind]) -> Result<(), Failure> {
        let Timeouts { any, server } = self.timeouts;
        let url = match &self.setting {
            Setting { file: Some(file), .. } => format!("sqlite://{}?{any}", file.display()),
            Setting { cable: Some(cable), .. } => {
                format!("{}/?{any}{server}&notify={}", self.proxy.url(), cable.address())
            }
            _ => format!("{}/?{any}{server}", self.proxy.url()),
        };
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
            now,
            bound: BOUND,
            semaphores: &SEMAPHORES,
            ..Facts::default()
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

    /// A client of the checker's own, past all faults.
    fn client(&self) -> Result<Client, Failure> {
        let file = self.setting.file.as_ref();
        let url =
            file.map_or_else(|| self.server.url(), |file| format!("sqlite://{}", file.display()));
        Ok(Client::connect(&url)?)
    }

    /// The number of entries in the queues.
    pub(crate) fn queued(&self) -> Result<usize, Failure> {
        let client = self.client()?;
        let mut entries = 0;
        for name in NAMES {
            entries += client.mutex(name, MIN_LEASE)?.waiters()?.len();
        }
        for Semaphore { name, .. } in SEMAPHORES {
            entries += client.open_semaphore(name, MIN_LEASE)?.waiters()?.len();
        }
        Ok(entries)
    }

    /// What is left of the clients when all of them have ended.
    pub(crate) fn stuck(&self) -> Result<Vec<String>, Failure> {
        let client = self.client()?;
        Ok([
            self.crew.half_lines(),
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
