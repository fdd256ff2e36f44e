//! Thousands of calls that are cancelled at any moment, beside some that are not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use futures::executor::block_on;
use memlock_core::{Client, Mutex, Pending};
use memlock_tests::chance::Chance;
use memlock_tests::launch::poll_until;
use memlock_tests::process::Server;
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::Memcached;

use super::PATIENCE;
use crate::stores::redis::Redis;

/// What a lost grant may cost others.
const LEASE: Duration = Duration::from_secs(20);
const IO_TIMEOUT: Duration = Duration::from_millis(500);

/// How many calls are cancelled; MEMLOCK_CANCELLATIONS is another number.
fn many() -> u64 {
    std::env::var("MEMLOCK_CANCELLATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(1500)
}

fn seed() -> u64 {
    let told = std::env::var("MEMLOCK_SEED").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    told.unwrap_or_else(|| now() as u64)
}

/// Calls of two clients are cancelled before they are sent, while they are, when they are granted and
/// while they wait. `url`: as the clients reach the store; `plain`: past all faults.
fn cancel_at_any_moment(url: &str, plain: &str) {
    let seed = seed();
    println!("MEMLOCK_SEED={seed}");
    let clients = [Client::connect(url).unwrap(), Client::connect(url).unwrap()];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Who wants it gets it.
        let patient = clients.iter().map(|client| {
            let mutex = client.mutex("m", LEASE).unwrap();
            let is_over = &is_over;
            scope.spawn(move || {
                let mut grants = 0;
                while !is_over.load(Ordering::SeqCst) {
                    // A reply that is lost twice has an error as its result.
                    if let Ok(got) = block_on(mutex.lock_async(Some(PATIENCE))) {
                        got.expect("it was never granted").let_go_async();
                        grants += 1;
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                grants
            })
        });
        let patient: Vec<_> = patient.collect();
        let cancelling = clients.iter().enumerate().map(|(place, client)| {
            let mutex = client.mutex("m", LEASE).unwrap();
            scope.spawn(move || cancel(&mutex, &mut Chance(seed + place as u64), many() / 2))
        });
        cancelling.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        is_over.store(true, Ordering::SeqCst);
        for thread in patient {
            assert!(thread.join().unwrap() > 0, "nothing was granted");
        }
    });
    // Nothing is left behind for longer than a request without a reply takes.
    let observer = Client::connect(plain).unwrap().mutex("m", LEASE).unwrap();
    let is_free = || {
        // What was left behind is removed at the next contact.
        for client in &clients {
            drop(client.mutex("other", LEASE).unwrap().try_lock());
        }
        (observer.owner().unwrap().is_none() && observer.waiters().unwrap().is_empty())
            .then_some(())
    };
    assert!(poll_until(LEASE / 2, is_free).is_some(), "{:?}", observer.owner());
}

fn cancel(mutex: &Mutex, chance: &mut Chance, number: u64) {
    let mut waiting: Vec<Pending<_>> = Vec::new();
    for _ in 0..number {
        let limit = match chance.below(4) {
            0 => Some(Duration::ZERO),
            1 => Some(chance.millis(1, 20)),
            _ => None,
        };
        let mut asked = mutex.lock_async(limit);
        match chance.below(4) {
            0 => {}
            1 => thread::sleep(Duration::from_micros(chance.below(300))),
            2 => thread::sleep(Duration::from_micros(chance.below(3000))),
            _ => {
                waiting.push(asked);
                if waiting.len() < 20 {
                    continue;
                }
                asked = waiting.swap_remove(chance.below(20) as usize);
            }
        }
        match chance.below(3) {
            0 => {
                asked.cancel();
                if let Ok(Ok(lock)) = block_on(asked) {
                    lock.let_go_async();
                }
            }
            _ => drop(asked),
        }
    }
}

#[test]
fn calls_are_cancelled_on_memcached() {
    let server = Memcached::start();
    cancel_at_any_moment(&server.url(), &server.url());
}

/// Some requests are cut off, and some replies never come.
#[test]
fn calls_are_cancelled_on_memcached_while_replies_are_lost() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let mut bursts = 0_u64;
    proxy.decide(move |_| {
        bursts += 1;
        match bursts % 400 {
            0 => Some(Fault::SwallowReply),
            100 => Some(Fault::CutAfterRequest),
            200 => Some(Fault::CutBeforeRequest),
            300 => Some(Fault::DelayReply(Duration::from_millis(20))),
            _ => None,
        }
    });
    let timeout = IO_TIMEOUT.as_millis();
    let url = format!("{}/?io_timeout={timeout}ms&connect_timeout={timeout}ms", proxy.url());
    cancel_at_any_moment(&url, &server.url());
}

#[test]
fn calls_are_cancelled_on_redis() {
    let server = Redis::start(&[]);
    cancel_at_any_moment(&server.url(), &server.url());
}

#[test]
fn calls_are_cancelled_on_sqlite() {
    let folder = std::env::temp_dir().join(format!("memlock-storm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let url = format!("sqlite://{}/locks.db", folder.display());
    cancel_at_any_moment(&url, &url);
    std::fs::remove_dir_all(&folder).unwrap();
}
