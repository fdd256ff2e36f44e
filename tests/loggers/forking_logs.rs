//! Callbacks that fork while many threads are at work: a child returns from its callback into the
//! middle of a call of the parent's, and does not wait for threads that are not there any more.
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use log::{Log, Metadata, Record};
use memlock_core::{Client, Notice, RenewOptions, Renewal, Request, Wait};
use memlock_tests::server::Memcached;

use crate::{LEASE, PATIENCE, RIGHT, Sets, alone_with, end, fork, kill, status_now};

/// It is renewed more than once a second, and a grant that took long is good for some of it yet.
const SHORT: Duration = Duration::from_secs(2);
const MOST_AT_ONCE: usize = 6;

static FORKS: AtomicBool = AtomicBool::new(false);
static ALIVE: AtomicUsize = AtomicUsize::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);
static CHILDREN_MADE: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this is the only thread of a child.
    static IS_CHILD: Cell<bool> = const { Cell::new(false) };
}

/// Forks now and then.
fn fork_at_random(what: &str) {
    if !FORKS.load(Ordering::SeqCst) || IS_CHILD.get() {
        return;
    }
    let number = ASKED.fetch_add(1, Ordering::Relaxed);
    let is_common = what.starts_with("Connected");
    if is_common && !RandomState::new().hash_one(number).is_multiple_of(10) {
        return;
    }
    // In the parent alone; a child may have caught it locked.
    let Ok(mut made) = CHILDREN_MADE.try_lock() else { return };
    if ALIVE.load(Ordering::SeqCst) >= MOST_AT_ONCE {
        return;
    }
    let child = fork();
    if child == 0 {
        IS_CHILD.set(true);
    } else {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        let thread = thread::current().name().unwrap_or_default().to_owned();
        made.push((child, format!("{thread}: {what}")));
    }
}

pub(crate) struct Forker;

impl Log for Forker {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        fork_at_random(&record.args().to_string());
    }

    fn flush(&self) {}
}

/// Ends a child that has returned from the call.
fn returned<T>(client: &Client, answer: T) -> T {
    if IS_CHILD.get() {
        drop(answer);
        let own = client.distinct_list("of the child").unwrap().set_up(LEASE);
        end(own.is_ok());
    }
    answer
}

/// Renews a lock whose loss is reported to it, has it lost, and gives it back.
fn lose(client: &Client, server: &Memcached, name: &str, look: impl Fn(&Renewal)) {
    let tell = |notice| {
        if matches!(notice, Notice::Lost(_)) {
            fork_at_random("told");
        }
    };
    let renew = RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) };
    let mutex = client.mutex(name, SHORT).unwrap();
    let Some(lock) = returned(client, mutex.lock_with(&Wait::at_most(PATIENCE))).unwrap().done()
    else {
        return;
    };
    let kept = lock.renew(renew).unwrap();
    look(&kept);
    let _ = server.plain().delete(&format!("lock:{name}"));
    let _ = returned(client, kept.check());
    look(&kept);
    let _ = returned(client, kept.release());
    drop(kept);
    returned(client, ());
}

fn use_mutex(client: &Client) {
    let mutex = client.mutex("m", LEASE).unwrap();
    let taken = returned(client, mutex.lock_with(&Wait::at_most(PATIENCE)));
    if let Some(mut lock) = taken.unwrap().done() {
        let _ = returned(client, lock.extend(LEASE));
        let _ = returned(client, lock.check());
        let _ = returned(client, lock.unlock());
        drop(lock);
        returned(client, ());
    }
}

fn use_permits(client: &Client, permits: u32) {
    let semaphore = client.semaphore("s", 3, LEASE).unwrap();
    let request = Request { permits, ..Request::default() };
    let taken = returned(client, semaphore.acquire_with(request, &Wait::at_most(PATIENCE)));
    if let Some(mut permit) = taken.unwrap().done() {
        let _ = returned(client, permit.extend(LEASE));
        let _ = returned(client, permit.release());
        drop(permit);
        returned(client, ());
    }
}

/// Waits for the end of the children that there are. Gives how many have ended.
fn reap(alive: &mut Vec<(i32, String, Instant)>) -> usize {
    let made = std::mem::take(&mut *CHILDREN_MADE.lock().unwrap());
    alive.extend(made.into_iter().map(|(child, what)| (child, what, Instant::now())));
    let before = alive.len();
    alive.retain(|(child, what, made)| {
        let Some(status) = status_now(*child) else {
            if made.elapsed() > PATIENCE {
                kill(*child);
                FORKS.store(false, Ordering::SeqCst);
                panic!("a child has not ended by itself: {what}")
            }
            return true;
        };
        let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        // A child of a thread of memlock's own ends with that thread.
        assert!(matches!(code, Some(0 | RIGHT)), "the child of {what}: {status:#x}");
        ALIVE.fetch_sub(1, Ordering::SeqCst);
        false
    });
    before - alive.len()
}

#[test]
fn children_of_callbacks_end_although_other_threads_were_at_work() {
    children_of_callbacks_end(80);
}

#[test]
#[ignore = "real time: make prove"]
fn very_many_children_of_callbacks_end_although_other_threads_were_at_work() {
    children_of_callbacks_end(1000);
}

fn children_of_callbacks_end(children: usize) {
    let _alone = alone_with(1);
    let server = Memcached::start();
    // Most calls have to dial, and tell of that.
    let client = Client::connect(&format!("{}?pool=1", server.url())).unwrap();
    let mutexes = ["kept 1", "kept 2", "kept 3"].map(|name| client.mutex(name, SHORT).unwrap());
    let kept = mutexes
        .each_ref()
        .map(|mutex| mutex.lock().unwrap().renew(RenewOptions::default()).unwrap());
    let semaphore = client.semaphore("kept", 2, SHORT).unwrap();
    let permits =
        [(); 2].map(|()| semaphore.acquire().unwrap().renew(RenewOptions::default()).unwrap());
    let is_over = AtomicBool::new(false);
    FORKS.store(true, Ordering::SeqCst);
    let again = |work: &dyn Fn()| {
        while !is_over.load(Ordering::SeqCst) {
            work();
        }
    };
    thread::scope(|scope| {
        let at_the_end = Sets(&is_over);
        let (again, client, server, kept, permits) = (&again, &client, &server, &kept, &permits);
        for _ in 0..2 {
            scope.spawn(move || again(&|| use_mutex(client)));
        }
        for permits in [1, 1, 2] {
            scope.spawn(move || again(&|| use_permits(client, permits)));
        }
        scope.spawn(move || {
            again(&|| {
                kept.iter().chain(permits).for_each(|kept| _ = returned(client, kept.remaining()))
            });
        });
        for name in ["lost-1", "lost-2"] {
            scope.spawn(move || {
                again(&|| {
                    lose(client, server, name, |kept| {
                        // As other threads may look at it all the time.
                        thread::scope(|scope| {
                            scope.spawn(|| (0..5_000).for_each(|_| _ = kept.is_held()));
                        });
                    });
                });
            });
        }
        let (mut alive, mut ended) = (Vec::new(), 0);
        while ended < children {
            ended += reap(&mut alive);
            thread::sleep(Duration::from_millis(1));
        }
        FORKS.store(false, Ordering::SeqCst);
        while !alive.is_empty() {
            reap(&mut alive);
            thread::sleep(Duration::from_millis(1));
        }
        drop(at_the_end);
    });
}
