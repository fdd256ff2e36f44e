//! In by the C functions, called as a C program would.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::time::Duration;

use memlock::*;
use memlock_core::Answer;

use super::{Door, For, Held, Holder, Listed, No, Outcome};

/// The C door.
#[derive(Debug)]
pub struct C(*mut memlock_client);

struct Lock(*mut memlock_lock);
struct List(*mut memlock_list);

// SAFETY: the header allows a client in any number of threads.
unsafe impl Send for C {}
// SAFETY: as above.
unsafe impl Sync for C {}
// SAFETY: the header allows a lock and a list in one thread at a time, whichever it is.
unsafe impl Send for Lock {}
// SAFETY: as above.
unsafe impl Send for List {}

impl C {
    /// Opens it.
    pub fn open(url: &str) -> Outcome<C> {
        let url = text(url.as_bytes());
        let mut client = ptr::null_mut();
        // SAFETY: the string and the place are valid.
        done(unsafe { memlock_client_open(url.as_ptr(), &mut client) })?;
        Ok(C(client))
    }
}

impl Drop for C {
    fn drop(&mut self) {
        // SAFETY: it was opened and is used by nobody any more.
        unsafe { memlock_client_close(self.0) };
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
        Some(answer) => Err(No { answer, sentence }),
        None => panic!("the C library answered {code}, which is in no table"),
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

fn read(room: &[c_char]) -> String {
    // SAFETY: the library ends what it writes with NUL.
    unsafe { CStr::from_ptr(room.as_ptr()) }.to_string_lossy().into_owned()
}

impl Door for C {
    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>> {
        let wait_ms = match wait {
            For::Never => 0,
            For::AtMost(limit) => millis(limit),
            For::Ever => -1,
        };
        let mut lock = ptr::null_mut();
        // SAFETY: the client is open, and the string and the place are valid.
        done(unsafe {
            memlock_mutex_lock(self.0, text(name).as_ptr(), millis(lease), wait_ms, &mut lock)
        })?;
        Ok(Box::new(Lock(lock)))
    }

    fn owner(&self, name: &[u8]) -> Outcome<Option<Holder>> {
        // SAFETY: made of numbers only.
        let mut owner: memlock_owner = unsafe { std::mem::zeroed() };
        // SAFETY: the client is open, and the string and the place are valid.
        match done(unsafe { memlock_mutex_owner(self.0, text(name).as_ptr(), &mut owner) }) {
            Err(No { answer: Answer::Busy, .. }) => Ok(Some(Holder {
                token: read(&owner.token),
                pid: owner.pid,
                since: u64::try_from(owner.since).expect("a time after 1970"),
            })),
            Err(No { answer: Answer::NotHeld, .. }) => Ok(None),
            Err(no) => Err(no),
            Ok(()) => panic!("the owner of a mutex is never OK"),
        }
    }

    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()> {
        let (name, token) = (text(name), text(token.as_bytes()));
        // SAFETY: the client is open, and the strings are valid.
        done(unsafe { memlock_mutex_force_unlock(self.0, name.as_ptr(), token.as_ptr()) })
    }

    fn set_up(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn Listed>)> {
        let mut list = ptr::null_mut();
        // SAFETY: the client is open, and the string and the place are valid.
        let code = unsafe {
            memlock_list_set_up(self.0, text(session).as_ptr(), millis(duration), &mut list)
        };
        let answer = match done(code) {
            Ok(()) => Answer::Ok,
            Err(No { answer: Answer::Exists, .. }) => Answer::Exists,
            Err(no) => return Err(no),
        };
        Ok((answer, Box::new(List(list))))
    }

    fn list(&self, session: &[u8]) -> Outcome<Box<dyn Listed>> {
        let mut list = ptr::null_mut();
        // SAFETY: the client is open, and the string and the place are valid.
        done(unsafe { memlock_list_open(self.0, text(session).as_ptr(), &mut list) })?;
        Ok(Box::new(List(list)))
    }

    fn cancel_waits(&self) {
        // SAFETY: the client is open.
        let code = unsafe { memlock_client_cancel_waits(self.0) };
        assert_eq!(code, MEMLOCK_OK);
    }
}

impl Held for Lock {
    fn fence(&self) -> u64 {
        let mut fence = 0;
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { memlock_lock_fence(self.0, &mut fence) }, MEMLOCK_OK);
        fence
    }

    fn remaining(&self) -> Duration {
        let mut remaining = 0;
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { memlock_lock_remaining_ms(self.0, &mut remaining) }, MEMLOCK_OK);
        Duration::from_millis(u64::try_from(remaining).expect("never negative"))
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        // SAFETY: the lock is held.
        done(unsafe { memlock_lock_extend(self.0, millis(lease)) })
    }

