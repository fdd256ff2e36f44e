//! `guard=` for a Redis that saves nothing.

use memlock_tests::guarded;
use memlock_tests::process::Server;

use crate::stores::redis::Redis;

#[test]
fn a_young_server_grants_nothing_and_its_clients_agree() {
    guarded::is_agreed(&Redis::start(&[]).url());
}

#[test]
#[ignore = "real time: make prove"]
fn what_is_held_survives_the_end_of_a_server_that_saves_nothing() {
    let server = Redis::start(&[]);
    guarded::survives(&server.url(), || {
        server.kill();
        server.restart();
    });
}
