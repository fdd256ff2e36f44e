//! A server that hangs, beside one that does not; and processes that fork.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use memlock_core::{Client, ErrorKind, Extension, Mutex, Pending, Release};
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::Stopwatch;

use super::{LEASE, held};

const SILENCE: Duration = Duration::from_secs(1);

/// Two servers, and locks on each of them.
struct Two {
    servers: [Memcached; 2],
    locks: [Vec<Mutex>; 2],
}

impl Two {
    fn start() -> Two {
        let servers = [Memcached::start(), Memcached::start()];
        let addresses = servers.each_ref().map(|server| server.address());
        let silence = SILENCE.as_millis();
        let url = format!("memcached://{}?io_timeout={silence}ms", addresses.join(","));
        let client = Client::connect(&url).unwrap();
        let mut locks = [Vec::new(), Vec::new()];
        for number in 0..40 {
            let mutex = client.mutex(format!("{number}"), LEASE).unwrap();
            let place = usize::from(mutex.server().ends_with(&addresses[1]));
            locks[place].push(mutex);
        }
        assert!(locks.iter().all(|locks| locks.len() > 5), "each has some");
        Two { servers, locks }
    }
}

#[test]
fn a_server_that_hangs_delays_what_needs_it_and_nothing_else() {
    let Two { servers, locks: [hung, fine] } = Two::start();
    for mutex in [&hung[0], &fine[0]] {
        block_on(held(mutex)).let_go_async();
    }
    servers[0].pause();
    let watch = Stopwatch::start();
    let asked: Vec<Pending<_>> = hung.iter().map(|mutex| mutex.lock_async(None)).collect();
    assert!(watch.elapsed() < SILENCE / 2, "to ask blocks nobody: {:?}", watch.elapsed());
    for mutex in fine.iter().cycle().take(20) {
        let lock = block_on(held(mutex));
        let (_, released) = block_on(lock.release_async()).unwrap();
        assert_eq!(released.unwrap(), Release::Released);
    }
    assert!(watch.elapsed() < SILENCE, "the other server: {:?}", watch.elapsed());
    // One of them waits for the server, and the others are told.
    let began = Instant::now();
    for pending in asked {
        let error = block_on(pending).unwrap_err();
        assert!(error.is_outage(), "{error:?}");
    }
    let most = 4 * SILENCE;
    assert!(watch.elapsed() < most || began.elapsed() > most, "{:?}", watch.elapsed());
    servers[0].resume();
}

/// A call that sends nothing shows nothing of the server.
#[test]
fn a_server_that_answers_again_is_asked_by_the_first_call_that_needs_it() {
    let server = Memcached::start();
    let client = Client::connect(&format!("{}?io_timeout=1s", server.url())).unwrap();
    let [mut lost, kept] =
        ["lost", "kept"].map(|name| client.mutex(name, LEASE).unwrap().lock().unwrap());
    assert!(client.mutex("lost", LEASE).unwrap().force_unlock(&lost.token().to_string()).unwrap());
    assert_eq!(lost.extend(LEASE).unwrap(), Extension::Lost);
    server.pause();
    let error = client.mutex("asked", LEASE).unwrap().try_lock().unwrap_err();
    assert!(error.is_outage(), "{error:?}");
    server.resume();
    for (lock, is) in [(lost, Release::Lost), (kept, Release::Released)] {
        let (_, released) = block_on(lock.release_async()).unwrap();
        assert_eq!(released.unwrap(), is);
    }
}

/// The child has not the thread that carries the call out.
#[test]
fn a_child_has_no_part_in_its_parents_calls() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let lock = block_on(held(&mutex));
    let mut waits = mutex.lock_async(None);
    // SAFETY: the child calls nothing but memlock, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = waits.take();
        let is_right = matches!(told, Some(Err(error)) if error.kind() == ErrorKind::Interrupted);
        drop(waits);
        // Its own calls have a thread of its own.
        let own = block_on(mutex.lock_async(Some(Duration::ZERO)));
        let is_busy = matches!(own, Ok(Err(_)));
        // SAFETY: it ends the process.
        unsafe { libc::_exit(if is_right && is_busy { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was told something else");
    lock.let_go_async();
    drop(block_on(waits).unwrap().unwrap());
}
