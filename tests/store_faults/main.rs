//! What every store on a server suffers: the server is killed, frozen or cut off, replies are lost,
//! processes fork or close what they did not open. Each behaviour here runs on each store; what a store does not promise
//! (`Guarantees`) is data, and a behaviour then asserts the opposite.
#![allow(clippy::unwrap_used, clippy::panic)]

#[macro_use]
#[path = "../stores/mod.rs"]
#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod stores;

mod daemons;
mod forks;
mod losses;
mod moves;
mod outages;
mod races;
mod secrets;

use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use memlock_core::Client;
use memlock_tests::client::{LEASE, PATIENCE, connect, is_free};
use memlock_tests::launch::number;
use memlock_tests::one_by_one::OneByOne;
use memlock_tests::process::Server;
use memlock_tests::url;
use stores::Store;

/// The timeouts of clients that meet a server which does not reply. A test must allow for a server
/// that is slow to.
const QUICK: Duration = Duration::from_millis(500);

/// The servers of a store: one that all tests share which leave it running, and one for those that
/// kill or freeze it.
struct Servers {
    shared: OnceLock<Box<dyn Server>>,
    victim: OneByOne<Box<dyn Server>>,
}

impl Servers {
    const fn new() -> Servers {
        Servers { shared: OnceLock::new(), victim: OneByOne::new() }
    }
}

/// A server of the store, and a prefix of the test's own. The server runs at the beginning.
struct Bench {
    server: Box<dyn Deref<Target = Box<dyn Server>> + Sync>,
    prefix: String,
    keeps_when_killed: bool,
}

impl Bench {
    fn shared(store: &Store, servers: &'static Servers) -> Bench {
        Bench::new(store, servers.shared.get_or_init(store.server.unwrap()))
    }

    fn victim(store: &Store, servers: &'static Servers) -> Bench {
        Bench::new(store, servers.victim.lend(store.server.unwrap()))
    }

    fn new(store: &Store, server: impl Deref<Target = Box<dyn Server>> + Sync + 'static) -> Bench {
        let prefix = format!("prefix=t{}:", number());
        Bench { server: Box::new(server), prefix, keeps_when_killed: store.keeps_when_killed }
    }

    fn server(&self) -> &dyn Server {
        self.server.as_ref().deref().as_ref()
    }

    fn url_at(&self, address: &str) -> String {
        url::with(&self.server().url_at(address), &self.prefix)
    }

    fn client(&self) -> Client {
        self.client_at(&self.server().process().address())
    }

    /// A client at this address, which waits for a slow machine.
    fn client_at(&self, address: &str) -> Client {
        connect(&self.url_at(address))
    }

    /// A client that gives up after this time, at this address.
    fn quick_client(&self, address: &str, timeout: Duration) -> Client {
        let millis = timeout.as_millis();
        let timeouts = format!("connect_timeout={millis}ms&io_timeout={millis}ms");
        Client::connect(&url::with(&self.url_at(address), &timeouts)).unwrap()
    }
}

macro_rules! on_each_server {
    ($(($store:path: $name:ident))*) => {
        $(mod $name {
            static SERVERS: crate::Servers = crate::Servers::new();

            macro_rules! behaviour {
                ($server:ident: $suite:ident: $behaviour:ident) => {
                    #[test]
                    fn $behaviour() {
                        #[allow(clippy::wildcard_imports)]
                        use crate::stores::*;
                        crate::$suite::$behaviour(&crate::Bench::$server(&$store, &SERVERS));
                    }
                };
            }
            behaviour! { victim: outages: a_killed_server_keeps_what_it_promises }
            behaviour! { victim: outages: waiters_outlive_a_restart }
            behaviour! { victim: outages: a_renewed_lock_is_reported_lost_or_kept_across_a_restart }
            behaviour! { victim: outages: a_frozen_server_holds_no_call_up }
            behaviour! { shared: outages: a_try_is_patient_with_a_silent_server_once }
            behaviour! { shared: outages: cut_connections_are_replaced_without_a_word }
            behaviour! { shared: outages: a_tools_connection_that_was_cut_is_replaced }
            behaviour! { shared: outages: connections_that_are_reset_end_no_program }
            behaviour! { shared: outages: a_server_that_is_not_there_is_unreachable }
            behaviour! { shared: moves: a_moved_name_is_followed_and_held_locks_are_renewed_there }
            behaviour! { shared: moves: a_name_is_followed_away_from_a_silent_server }
            behaviour! { shared: losses: any_burst_may_be_lost }
            behaviour! { shared: losses: a_late_reply_is_never_taken_for_another }
            behaviour! { shared: races: fences_rise_in_the_order_of_holding }
            behaviour! { shared: races: of_many_attempts_one_is_granted }
            behaviour! { shared: daemons: what_a_daemon_opens_later_is_left_alone }
            behaviour! { shared: forks: a_child_neither_uses_nor_ends_the_connections_of_its_parent }
        })*
    };
}

for_each_server! { on_each_server }
