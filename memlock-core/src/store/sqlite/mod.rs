//! The SQLite store: a file of this host, `sqlite:///abs/path` or `sqlite:relative`.
//!
//! A batch is one transaction, `BEGIN IMMEDIATE` if it may write. It is therefore carried out as a
//! whole or not at all, and a process that is killed during a transaction leaves none of it behind.
//! Items expire by this host's clock that continues during suspends (`CLOCK_BOOTTIME`). After a
//! reboot all earlier holders are dead, and their locks are gone; distinct lists live on for their
//! own lifetime.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the URL, and retries while the file is locked |
//! | `file` | whether a file is suitable for locks, and its creation |
//! | `schema` | setting up and checking the tables, and the changes at a new boot of the host |
//! | `layout` | the tables' texts, compared with those that are found |
//! | `shared` | one connection for each file and process |
//! | `connection` | a connection: opening, batches to transactions, the log |
//! | `abandoned` | connections whose descriptors the program has closed |
//! | `items` | operations to statements, sweeps |
//! | `library` | which versions of SQLite are refused |
//! | `errors` | why a file cannot be used, and what to do |
//! | `room` | the free space and the free inodes of a file system |
//! | `fork_safety` | SQLite across `fork` |
//! | `promises` | what locks in a file promise |
//! | `time` | the host's clock, the same in all its containers |
//! | `admin` | the requests of tools |

mod abandoned;
#[cfg(feature = "admin")]
mod admin;
#[cfg(test)]
mod boot_tests;
mod connection;
mod errors;
mod file;
mod fork_safety;
mod items;
mod layout;
mod library;
mod promises;
mod room;
mod schema;
mod shared;
#[cfg(test)]
mod tests;
mod time;

use std::ffi::OsString;
#[cfg(feature = "admin")]
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::url::Url;
use super::{Failure, Guarantees, Node, Op, Pending, Reply, Request, Route, Store};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fork::ForkLocal;
use crate::name::{Keyspace, percent_decode};
#[cfg(feature = "admin")]
use connection::Connection;
use errors::Stop;
use shared::Share;
use time::BootClock;

/// The pause between attempts once the file was found locked for longer than a transaction takes.
/// The file's lock is granted in no particular order, so all processes pause equally briefly.
const PAUSE: Duration = Duration::from_micros(50);
/// How many attempts are made without a pause.
const SPINS: usize = 40;
/// The pause at a file that has been locked for longer than [`STUCK`], and between two attempts to
/// open one.
const LONG_PAUSE: Duration = Duration::from_millis(1);
/// No transaction takes so long.
const STUCK: Duration = Duration::from_millis(100);

/// The store for `sqlite:`.
#[derive(Debug)]
pub(crate) struct Sqlite {
    place: file::Location,
    io_timeout: Duration,
    clock: BootClock,
    /// The names of the client's items: those of distinct lists live on after a reboot.
    keys: Keyspace,
    /// A connection that a parent process opened is neither used nor closed.
    share: ForkLocal<Share>,
    /// Whether the connection is closed after each call.
    keeps_none: AtomicBool,
}

