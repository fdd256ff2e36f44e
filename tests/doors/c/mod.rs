//! Through the C functions, called as a C program calls them: blocking, or from an event loop.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use memlock::*;
use memlock_core::Answer;

use super::{Counter, Door, For, Held, List, No, Outcome, Owner, Renewed, Semaphore};

use calls::Calls;

mod calls;
mod counter;
mod event_loop;
mod held;
mod list;
mod pending;
mod renewed;
mod semaphore;

/// The C door.
#[derive(Clone)]
pub(super) struct C {
    client: Arc<Client>,
    calls: Arc<dyn Calls>,
}

struct Client(*mut memlock_client);

// SAFETY: the header allows a client in any number of threads.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: it was opened and nothing uses it any more.
        unsafe { memlock_client_close(self.0) };
    }
}

impl C {
    /// Its calls block.
    pub(super) fn open(url: &str) -> Outcome<C> {
        Ok(C { client: Client::open(url)?, calls: calls::blocking() })
    }

    /// Locks and permits are acquired and released by calls that are started.
    pub(super) fn open_pending(url: &str) -> Outcome<C> {
        let client = Client::open(url)?;
        Ok(C { calls: pending::calls_of(&client), client })
    }

    fn get(&self) -> *const memlock_client {
        self.client.0
    }

    fn lock_handle(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<*mut memlock_lock> {
        self.calls.lock(&self.client, &text(name), millis(lease), wait_ms(wait))
    }
}

impl Client {
    fn open(url: &str) -> Outcome<Arc<Client>> {
        let url = text(url.as_bytes());
        let mut client = ptr::null_mut();
        // SAFETY: the string and the place are valid.
        done(unsafe { memlock_client_open(url.as_ptr(), &mut client) })?;
        Ok(Arc::new(Client(client)))
    }
}

/// Zero, or why not.
fn done(code: c_int) -> Outcome<()> {
    // SAFETY: a string of this thread, never NULL.
    let sentence = unsafe { CStr::from_ptr(memlock_last_error()) }.to_string_lossy().into_owned();
    match Answer::from_code(code) {
        Some(Answer::Ok) => {
            assert_eq!(sentence, "", "nothing is left of an earlier call");
            Ok(())
        }
        Some(answer) => {
            assert_ne!(sentence, "", "{answer:?} has a sentence");
            Err(No { answer, sentence })
        }
        None => panic!("the C library answered {code}, which is in no table"),
    }
}

/// A set-up: whether it was done before is an answer, not a failure.
fn set_up(code: c_int) -> Outcome<Answer> {
    match done(code) {
        Ok(()) => Ok(Answer::Ok),
        Err(No { answer: Answer::Exists, .. }) => Ok(Answer::Exists),
        Err(no) => Err(no),
    }
}

/// A name as C gives it. One with a NUL inside cannot be said in C; it is cut there, as C would.
fn text(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).expect("what comes before the first NUL has none")
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn wait_ms(wait: For) -> i64 {
    match wait {
        For::Never => 0,
        For::AtMost(limit) => millis(limit),
        For::Ever => -1,
    }
}

fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).expect("never negative"))
}

fn read(text: &[c_char]) -> String {
    // SAFETY: the library ends what it writes with NUL.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

fn seconds(since: i64) -> u64 {
    u64::try_from(since).expect("a time after 1970")
}

impl Door for C {
    fn process(&self) -> u32 {
        std::process::id()
    }

    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>> {
        Ok(held::lock(self.lock_handle(name, lease, wait)?, &self.calls))
    }

    fn lock_renewed(
        &self,
        name: &[u8],
        lease: Duration,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        renewed::lock(self.lock_handle(name, lease, For::Ever)?, &self.calls, max_hold)
    }

    fn owner(&self, name: &[u8]) -> Outcome<Option<Owner>> {
        // SAFETY: made of numbers only.
        let mut owner: memlock_owner = unsafe { std::mem::zeroed() };
        // SAFETY: the client is open, and the string and the place are valid.
        match done(unsafe { memlock_mutex_owner(self.get(), text(name).as_ptr(), &mut owner) }) {
            Err(No { answer: Answer::Busy, .. }) => Ok(Some(Owner {
                token: read(&owner.token),
                pid: owner.pid,
                since: seconds(owner.since),
            })),
            Err(No { answer: Answer::NotHeld, .. }) => Ok(None),
            Err(no) => Err(no),
            Ok(()) => panic!("the owner of a mutex is never OK"),
        }
    }

    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()> {
        let (name, token) = (text(name), text(token.as_bytes()));
        // SAFETY: the client is open, and the strings are valid.
        done(unsafe { memlock_mutex_force_unlock(self.get(), name.as_ptr(), token.as_ptr()) })
    }

    fn semaphore(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
    ) -> Outcome<Box<dyn Semaphore>> {
        semaphore::open(self, name, permits, lease)
    }

    fn counter(&self, key: &str) -> Box<dyn Counter> {
        counter::of(self, key)
    }

    fn set_up_list(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn List>)> {
        list::set_up(self, session, duration)
    }

    fn list(&self, session: &[u8]) -> Outcome<Box<dyn List>> {
        list::open(self, session)
    }

    fn cancel_waits(&self) {
        // SAFETY: the client is open.
        let code = unsafe { memlock_client_cancel_waits(self.get()) };
        assert_eq!(code, MEMLOCK_OK);
    }
}
