//! Through the futures of the Rust types. What has none is called as in [`Rust`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use memlock_core::{Client, Error, Lock, Permit, Report, Request, semaphore};

use super::asleep;
use super::rust::{Rust, done, no};
use super::{
    Answer, Counter, Door, For, Held, List, Outcome, Owner, PermitHolder, PermitRequest, Renewed,
    Semaphore,
};

/// The door of Rust's futures.
#[derive(Debug)]
pub(super) struct Awaited {
    client: Client,
    blocking: Rust,
}

impl Awaited {
    pub(super) fn open(url: &str) -> Outcome<Awaited> {
        let client = Client::connect(url).map_err(no)?;
        Ok(Awaited { blocking: Rust::of(client.clone()), client })
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls it until it is ready, as a runtime does.
fn ready<F: Future>(future: F) -> F::Output {
    asleep::runs_on(std::process::id(), asleep::WORKERS);
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

fn limit(wait: For) -> Option<Duration> {
    match wait {
        For::Never => Some(Duration::ZERO),
        For::AtMost(limit) => Some(limit),
        For::Ever => None,
    }
}

/// What was awaited, as long as no call for it is in progress.
struct Holds<G>(Option<G>);

impl<G> Holds<G> {
    fn give(granted: Result<Result<G, Report>, Error>) -> Outcome<Box<dyn Held>>
    where
        Holds<G>: Held + 'static,
    {
        Ok(Box::new(Holds(Some(granted.map_err(no)??))))
    }

    fn held(&self) -> &G {
        self.0.as_ref().expect("the last call gave it back")
    }
}

macro_rules! held {
    ($guard:ty, $fence:expr) => {
        impl Held for Holds<$guard> {
            fn fence(&self) -> u64 {
                $fence(self.held())
            }

            fn remaining(&self) -> Duration {
                self.held().remaining()
            }

            fn extend(&mut self, lease: Duration) -> Outcome<()> {
                let held = self.0.take().expect("the last call gave it back");
                let (held, extended) = ready(held.extend_async(lease)).map_err(no)?;
                let held = self.0.insert(held);
                done(held.report(extended.map_err(no)?))
            }

            fn release(mut self: Box<Self>) -> Outcome<()> {
                let held = self.0.take().expect("the last call gave it back");
                let (held, released) = ready(held.release_async()).map_err(no)?;
                done(held.report(released.map_err(no)?))
            }
        }
    };
}

held!(Lock, Lock::fence);
held!(Permit, |_| panic!("permits have no fence"));

impl Door for Awaited {
    fn process(&self) -> u32 {
        self.blocking.process()
    }

    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>> {
        let mutex = self.client.mutex(name, lease).map_err(no)?;
        Holds::give(ready(mutex.lock_async(limit(wait))))
    }

    fn lock_renewed(
        &self,
        name: &[u8],
        lease: Duration,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        self.blocking.lock_renewed(name, lease, max_hold)
    }

    fn owner(&self, name: &[u8]) -> Outcome<Option<Owner>> {
        self.blocking.owner(name)
    }

    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()> {
        self.blocking.force_unlock(name, token)
    }

    fn semaphore(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
    ) -> Outcome<Box<dyn Semaphore>> {
        let semaphore = match permits {
            Some(permits) => self.client.semaphore(name, permits, lease),
            None => self.client.open_semaphore(name, lease),
        };
        Ok(Box::new(AwaitedSemaphore(semaphore.map_err(no)?)))
    }

    fn counter(&self, key: &str) -> Box<dyn Counter> {
        let blocking = self.blocking.counter(key);
        Box::new(AwaitedCounter { client: self.client.clone(), key: key.to_owned(), blocking })
    }

    fn set_up_list(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn List>)> {
        self.blocking.set_up_list(session, duration)
    }

    fn list(&self, session: &[u8]) -> Outcome<Box<dyn List>> {
        self.blocking.list(session)
    }

    fn cancel_waits(&self) {
        self.client.cancel_waits();
    }
}

struct AwaitedSemaphore(semaphore::Semaphore);

impl Semaphore for AwaitedSemaphore {
    fn acquire(&self, ask: PermitRequest, wait: For) -> Outcome<Box<dyn Held>> {
        let request = Request { permits: ask.permits, priority: ask.priority, ages: ask.ages };
        Holds::give(ready(self.0.acquire_async(request, limit(wait))))
    }

    fn acquire_renewed(
        &self,
        permits: u32,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        self.0.acquire_renewed(permits, max_hold)
    }

    fn set_up(&self, life: Duration) -> Outcome<Answer> {
        Semaphore::set_up(&self.0, life)
    }

    fn tear_down(&self) -> Outcome<()> {
        Semaphore::tear_down(&self.0)
    }

    fn resize(&self, permits: u32) -> Outcome<()> {
        Semaphore::resize(&self.0, permits)
    }

    fn available(&self) -> Outcome<u32> {
        self.0.available()
    }

    fn holders(&self) -> Outcome<Vec<PermitHolder>> {
        self.0.holders()
    }
}

struct AwaitedCounter {
    client: Client,
    key: String,
    blocking: Box<dyn Counter>,
}

impl Counter for AwaitedCounter {
    fn set_up(&self, permits: u64) -> Outcome<Answer> {
        self.blocking.set_up(permits)
    }

    fn try_acquire(&self) -> Outcome<()> {
        self.retry(For::Never)
    }

    fn retry(&self, wait: For) -> Outcome<()> {
        let counter = self.client.counter(&self.key).map_err(no)?;
        ready(counter.acquire_retrying_async(limit(wait))).map_err(no)??.keep();
        Ok(())
    }

    fn park(&self, priority: i64, wait: For) -> Outcome<()> {
        let counter = self.client.counter(&self.key).map_err(no)?;
        ready(counter.acquire_async(priority, limit(wait))).map_err(no)??.keep();
        Ok(())
    }

    fn release(&self) -> Outcome<()> {
        self.blocking.release()
    }

    fn available(&self) -> Outcome<u64> {
        self.blocking.available()
    }
}
