//! Mutexes and their queue over a store that loses packets, gives false replies, and has items that
//! others wrote: calls by two clients. For the input see `scene`.

use std::sync::Arc;
use std::time::Duration;

use super::input::Input;
use super::scene::Scene;
use super::time::Time;
use memlock_core::{Client, Lock, Release, Wait, Waited};

pub fn run(data: &[u8]) {
    let mut scene = Scene::new(data, 24);
    let (time, honest) = (Arc::clone(&scene.time), scene.honest);
    let clients = [scene.client(), scene.client()];
    let mut held: [Option<Lock>; 2] = [None, None];
    let mut fence = 0;
    while let Some((what, program)) = scene.next_call() {
        let who = usize::from(what >> 7);
        let granted = step(&clients[who], &mut held[who], what & 15, program, (&time, honest));
        if honest && granted {
            let now = held[who].as_ref().map_or(0, Lock::fence);
            assert!(now > fence, "fences rise");
            fence = now;
        }
        let holders = held.iter().flatten().filter(|lock| !lock.remaining().is_zero()).count();
        assert!(!honest || holders < 2, "granted twice");
    }
}

/// True when a lock was granted.
fn step(
    client: &Client,
    held: &mut Option<Lock>,
    what: u8,
    program: &mut Input<'_>,
    (time, honest): (&Time, bool),
) -> bool {
    let lease = Duration::from_secs(1 + program.number() % 100);
    let mutex = client.mutex("x", lease).expect("a plain name");
    match what {
        0..=5 if held.is_none() => {
            let limit = Duration::from_millis(100 * u64::from(program.byte()));
            let wait = if what < 3 { Wait::NEVER } else { Wait::at_most(limit) };
            if let Ok(Waited::Done(lock)) = mutex.lock_with(&wait) {
                assert!(lock.remaining() <= lease);
                *held = Some(lock);
                return true;
            }
        }
        6 | 7 => {
            if let Some(mut lock) = held.take() {
                match lock.unlock() {
                    Ok(_) => {
                        let again = lock.unlock();
                        assert!(matches!(again, Ok(Release::NotHeld | Release::Lost)), "{again:?}");
                        assert!(lock.remaining().is_zero());
                    }
                    Err(_) => *held = Some(lock),
                }
            }
        }
        8 | 9 => {
            if let Some(lock) = held {
                let _ = lock.extend(lease);
                assert!(lock.remaining() <= Duration::from_secs(101));
            }
        }
        10 => {
            // Its holder does not know, so that two clients may rely on it.
            if let Ok(Some(owner)) = mutex.owner()
                && !honest
            {
                let _ = mutex.force_unlock(&owner.token());
            }
        }
        11 => {
            if let Some(lock) = held.take() {
                lock.abandon();
            }
        }
        12 => *held = None,
        13 => time.pass(Duration::from_millis(program.number() % 4000)),
        _ => time.pass(Duration::from_secs(program.number() % 400)),
    }
    false
}
