//! In by the Rust types.

use std::time::Duration;

use memlock_core::{
    Answer, Client, DistinctList, Error, Extension, Insertion, Lock, Release, SetUp, Wait, Waited,
};

use super::{Door, For, Held, Holder, Listed, No, Outcome};

/// The Rust door.
#[derive(Debug)]
pub struct Rust(pub Client);

impl Rust {
    /// Opens it.
    pub fn open(url: &str) -> Outcome<Rust> {
        Ok(Rust(Client::connect(url).map_err(no)?))
    }
}

fn no(error: Error) -> No {
    No { answer: error.kind().answer(), sentence: error.to_string() }
}

fn found<T>(value: Option<T>) -> Outcome<T> {
    value.ok_or_else(|| No::ordinary(Answer::NotFound))
}

impl Door for Rust {
    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>> {
        let wait = match wait {
            For::Never => Wait::NEVER,
            For::AtMost(limit) => Wait::at_most(limit),
            For::Ever => Wait::FOREVER,
        };
        match self.0.mutex(name, lease).and_then(|mutex| mutex.lock_with(&wait)).map_err(no)? {
            Waited::Done(lock) => Ok(Box::new(lock)),
            Waited::Busy => Err(No::ordinary(Answer::Busy)),
            Waited::TimedOut => Err(No::ordinary(Answer::TimedOut)),
            Waited::Interrupted => Err(No::ordinary(Answer::Interrupted)),
        }
    }

    fn owner(&self, name: &[u8]) -> Outcome<Option<Holder>> {
        let mutex = self.0.mutex(name, Duration::from_secs(1)).map_err(no)?;
        let owner = mutex.owner().map_err(no)?;
        Ok(owner.map(|owner| Holder {
            token: owner.token(),
            pid: owner.record.as_ref().map_or(0, |record| record.pid),
            since: owner.record.as_ref().map_or(0, |record| record.since),
        }))
    }

    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()> {
        let mutex = self.0.mutex(name, Duration::from_secs(1)).map_err(no)?;
        if mutex.force_unlock(token).map_err(no)? { Ok(()) } else { Err(No::ordinary(Answer::NotHeld)) }
    }

    fn set_up(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn Listed>)> {
        let mut list = self.0.distinct_list(session).map_err(no)?;
        let answer = match list.set_up(duration).map_err(no)? {
            SetUp::Created => Answer::Ok,
            SetUp::Joined => Answer::Exists,
        };
        Ok((answer, Box::new(list)))
    }

    fn list(&self, session: &[u8]) -> Outcome<Box<dyn Listed>> {
        Ok(Box::new(self.0.distinct_list(session).map_err(no)?))
    }

    fn cancel_waits(&self) {
        self.0.cancel_waits();
    }
}

impl Held for Lock {
    fn fence(&self) -> u64 {
        Lock::fence(self)
    }

    fn remaining(&self) -> Duration {
        Lock::remaining(self)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        match Lock::extend(self, lease).map_err(no)? {
            Extension::Extended => Ok(()),
            Extension::Lost => Err(No::ordinary(Answer::Lost)),
            Extension::NotHeld => Err(No::ordinary(Answer::NotHeld)),
        }
    }

    fn unlock(mut self: Box<Self>) -> Outcome<()> {
        match Lock::unlock(&mut self).map_err(no)? {
            Release::Released => Ok(()),
            Release::Lost => Err(No::ordinary(Answer::Lost)),
            Release::NotHeld => Err(No::ordinary(Answer::NotHeld)),
        }
    }
}

fn told(insertion: Insertion) -> (u64, bool) {
    (insertion.id(), matches!(insertion, Insertion::First(_)))
}

impl Listed for DistinctList {
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)> {
        found(DistinctList::insert(self, key).map_err(no)?).map(told)
    }

    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>> {
        let all = found(DistinctList::insert_many(self, keys).map_err(no)?)?;
        Ok(all.into_iter().map(told).collect())
    }

    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>> {
        found(DistinctList::id(self, key).map_err(no)?)
    }

    fn count(&mut self) -> Outcome<u64> {
        found(DistinctList::count(self).map_err(no)?)
    }

    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>> {
        found(self.entries().map_err(no)?)?.collect::<memlock_core::Result<_>>().map_err(no)
    }

    fn tear_down(&mut self) -> Outcome<()> {
        found(DistinctList::tear_down(self).map_err(no)?.then_some(()))
    }
}
