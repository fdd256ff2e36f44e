//! The host name of a server moves to another address. The server there has all that was stored, as
//! one has that was started anew on the same disk.

use std::time::Duration;

use memlock_core::{Release, RenewOptions};
use memlock_tests::client::{is_granted, until_renewed};
use memlock_tests::launch::until;
use memlock_tests::names::{Name, relays};
use memlock_tests::relay::{Fate, Relay};

use crate::{Bench, LEASE, PATIENCE, QUICK};

const OLD: &str = "127.0.0.2";
const NEW: &str = "127.0.0.3";

/// Both addresses, and the name, which leads to the old one.
fn places(bench: &Bench) -> (Relay, Relay, Name, String) {
    let server = bench.server().process().address();
    let ([old, new], port) = relays([(OLD, server.clone()), (NEW, server)]);
    let name = Name::of(&[OLD]);
    let address = name.with_port(port);
    (old, new, name, address)
}

pub(crate) fn a_moved_name_is_followed_and_held_locks_are_renewed_there(bench: &Bench) {
    let (old, new, name, address) = places(bench);
    let (client, witness) = (bench.client_at(&address), bench.client());
    // The move is over before it ends.
    let lock = client.mutex("m", Duration::from_secs(20)).unwrap().lock().unwrap();
    let kept = lock.renew(RenewOptions::default()).unwrap();
    assert_eq!(new.bursts(), 0);
    drop(old);
    name.lead_to(&[NEW]);
    let other = client.mutex("n", LEASE).unwrap();
    until("the client is at the new address", || is_granted(other.try_lock()));
    let remaining = || witness.mutex("m", LEASE).unwrap().owner().unwrap().unwrap().remaining;
    until_renewed("at the new address", remaining);
    assert!(kept.is_held() && kept.lost().is_none());
    assert_eq!(kept.release().unwrap(), Release::Released);
}

/// The old address takes connections and requests, and does not answer.
pub(crate) fn a_name_is_followed_away_from_a_silent_server(bench: &Bench) {
    let (old, new, name, address) = places(bench);
    let client = bench.quick_client(&address, QUICK);
    let mutex = client.mutex("m", LEASE).unwrap();
    until("it is at the old address", || is_granted(mutex.lock_for(PATIENCE)));
    assert_eq!(new.bursts(), 0);
    old.decide(|_| Fate::LoseRequest);
    assert!(mutex.try_lock().is_err());
    name.lead_to(&[NEW]);
    until("it is at the new address", || is_granted(mutex.lock_for(PATIENCE)));
}
