//! Through the C functions, called as a C program calls them.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use memlock::*;
use memlock_core::{Answer, Mismatch};

use super::{Counter, Door, For, Held, List, No, Outcome, Owner, Renewed, Semaphore, millis};

mod counter;
mod held;
mod list;
mod semaphore;

/// The C door.
#[derive(Clone)]
pub(super) struct C(Arc<Client>);

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
    pub(super) fn open(url: &str) -> Outcome<C> {
        let url = text(url.as_bytes());
        let mut client = ptr::null_mut();
        // SAFETY: the string and the place are valid.
        done(unsafe { memlock_client_open(url.as_ptr(), &mut client) })?;
        Ok(C(Arc::new(Client(client))))
    }

    fn get(&self) -> *const memlock_client {
        self.0.0
    }

    fn lock_handle(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<*mut memlock_lock> {
        let mut lock = ptr::null_mut();
        // SAFETY: the client is open, and the string and the place are valid.
        done(unsafe {
            let name = text(name);
            memlock_mutex_lock(self.get(), name.as_ptr(), millis(lease), wait.ms(), &mut lock)
        })?;
        Ok(lock)
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
        Ok(held::lock(self.lock_handle(name, lease, wait)?))
    }

    fn lock_renewed(
        &self,
        name: &[u8],
        lease: Duration,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        held::lock(self.lock_handle(name, lease, For::Ever)?).renew(max_hold)
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

    fn semaphore_with(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
        mismatch: Mismatch,
    ) -> Outcome<Box<dyn Semaphore>> {
        semaphore::open(self, name, permits, lease, mismatch)
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
