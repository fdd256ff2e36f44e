//! More waiters than the server takes connections.

use memlock_tests::mysql::USER;
use memlock_tests::sleepers::FewConnections;

use crate::{Alone, Place};

fn on_a_server(most: &str, test: impl FnOnce(&dyn Fn(), &FewConnections<'_>)) {
    let server = Alone::get();
    let place = Place::on(&server);
    server.set("max_connections", most);
    let ids = || {
        let ids = format!(
            "SELECT id FROM information_schema.processlist WHERE user='{USER}' AND db='{}'",
            place.database
        );
        let ids = server.sql(&ids);
        ids.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let end = || ids().iter().for_each(|id| drop(server.try_sql(&format!("KILL {id}"))));
    test(&end, &FewConnections { url: place.url(), sessions: &|| ids().len() });
}

#[test]
fn waiters_leave_their_connections_to_others() {
    on_a_server("10", |end_sessions, few| few.are_left_by_waiters(60, end_sessions));
}

#[test]
#[ignore = "real time: make prove"]
fn three_hundred_waiters_are_served_by_sixty_connections() {
    on_a_server("60", |end_sessions, few| few.are_left_by_waiters(300, end_sessions));
}

#[test]
fn a_waiter_that_holds_another_lock_keeps_a_connection_for_it() {
    on_a_server("10", |_, few| few.are_kept_for_renewals());
}

#[test]
fn a_wait_that_ends_on_a_full_server_leaves_the_queue() {
    on_a_server("10", |_, few| few.leave_the_queue());
}
