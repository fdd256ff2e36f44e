//! In by the Rust types.

use std::time::Duration;

use memlock_core::{Answer, Client, DistinctList, Error, Insertion, Lock, Report, Wait};

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
    Report::from(error).into()
}

fn done(report: Report) -> Outcome<()> {
    if report == Answer::Ok { Ok(()) } else { Err(report.into()) }
}

fn found<T>(list: &DistinctList, value: Option<T>) -> Outcome<T> {
    value.ok_or_else(|| list.report_not_found().into())
}

impl Door for Rust {
    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>> {
        let wait = match wait {
            For::Never => Wait::NEVER,
            For::AtMost(limit) => Wait::at_most(limit),
            For::Ever => Wait::FOREVER,
        };
        let mutex = self.0.mutex(name, lease).map_err(no)?;
        Ok(Box::new(mutex.lock_or_report(&wait).map_err(no)??))
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
        if mutex.force_unlock(token).map_err(no)? {
            Ok(())
        } else {
            Err(mutex.report_not_held().into())
        }
    }

    fn set_up(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn Listed>)> {
        let mut list = self.0.distinct_list(session).map_err(no)?;
        let answer = list.set_up(duration).map_err(no)?.into();
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
        let extended = Lock::extend(self, lease).map_err(no)?;
        done(self.report(extended))
    }

    fn unlock(mut self: Box<Self>) -> Outcome<()> {
        let released = Lock::unlock(&mut self).map_err(no)?;
        done(self.report(released))
    }
}

fn told(insertion: Insertion) -> (u64, bool) {
    (insertion.id(), matches!(insertion, Insertion::First(_)))
}

impl Listed for DistinctList {
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)> {
        let inserted = DistinctList::insert(self, key).map_err(no)?;
        found(self, inserted).map(told)
    }

    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>> {
        let all = DistinctList::insert_many(self, keys).map_err(no)?;
        Ok(found(self, all)?.into_iter().map(told).collect())
    }

    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>> {
        let id = DistinctList::id(self, key).map_err(no)?;
        found(self, id)
    }

    fn count(&mut self) -> Outcome<u64> {
        let count = DistinctList::count(self).map_err(no)?;
        found(self, count)
    }

    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>> {
        let entries = self.entries().map_err(no)?;
        found(self, entries)?.collect::<memlock_core::Result<_>>().map_err(no)
    }

    fn tear_down(&mut self) -> Outcome<()> {
        let was_there = DistinctList::tear_down(self).map_err(no)?;
        found(self, was_there.then_some(()))
    }
}
