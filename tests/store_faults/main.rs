//! What every store on a server suffers: the server is killed, frozen or cut off, replies are lost,
//! processes fork. Each behaviour here runs on each store; what a store does not promise
//! (`Guarantees`) is data, and a behaviour then asserts the opposite.
#![allow(clippy::unwrap_used, clippy::panic)]

#[macro_use]
#[path = "../stores/mod.rs"]
#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod stores;

mod forks;
mod losses;
mod outages;
mod races;

use std::time::Duration;

use memlock_core::Client;
use memlock_tests::process::Server;
use stores::Store;

/// A lease that no test outlasts.
const LEASE: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// The timeouts of clients that meet a server which does not reply.
const QUICK: &str = "connect_timeout=500ms&io_timeout=500ms";

/// A server of the test's own.
struct Bench {
    server: Box<dyn Server>,
    keeps_when_killed: bool,
}

impl Bench {
    fn new(store: &Store) -> Bench {
        Bench { server: (store.server.unwrap())(), keeps_when_killed: store.keeps_when_killed }
    }

    fn client(&self) -> Client {
        Client::connect(&self.server.url()).unwrap()
    }

    /// A client at this address.
    fn client_at(&self, address: &str) -> Client {
        Client::connect(&self.server.url_at(address)).unwrap()
    }

    /// A client that gives up soon, at this address.
    fn quick_client(&self, address: &str) -> Client {
        quick(&self.server.url_at(address))
    }
}

fn quick(url: &str) -> Client {
    let separator = if url.contains('?') { '&' } else { '?' };
    Client::connect(&format!("{url}{separator}{QUICK}")).unwrap()
}

/// Whether a lock is free, as another client sees it.
fn is_free(client: &Client, name: &str) -> bool {
    client.mutex(name, LEASE).unwrap().owner().unwrap().is_none()
}

macro_rules! on_each_server {
    ($(($store:path: $name:ident))*) => {
        $(mod $name {
            macro_rules! behaviour {
                ($suite:ident: $behaviour:ident) => {
                    #[test]
                    fn $behaviour() {
                        #[allow(clippy::wildcard_imports)]
                        use crate::stores::*;
                        crate::$suite::$behaviour(&crate::Bench::new(&$store));
                    }
                };
            }
            behaviour! { outages: a_killed_server_keeps_what_it_promises }
            behaviour! { outages: waiters_outlive_a_restart }
            behaviour! { outages: a_renewed_lock_is_reported_lost_or_kept_across_a_restart }
            behaviour! { outages: a_frozen_server_holds_no_call_up }
            behaviour! { outages: cut_connections_are_replaced_without_a_word }
            behaviour! { outages: a_server_that_is_not_there_is_unreachable }
            behaviour! { losses: any_burst_may_be_lost }
            behaviour! { losses: a_late_reply_is_never_taken_for_another }
            behaviour! { races: fences_rise_in_the_order_of_holding }
            behaviour! { races: of_many_attempts_one_is_granted }
            behaviour! { races: permits_are_never_exceeded }
            behaviour! { forks: a_child_neither_uses_nor_ends_the_connections_of_its_parent }
        })*
    };
}

for_each_server! { on_each_server }
