//! The same calls on each runtime.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memlock_core::{Answer, Client, ErrorKind, Extension, Release};
use memlock_tests::server::Memcached;

use super::{LEASE, PATIENCE, held};

/// A lock from its first attempt to its release, and what else a holder does.
async fn a_life(url: String) {
    let client = Client::connect(&url).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let lock = mutex.lock_async(None).await.unwrap().unwrap();
    let fence = lock.fence();
    assert!(lock.remaining() > LEASE - Duration::from_secs(10));
    let refused = mutex.lock_async(Some(Duration::ZERO)).await.unwrap().unwrap_err();
    assert_eq!(refused.answer(), Answer::Busy, "{refused}");
    assert!(refused.to_string().contains("held by"), "{refused}");
    let late = mutex.lock_async(Some(Duration::from_millis(60))).await.unwrap().unwrap_err();
    assert_eq!(late.answer(), Answer::TimedOut, "{late}");
    let (lock, extended) = lock.extend_async(2 * LEASE).await.unwrap();
    assert_eq!(extended.unwrap(), Extension::Extended);
    assert!(lock.remaining() > LEASE);
    let (lock, checked) = lock.check_async().await.unwrap();
    assert!(checked.unwrap());
    let (lock, released) = lock.release_async().await.unwrap();
    assert_eq!(released.unwrap(), Release::Released);
    let (_, again) = lock.release_async().await.unwrap();
    assert_eq!(again.unwrap(), Release::NotHeld);
    let next = held(&mutex).await;
    assert!(next.fence() > fence);
    next.let_go_async();
    drop(held(&mutex).await);
}

fn on_each(test: impl Fn(String) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) {
    let server = Memcached::start();
    futures::executor::block_on(test(server.url()));
    smol::block_on(test(server.url()));
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    current.block_on(test(server.url()));
    let several = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    several.block_on(async { tokio::spawn(test(server.url())).await.unwrap() });
}

#[test]
fn a_lock_is_awaited_extended_checked_and_released_on_any_runtime() {
    on_each(|url| Box::pin(a_life(url)));
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let server = Memcached::start();
    server.kill();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let error = futures::executor::block_on(mutex.lock_async(None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("lock:m") && error.to_string().contains(&server.address()));
}

/// One after the other, in the order in which they asked.
#[test]
fn tasks_are_served_in_their_order_and_one_at_a_time() {
    let server = Memcached::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&server.url()).unwrap();
        let mutex = Arc::new(client.mutex("m", LEASE).unwrap());
        let first = held(&mutex).await;
        let last = Arc::new(AtomicU64::new(first.fence()));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (mutex, last) = (Arc::clone(&mutex), Arc::clone(&last));
                tokio::spawn(async move {
                    let lock = held(&mutex).await;
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert!(before < lock.fence());
                    let (_, released) = lock.release_async().await.unwrap();
                    assert_eq!(released.unwrap(), Release::Released);
                })
            })
            .collect();
        drop(first);
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
    });
}
