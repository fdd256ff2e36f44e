//! Through the Rust types.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memlock_core::{
    Answer, Client, DistinctList, Error, Insertion, Lock, Loss, Mismatch, Notice, Permit,
    RenewOptions, Renewal, Report, Request, SetUp, Wait, Waited, semaphore,
};

use super::{
    Counter, Door, For, Held, List, No, Outcome, Owner, PermitHolder, PermitRequest, Renewed,
    Semaphore,
};
use crate::frozen::Frozen;

/// The Rust door.
#[derive(Debug)]
pub struct Rust(Client);

impl Rust {
    /// Opens it.
    ///
    /// # Errors
    /// For an URL that cannot be used.
    pub fn open(url: &str) -> Outcome<Rust> {
        Ok(Rust(Client::connect(url).map_err(no)?))
    }

    /// Opens it, and lets no time pass for its calls: a wait that nobody wakes never ends.
    ///
    /// # Errors
    /// For an URL that cannot be used.
    pub fn frozen(url: &str) -> Outcome<Rust> {
        Ok(Rust(Client::with_clock(url, Frozen::clock()).map_err(no)?))
    }
}

fn no(error: Error) -> No {
    Report::from(error).into()
}

fn done(report: Report) -> Outcome<()> {
    if report == Answer::Ok { Ok(()) } else { Err(report.into()) }
}

fn wait(limit: For) -> Wait<'static> {
    match limit {
        For::Never => Wait::NEVER,
        For::AtMost(limit) => Wait::at_most(limit),
        For::Ever => Wait::FOREVER,
    }
}

impl Door for Rust {
    fn process(&self) -> u32 {
        std::process::id()
    }

    fn lock(&self, name: &[u8], lease: Duration, limit: For) -> Outcome<Box<dyn Held>> {
        let mutex = self.0.mutex(name, lease).map_err(no)?;
        Ok(Box::new(mutex.lock_or_report(&wait(limit)).map_err(no)??))
    }

    fn lock_renewed(
        &self,
        name: &[u8],
        lease: Duration,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        let lock = self.0.mutex(name, lease).and_then(|mutex| mutex.lock()).map_err(no)?;
        renewed(max_hold, |options| lock.renew(options))
    }

