//! What the C functions that drop a handle report when the server refuses or does not answer.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::ffi::{CStr, CString, c_int};
use std::ptr;

use memlock::*;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;

const REFUSAL: &str = "object too large for cache";

/// A lock and a permit, renewed or not.
struct Held {
    client: *mut memlock_client,
    lock: *mut memlock_lock,
    permit: *mut memlock_permit,
}

impl Held {
    fn by(url: &str, io_timeout: &str, renewed: bool) -> Held {
        let url = CString::new(format!("{url}?io_timeout={io_timeout}&notify=off")).unwrap();
        let mut held =
            Held { client: ptr::null_mut(), lock: ptr::null_mut(), permit: ptr::null_mut() };
        let mut semaphore = ptr::null_mut();
        // SAFETY: strings, open handles and local variables.
        unsafe {
            let name = c"held".as_ptr();
            assert_eq!(memlock_client_open(url.as_ptr(), &raw mut held.client), MEMLOCK_OK);
            let answer = memlock_mutex_lock(held.client, name, 30_000, 0, &raw mut held.lock);
            assert_eq!(answer, MEMLOCK_OK);
            let answer = memlock_semaphore_open(held.client, name, 3, 30_000, &raw mut semaphore);
            assert_eq!(answer, MEMLOCK_OK);
            let answer = memlock_semaphore_acquire(semaphore, 1, 0, &raw mut held.permit);
            assert_eq!(answer, MEMLOCK_OK);
            memlock_semaphore_close(semaphore);
            if renewed {
                let answer = memlock_lock_renew(held.lock, -1, None, ptr::null_mut());
                assert_eq!(answer, MEMLOCK_OK);
                let answer = memlock_permit_renew(held.permit, -1, None, ptr::null_mut());
                assert_eq!(answer, MEMLOCK_OK);
            }
        }
        held
    }

    /// Drops both. Returns the answers and the sentences.
    fn drop(self) -> [(c_int, String); 2] {
        let sentence = || {
            // SAFETY: a string of this thread, never NULL.
            unsafe { CStr::from_ptr(memlock_last_error()) }.to_string_lossy().into_owned()
        };
        // SAFETY: open handles, which are not used afterwards.
        unsafe {
            let lock = (memlock_lock_drop(self.lock), sentence());
            let permit = (memlock_permit_drop(self.permit), sentence());
            memlock_client_close(self.client);
            [lock, permit]
        }
    }
}

/// Drops both kinds, renewed or not, at a server that has this fault. Returns the sentences.
fn sentences(io_timeout: &str, fault: impl Fn(&Proxy)) -> Vec<String> {
    let mut sentences = Vec::new();
    for renewed in [false, true] {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        let held = Held::by(&proxy.url(), io_timeout, renewed);
        fault(&proxy);
        for ((answer, sentence), subject) in
            held.drop().into_iter().zip(["the lock \"held\"", "the semaphore \"held\""])
        {
            assert_eq!(answer, MEMLOCK_UNKNOWN, "{sentence}");
            assert!(
                sentence.contains(subject) && sentence.contains(&proxy.address()),
                "{sentence}"
            );
            sentences.push(sentence);
        }
    }
    sentences
}

#[test]
fn a_drop_that_the_server_refuses_reports_the_refusal() {
    let refusal = Fault::GarbleReply(format!("SERVER_ERROR {REFUSAL}\r\n").into_bytes());
    for sentence in sentences("20s", |proxy| proxy.inject_always(Match::Any, refusal.clone())) {
        assert!(sentence.contains(REFUSAL), "{sentence}");
        let silent = ["did not answer", "does not respond"];
        assert!(!silent.iter().any(|text| sentence.contains(text)), "{sentence}");
        assert!(sentence.contains("expires with its lease"), "{sentence}");
    }
}

#[test]
fn a_drop_at_a_silent_server_reports_that_it_did_not_answer() {
    for sentence in sentences("5s", |proxy| proxy.black_hole(true)) {
        assert!(sentence.contains("did not answer"), "{sentence}");
    }
}