    fn unlock(mut self: Box<Self>) -> Outcome<()> {
        let lock = std::mem::replace(&mut self.0, ptr::null_mut());
        // SAFETY: the lock is held and given back here, once.
        done(unsafe { memlock_unlock(lock) })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the lock was not given back before.
            unsafe { memlock_unlock(self.0) };
        }
    }
}

impl Listed for List {
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)> {
        let mut id = 0;
        // SAFETY: the list is open, and the bytes and the place are valid.
        match done(unsafe { memlock_list_insert(self.0, key.as_ptr().cast(), key.len(), &mut id) })
        {
            Ok(()) => Ok((id, true)),
            Err(No { answer: Answer::Duplicate, .. }) => Ok((id, false)),
            Err(no) => Err(no),
        }
    }

    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>> {
        let given: Vec<memlock_bytes> = keys
            .iter()
            .map(|key| memlock_bytes { data: key.as_ptr().cast(), len: key.len() })
            .collect();
        let mut answers = vec![memlock_insertion { id: 0, answer: -99 }; keys.len()];
        // SAFETY: the list is open, and there are as many places as keys.
        done(unsafe {
            memlock_list_insert_many(self.0, given.as_ptr(), given.len(), answers.as_mut_ptr())
        })?;
        let told = |insertion: &memlock_insertion| match insertion.answer {
            MEMLOCK_OK => (insertion.id, true),
            MEMLOCK_DUPLICATE => (insertion.id, false),
            other => panic!("an insertion answered {other}"),
        };
        Ok(answers.iter().map(told).collect())
    }

    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>> {
        let mut id = u64::MAX;
        // SAFETY: the list is open, and the bytes and the place are valid.
        done(unsafe { memlock_list_id(self.0, key.as_ptr().cast(), key.len(), &mut id) })?;
        Ok((id != 0).then_some(id))
    }

    fn count(&mut self) -> Outcome<u64> {
        let mut count = 0;
        // SAFETY: the list is open and the place is valid.
        done(unsafe { memlock_list_count(self.0, &mut count) })?;
        Ok(count)
    }

    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>> {
        let mut walk = ptr::null_mut();
        // SAFETY: the list is open and the place is valid.
        done(unsafe { memlock_list_walk(self.0, &mut walk) })?;
        let mut entries = Vec::new();
        let end = loop {
            let (mut id, mut key, mut len) = (0, ptr::null(), 0);
            // SAFETY: the walk is open and the places are valid.
            let next = done(unsafe { memlock_walk_next(walk, &mut id, &mut key, &mut len) });
            if next.is_err() || key.is_null() {
                break next;
            }
            // SAFETY: valid until the next step.
            entries.push((id, unsafe { std::slice::from_raw_parts(key.cast(), len) }.to_vec()));
        };
        // SAFETY: the walk is used no more.
        unsafe { memlock_walk_close(walk) };
        end.map(|()| entries)
    }

    fn tear_down(&mut self) -> Outcome<()> {
        // SAFETY: the list is open.
        done(unsafe { memlock_list_tear_down(self.0) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is used no more.
        unsafe { memlock_list_close(self.0) };
    }
}
