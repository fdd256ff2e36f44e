//! What all clients of a server have to agree on: the guard, and the members of
//! the quorum that it belongs to. They stand in an item of the server,
//! which every connection reads when it is opened. The first client with a guard writes it; but to
//! a member of a quorum only when a majority has been heard, and none of it has refused the client:
//! a member that was started anew would then refuse all the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::protocol::{Connection, Protocol, ServerTime};
use super::settings::Address;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::recovery::{self, Guard};
use crate::store::{Expiry, Failure, Op, Reply, Returns};

/// The quorum that a server belongs to, as this client has it.
#[derive(Debug)]
pub(super) struct Membership {
    /// Its members.
    all: Vec<Address>,
    /// Their names, as the item has them.
    names: String,
    /// What they said when they were asked last.
    heard: Mutex<BTreeMap<String, Heard>>,
}

/// What is known of a member.
#[derive(Clone, Debug)]
enum Heard {
    Agrees,
    /// It refuses this client, and why.
    Refuses(String),
    /// It did not answer, and why. It is not asked again before that moment.
    Silent(Error, Moment),
}

/// For how long a member that did not answer is not asked again.
const SILENCE: Duration = Duration::from_secs(10);

impl Membership {
    #[cfg(feature = "memcached")]
    pub(super) fn new(all: Vec<Address>) -> Membership {
        let mut names: Vec<&str> = all.iter().map(Address::name).collect();
        names.sort_unstable();
        let names = names.join(",");
        Membership { all, names, heard: Mutex::default() }
    }

    /// Whether a member has agreed or refused.
    fn note<T>(&self, member: &str, agreed: &Result<T>) {
        let heard = match agreed {
            Ok(_) => Heard::Agrees,
            Err(error) => Heard::Refuses(error.to_string()),
        };
        self.heard().insert(member.to_owned(), heard);
    }

    /// Fails if another member refuses this client, or if too few of them answer to tell. `config`:
    /// asks a member for its item.
    fn admit(
        &self,
        member: &str,
        guard: Guard,
        clock: &dyn Clock,
        config: impl Fn(&Address) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        let mut silent = Vec::new();
        for other in self.all.iter().filter(|other| other.name() != member) {
            let known = self.heard().get(other.name()).cloned();
            let is_known = match known {
                Some(Heard::Silent(_, until)) => clock.now() < until,
                known => known.is_some(),
            };
            if !is_known {
                self.ask(other, guard, clock, &config);
            }
            match self.heard().get(other.name()) {
                None | Some(Heard::Agrees) => {}
                Some(Heard::Silent(error, _)) => silent.push((other.name(), error.clone())),
                Some(Heard::Refuses(why)) => {
                    return Err(Error::config(format!(
                        "It is not asked, because {} refuses this client. {why}",
                        other.name()
                    )));
                }
            }
        }
        let too_few = silent.len() > self.all.len() / 2;
        match silent.into_iter().next().filter(|_| too_few) {
            None => Ok(()),
            Some((other, error)) => Err(error.during(format_args!(
                "It was started anew, and too few others tell whether they know this quorum: {other}"
            ))),
        }
    }

    fn ask(
        &self,
        other: &Address,
        guard: Guard,
        clock: &dyn Clock,
        config: impl Fn(&Address) -> Result<Option<Vec<u8>>>,
    ) {
        match config(other) {
            Ok(found) => {
                let agrees =
                    |found: Vec<u8>| recovery::agrees(&found, Some(guard), Some(&self.names));
                self.note(other.name(), &found.map(agrees).transpose());
            }
            Err(error) => {
                let silent = Heard::Silent(error, clock.now() + SILENCE);
                self.heard().insert(other.name().to_owned(), silent);
            }
        }
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<String, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares the guard of this client with that of the others. Writes it if there is none yet.
/// Returns how old the server's life is at least, and since when that is known. `quorum`: the one
/// that it belongs to, and its name there.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if they differ.
pub(super) fn agree<P: Protocol>(
    protocol: &P,
    connection: &mut P::Connection,
    key: &Key,
    guard: Option<Guard>,
    quorum: Option<(&Membership, &str)>,
    clock: &Arc<dyn Clock>,
) -> Result<(Duration, Moment)> {
    let members = quorum.map(|(members, _)| &members.names[..]);
    let found = match (connection.config(), guard) {
        (Some(found), _) => Some(found),
        (None, Some(guard)) => {
            if let Some((members, server)) = quorum {
                let ask = |other: &Address| Ok(protocol.dial(other, None, clock)?.config());
                members.admit(server, guard, clock.as_ref(), ask)?;
            }
            Some(write(connection, key, guard, members, clock.as_ref())?)
        }
        (None, None) => None,
    };
    let agreed = found.map_or(Ok(None), |found| recovery::agrees(&found, guard, members));
    if let Some((members, server)) = quorum {
        members.note(server, &agreed);
    }
    let since = agreed?;
    let told = connection.age();
    Ok(told.unwrap_or_else(|| {
        let age = since.map(|since| connection.time().shown().saturating_sub(since));
        (age.unwrap_or_default(), clock.now())
    }))
}

/// Adds the item. Returns what it contains then.
fn write(
    connection: &mut impl Connection,
    key: &Key,
    guard: Guard,
    quorum: Option<&str>,
    clock: &dyn Clock,
) -> Result<Vec<u8>> {
    let since = match connection.age() {
        Some(_) => None,
        None => Some(connection.time().at(clock.now())),
    };
    let text = recovery::config(guard, quorum, since);
    let add = Op::add(key, text.as_bytes(), Expiry::Never, Returns::Nothing);
    let replies = connection.run(&[add, Op::get(key)], &|| {}).map_err(Failure::of_read)?;
    match replies.into_iter().nth(1) {
        Some(Reply::Value(item)) => Ok(item.value),
        _ => Err(Error::protocol(format!(
            "The item {key}, in which its clients agree on the guard, was lost as soon as it was \
             written: is its memory full?"
        ))),
    }
}
