//! `guard=` for a Redis that saves nothing.

use memlock_tests::guarded;
use memlock_tests::process::Server;
use memlock_tests::url;

use crate::stores::redis::Redis;

#[test]
fn what_is_held_survives_the_end_of_a_server_that_saves_nothing() {
    let server = Redis::start(&[]);
    guarded::survives(&url::patient(&server.url()), || {
        server.kill();
        server.restart();
    });
}