impl Sqlite {
    /// Parses the URL. Nothing is opened until the first operation.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let path = path_of(url.location()?).map_err(|why| {
            Error::config(format!(
                "{} {why}: write sqlite:///absolute/path.db or sqlite:relative/path.db.",
                url.shown()
            ))
        })?;
        let trusts_networks = match url.take("network").as_deref() {
            None => false,
            Some("trust") => true,
            Some(other) => {
                return Err(url.bad_parameter(
                    "network",
                    other,
                    "is not known: write network=trust for a file system of a network whose \
                     locks and memory maps work as on a local disk, or leave it out.",
                ));
            }
        };
        let io_timeout = url.take_duration("io_timeout", Duration::from_secs(1))?;
        let unfit = |error: Error| error.at(title(&path));
        library::check().map_err(unfit)?;
        let clock = BootClock::new(Arc::clone(clock)).map_err(unfit)?;
        fork_safety::install();
        Ok(Arc::new(Sqlite {
            place: file::Location {
                path,
                trusts_networks,
                #[cfg(test)]
                is_of_another_process: url.take("another_process").is_some(),
            },
            io_timeout,
            clock,
            keys: Keyspace::new(url.get("prefix").unwrap_or_default())?,
            share: ForkLocal::new(),
            keeps_none: AtomicBool::new(false),
        }))
    }

    fn title(&self) -> String {
        title(&self.place.path)
    }

    /// Uses the connection, if there is one.
    #[cfg(feature = "admin")]
    fn with<T>(&self, ask: impl FnOnce(&Connection) -> T) -> Option<T> {
        let shared = self.share.get().existing()?;
        let connection = shared.lock();
        let _call = fork_safety::enter();
        connection.as_ref().map(ask)
    }

    /// Closes the connection, unless another client or a call uses it.
    fn release(&self) {
        if let Some(share) = self.share.existing() {
            share.release();
        }
    }

    /// Runs a batch, and repeats it until the file is unlocked.
    fn attempt(&self, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        self.clock.check().map_err(|error| Failure { error, sent: false })?;
        let began = self.clock.now();
        let mut tries = 0;
        loop {
            let pause = match self.attempt_once(ops) {
                Ok(replies) => return Ok(replies),
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Full(error)) => return Err(Failure { error, sent: false }),
                Err(Stop::Busy) => PAUSE,
                Err(Stop::BusyOpening) => LONG_PAUSE,
            };
            tries += 1;
            if tries <= SPINS && pause == PAUSE {
                std::hint::spin_loop();
                continue;
            }
            let waited = self.clock.now().saturating_sub(began);
            if waited > self.io_timeout {
                let error = errors::kept_locked(&self.place.path, self.io_timeout);
                return Err(Failure { error, sent: false });
            }
            // A file that stays locked is no longer contended for: a process has stopped inside of
            // a transaction.
            self.clock.sleep(if waited > STUCK { LONG_PAUSE } else { pause });
        }
    }

    /// The connection is this thread's for one attempt only, so that no thread's time limit counts
    /// for another.
    fn attempt_once(&self, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Stop> {
        let shared = self.share.get().find(&self.place, self.clock.now())?;
        let mut connection = shared.lock();
        let _call = fork_safety::enter();
        let Sqlite { place, clock, keys, .. } = self;
        connection::run(&mut connection, shared.id, place, clock, keys, ops)
    }
}

impl Store for Sqlite {
    fn send<'a>(&'a self, Request { ops, .. }: Request<'a>) -> Pending<'a> {
        if ops.is_empty() {
            return Pending::ended(Ok(Vec::new()));
        }
        let ran = self.attempt(ops);
        if self.keeps_none.load(Ordering::SeqCst) {
            self.release();
        }
        Pending::ended(
            ran.map_err(|failure| Failure { error: failure.error.at(self.title()), ..failure }),
        )
    }

    fn disconnect(&self) {
        self.keeps_none.store(true, Ordering::SeqCst);
        self.release();
    }

    fn guarantees(&self) -> Guarantees {
        promises::GUARANTEES
    }

    fn time(&self, _route: Route) -> Option<Duration> {
        Some(self.clock.now())
    }

    /// All users of the file are on this host.
    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        Some(Ipv4Addr::LOCALHOST.into())
    }

    fn nodes(&self) -> Vec<Node> {
        vec![Node {
            name: self.place.path.display().to_string(),
            title: self.title(),
            is_container: true,
            timeout: self.io_timeout,
        }]
    }

    #[cfg(feature = "admin")]
    fn missing(&self, _node: usize) -> Option<String> {
        let path = &self.place.path;
        let found = path.symlink_metadata();
        // Without its directory it cannot be created either, which is an error.
        (found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
            && errors::directory_of(path).is_dir())
        .then(|| format!("There is no file {} yet: the first lock creates it.", path.display()))
    }

    #[cfg(feature = "admin")]
    fn admin(&self, _node: usize) -> Result<Box<dyn Admin + '_>> {
        Ok(Box::new(admin::Tool { store: self }))
    }
}

fn title(path: &Path) -> String {
    format!("the file {}", path.display())
}

/// The path, or what is wrong with the URL.
fn path_of(location: &str) -> std::result::Result<PathBuf, String> {
    let bad = |why: &str| Err(why.to_owned());
    let text = match location.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return bad("names a host"),
        None => location,
    };
    let Some(bytes) = percent_decode(text) else { return bad("has a broken %XX code") };
    if bytes == b":memory:" {
        return bad("names no file (memory://NAME is for locks in this process's memory)");
    }
    if bytes.is_empty() || bytes.contains(&0) || bytes.ends_with(b"/") {
        return bad("names no file");
    }
    let path = OsString::from_vec(bytes);
    std::path::absolute(&path).map_err(|error| {
        format!("is relative to the current directory, which cannot be found ({error})")
    })
}