    fn owner(&self, name: &[u8]) -> Outcome<Option<Owner>> {
        let mutex = self.0.mutex(name, Duration::from_secs(1)).map_err(no)?;
        let owner = mutex.owner().map_err(no)?;
        Ok(owner.map(|owner| Owner {
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

    fn semaphore_with(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
        mismatch: Mismatch,
    ) -> Outcome<Box<dyn Semaphore>> {
        let semaphore = match permits {
            Some(permits) => self.0.semaphore(name, permits, lease),
            None => self.0.open_semaphore(name, lease),
        };
        Ok(Box::new(semaphore.map_err(no)?.with_mismatch(mismatch)))
    }

    fn counter(&self, key: &str) -> Box<dyn Counter> {
        Box::new(Keyed { client: self.0.clone(), key: key.to_owned() })
    }

    fn set_up_list(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn List>)> {
        let mut list = self.0.distinct_list(session).map_err(no)?;
        let answer = list.set_up(duration).map_err(no)?.into();
        Ok((answer, Box::new(list)))
    }

    fn list(&self, session: &[u8]) -> Outcome<Box<dyn List>> {
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

    fn release(mut self: Box<Self>) -> Outcome<()> {
        let released = Lock::unlock(&mut self).map_err(no)?;
        done(self.report(released))
    }
}

impl Held for Permit {
    fn fence(&self) -> u64 {
        panic!("permits have no fence");
    }

    fn remaining(&self) -> Duration {
        Permit::remaining(self)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        let extended = Permit::extend(self, lease).map_err(no)?;
        done(self.report(extended))
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        let released = Permit::release(&mut self).map_err(no)?;
        done(self.report(released))
    }
}

struct Watched {
    renewal: Renewal,
    notices: Arc<Mutex<Vec<Notice>>>,
}

fn renewed(
    max_hold: Option<Duration>,
    renew: impl FnOnce(RenewOptions) -> Result<Renewal, Error>,
) -> Outcome<Box<dyn Renewed>> {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&notices);
    let on_notice = move |notice| heard.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
    let options = RenewOptions { max_hold, on_notice: Some(Box::new(on_notice)) };
    Ok(Box::new(Watched { renewal: renew(options).map_err(no)?, notices }))
}

impl Renewed for Watched {
    fn is_held(&self) -> bool {
        self.renewal.is_held()
    }

    fn check(&self) -> Outcome<bool> {
        self.renewal.check().map_err(no)
    }

    fn lost(&self) -> Option<Loss> {
        self.renewal.lost()
    }

    fn wait_lost(&self, limit: Duration) -> Option<Loss> {
        self.renewal.wait_lost(limit)
    }

    fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn release(self: Box<Self>) -> Outcome<()> {
        let released = self.renewal.release().map_err(no)?;
        done(self.renewal.report(released))
    }
}

fn set_up(answer: SetUp) -> Answer {
    answer.into()
}

impl Semaphore for semaphore::Semaphore {
    fn acquire(&self, ask: PermitRequest, limit: For) -> Outcome<Box<dyn Held>> {
        let request = Request { permits: ask.permits, priority: ask.priority, ages: ask.ages };
        Ok(Box::new(self.acquire_or_report(request, &wait(limit)).map_err(no)??))
    }

    fn acquire_renewed(
        &self,
        permits: u32,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        let request = Request { permits, ..Request::default() };
        let permit = self.acquire_or_report(request, &Wait::FOREVER).map_err(no)??;
        renewed(max_hold, |options| permit.renew(options))
    }

    fn set_up(&self, life: Duration) -> Outcome<Answer> {
        semaphore::Semaphore::set_up(self, life).map(set_up).map_err(no)
    }

    fn tear_down(&self) -> Outcome<()> {
        let was_there = semaphore::Semaphore::tear_down(self).map_err(no)?;
        was_there.then_some(()).ok_or_else(|| self.report_not_found().into())
    }

    fn resize(&self, permits: u32) -> Outcome<()> {
        let before = semaphore::Semaphore::resize(self, permits).map_err(no)?;
        before.map(drop).ok_or_else(|| self.report_not_found().into())
    }

    fn permits(&self) -> Outcome<u32> {
        let status = self.status().map_err(no)?;
        status.map(|status| status.permits).ok_or_else(|| self.report_not_found().into())
    }

    fn available(&self) -> Outcome<u32> {
        let status = self.status().map_err(no)?;
        status.map(|status| status.available).ok_or_else(|| self.report_not_found().into())
    }

    fn holders(&self) -> Outcome<Vec<PermitHolder>> {
        let status = self.status().map_err(no)?;
        let status = status.ok_or_else(|| No::from(self.report_not_found()))?;
        let known = |holder: semaphore::Holder| PermitHolder {
            token: holder.token.to_string(),
            host: holder.host,
            pid: holder.pid,
            permits: holder.permits,
            since: holder.since,
            remaining: holder.remaining,
        };
        Ok(status.holders.into_iter().map(known).collect())
    }
}

/// A counter by its key, which is checked at each call, as in C.
struct Keyed {
    client: Client,
    key: String,
}

impl Keyed {
    fn counter(&self) -> Outcome<memlock_core::Counter> {
        self.client.counter(&self.key).map_err(no)
    }

    fn waited(
        &self,
        limit: For,
        acquire: impl FnOnce(&memlock_core::Counter, &Wait<'_>) -> Result<Waited<()>, Error>,
    ) -> Outcome<()> {
        let counter = self.counter()?;
        let waited = acquire(&counter, &wait(limit)).map_err(no)?;
        done(counter.report(waited, &wait(limit)))
    }
}

impl Counter for Keyed {
    fn set_up(&self, permits: u64) -> Outcome<Answer> {
        let created = self.counter()?.set_up(permits).map_err(no)?;
        Ok(if created { Answer::Ok } else { Answer::Exists })
    }

    fn try_acquire(&self) -> Outcome<()> {
        let counter = self.counter()?;
        let got = counter.try_acquire().map_err(no)?;
        done(counter.report(if got { Waited::Done(()) } else { Waited::Busy }, &Wait::NEVER))
    }

    fn retry(&self, limit: For) -> Outcome<()> {
        self.waited(limit, |counter, wait| counter.acquire_retrying(wait))
    }

    fn park(&self, priority: i64, limit: For) -> Outcome<()> {
        self.waited(limit, |counter, wait| counter.acquire_parked(priority, wait))
    }

    fn release(&self) -> Outcome<()> {
        self.counter()?.release().map(drop).map_err(no)
    }

    fn available(&self) -> Outcome<u64> {
        let counter = self.counter()?;
        let available = counter.available().map_err(no)?;
        available.ok_or_else(|| counter.report_not_found().into())
    }
}

fn found<T>(list: &DistinctList, value: Option<T>) -> Outcome<T> {
    value.ok_or_else(|| list.report_not_found().into())
}

fn inserted(insertion: Insertion) -> (u64, bool) {
    (insertion.id(), matches!(insertion, Insertion::First(_)))
}

impl List for DistinctList {
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)> {
        let insertion = DistinctList::insert(self, key).map_err(no)?;
        found(self, insertion).map(inserted)
    }

    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>> {
        let all = DistinctList::insert_many(self, keys).map_err(no)?;
        Ok(found(self, all)?.into_iter().map(inserted).collect())
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
